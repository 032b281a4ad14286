"""From the recipe's guard section, and what is known of machine and job, to a policy."""

from __future__ import annotations

import psutil

from trueup.analysis.guard_presets import expanded, named
from trueup.analysis.guard_records import Policy, Rule
from trueup.analysis.guard_values import Facts
from trueup.device import Device
from trueup.device.host import cgroup_limits
from trueup.recipe.survival import GuardSection
from trueup.schema import Price


def facts_of(
    device: Device | None, price: Price | None, total_steps: int | None, down_s: float = 0.0
) -> Facts:
    """What is known of the machine and the job for derived values."""
    described = device.describe() if device is not None else {}
    memory = device.memory() if device is not None else None
    limit_w = described.get("power_limit_w")
    return Facts(
        usd_per_hour=price.usd_per_hour if price is not None else None,
        down_s=down_s,
        total_steps=total_steps,
        host_memory_bytes=psutil.virtual_memory().total,
        container_memory_bytes=cgroup_limits().memory_bytes,
        device_memory_bytes=memory.total_bytes if memory is not None else None,
        power_limit_w=float(limit_w) if isinstance(limit_w, int | float) else None,
    )


def policy_of(section: GuardSection, facts: Facts, stop_usd: float | None) -> tuple[Policy, tuple[str, ...]]:
    """The section with its presets expanded, and what these lack. A person's own rules come first."""
    ready_made, notes = expanded(section.presets, facts, stop_usd)
    policy = Policy(
        rules=named((*(Rule(**own.model_dump()) for own in section.rules), *ready_made)),
        min_pause_s=section.min_pause_s,
        max_pause_s=section.max_pause_s,
        max_pauses_per_hour=section.max_pauses_per_hour,
    )
    return policy, notes
