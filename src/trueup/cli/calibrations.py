"""What `trueup calibrate` measured, kept in the home: read and written here, at the edge, and passed down."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trueup.home import find_home

from .output import say

if TYPE_CHECKING:
    from pathlib import Path

    from trueup.device import Device
    from trueup.schema import Calibration


def keep(calibration: Calibration, *, afresh: bool = False) -> Path:
    """Write it under its name. Of what was measured before with the same torch, trueup and threads, rates of
    other precision policies stay, and those of the same one are averaged with, unless `afresh`: a shared
    machine is not as fast at one time as at another."""
    from trueup.analysis.predict_fit import together
    from trueup.files.whole import replacing_file
    from trueup.schema import StorageError

    path = find_home().for_writing().platforms / f"{calibration.name}.json"
    before = _read(path)
    if before is not None and _comparable(before, calibration) and not afresh:
        rates = before.rates | {
            policy: together(before.rates[policy], now) if policy in before.rates else now
            for policy, now in calibration.rates.items()
        }
        measurements = before.measurements | calibration.measurements
        calibration = calibration.model_copy(update={"rates": rates, "measurements": measurements})
    try:
        path.parent.mkdir(exist_ok=True)
        with replacing_file(path) as part:
            part.write_text(calibration.model_dump_json(indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"could not write {path}: {error.strerror}. Free some space, or set TRUEUP_HOME to another folder"
        ) from error
    return path


def named(name: str) -> Calibration | None:
    """The calibration of that name; None where there is none."""
    return _read(find_home().platforms / f"{name}.json") if name == platform_name(name) else None


def names() -> list[str]:
    """Of every platform that was calibrated in this home."""
    folder = find_home().platforms
    return sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []


def of_device(device: Device) -> Calibration | None:
    """The latest calibration of this very device with as many threads; None where there is none."""
    threads, _ = device.choose_threads()
    found = [one for one in map(named, names()) if one is not None]
    asked = (device.kind, device.name, threads)
    fitting = [one for one in found if (one.device_kind, one.device_name, one.threads) == asked]
    return max(fitting, key=lambda one: one.made_at, default=None)


def platform_name(text: str) -> str:
    """A name that is a plain file name: letters, digits, dashes and dots."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")


def _comparable(before: Calibration, now: Calibration) -> bool:
    return all(
        getattr(before, key) == getattr(now, key)
        for key in ("device_kind", "device_name", "threads", "torch_version", "trueup_version")
    )


def _read(path: Path) -> Calibration | None:
    from pydantic import ValidationError

    from trueup.schema import Calibration

    try:
        return Calibration.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        first = str(error).splitlines()[0]
        say(f"note: {path} is no calibration that this trueup can read ({first}); run `trueup calibrate`")
        return None
