"""What the home's earlier runs teach of a platform: read here, at the edge, and passed down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .output import say

if TYPE_CHECKING:
    from trueup.device import Device
    from trueup.recipe import Recipe
    from trueup.schema import PlatformProfile

RECENT_RUNS = 10  # of the same model on the same kind of device; older ones knew an older trueup


def learnt(recipe: Recipe, device: Device) -> PlatformProfile | None:
    """From the latest runs of this recipe's model on this device; None where there are none, or where the
    database cannot be read: a run does not wait for it."""
    from trueup.analysis.learnt import learnt_profile
    from trueup.schema import InputError, StorageError

    from .records import open_store

    try:
        with open_store() as store:
            alike = [
                run.id for run in store.runs() if run.model == recipe.model.path and run.device == device.kind
            ]
            records = [store.record(run_id) for run_id in alike[:RECENT_RUNS]]
    except (StorageError, InputError) as error:
        say(f"note: {error} Nothing was learnt from earlier runs.")
        return None
    return learnt_profile(
        records,
        recipe.model_dump(mode="json"),
        device_kind=device.kind,
        device_name=device.name,
        static=device.static_shapes_only,
    )
