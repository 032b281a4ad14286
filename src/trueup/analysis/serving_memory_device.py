"""What a device's runtime takes beside the tensors: rounding, compiled code, scratch, the process. What
nobody publishes, and what is known only once a program is compiled, is unavailable with its reason."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.schema import Measurement, unavailable
from trueup.schema.choices import DeviceKind

from .allocator import reserved_at_most
from .memory_plan import predicted_bytes

PAGE_BYTES = 4096  # Linux maps large tensors by the page
MAPPED_FROM_BYTES = 128 << 10  # glibc's first threshold for a mapping of its own
ALIGN_BYTES = 64  # of torch's CPU allocator

# Physical NeuronCores of a chip, and what the runtime's micro-code takes on each: AWS Neuron documentation,
# architecture pages, and "Neuron device memory" of SDK 2.33 (2026-10-15), whose tables count by 1024.
NEURON_CORES = {"trainium1": 2, "inferentia2": 2, "trainium2": 8, "trainium3": 8}
MICRO_CODE_BYTES = 96 << 20
NEURON_PAGES = "Neuron documentation, Neuron device memory, SDK 2.33, 2026-10-15"


def rounding_line(device: DeviceKind, groups: Sequence[tuple[int, int]]) -> Measurement:
    """What the allocator takes beyond the tensors' bytes, for (how many, bytes of each)."""
    asked = sum(count * size for count, size in groups)
    if device == "cuda":
        how = (
            "torch's caching allocator as modelled: blocks of 512 B, segments of 2 and 20 MiB and more, "
            "those of unlike tensors apart"
        )
        return predicted_bytes(reserved_at_most(groups) - asked, how)
    if device == "cpu":
        taken = sum(count * _on_host(size) for count, size in groups)
        how = f"pages of {PAGE_BYTES} B from {MAPPED_FROM_BYTES >> 10} KiB on, below that {ALIGN_BYTES} B"
        return predicted_bytes(taken - asked, how)
    return unavailable("bytes", "how the Neuron runtime rounds tensors is not published", scope="device")


def code_lines(device: DeviceKind, chip: str | None) -> dict[str, Measurement]:
    """Compiled code and the scratch of compiled programs."""
    if device == "cpu":
        return {}
    if device == "cuda":
        reason = "the driver's context and the libraries' workspaces are not published; nvidia-smi shows them"
        return {"code_bytes": unavailable("bytes", reason, scope="device")}
    return {
        "code_bytes": _micro_code(chip),
        "scratchpad_bytes": _after_compiling(
            "the compiler decides what each program spills; the runtime takes it in pages of 512 MB"
        ),
        "dma_rings_bytes": _after_compiling("they describe a compiled program's transfers"),
        "collectives_bytes": _after_compiling("they follow from a compiled program's collectives"),
    }


def process_line(device: DeviceKind, measured: Measurement | None) -> dict[str, Measurement]:
    """The process itself, where tensors are in its own memory."""
    if device != "cpu":
        return {}
    if measured is not None:
        return {"process_bytes": measured}
    reason = "what a process takes by itself was not calibrated here: run `trueup calibrate`"
    return {"process_bytes": unavailable("bytes", reason)}


def _micro_code(chip: str | None) -> Measurement:
    cores = NEURON_CORES.get(chip or "")
    if cores is None:
        reason = "how many NeuronCores this chip has is not known, each of which takes about 96 MiB of code"
        return unavailable("bytes", reason, scope="device")
    how = f"{cores} physical cores x 96 MiB ({NEURON_PAGES}); the programs' own instructions come on top"
    return Measurement(
        value=float(cores * MICRO_CODE_BYTES), unit="bytes", kind="quoted", method=how, scope="device"
    )


def _after_compiling(why: str) -> Measurement:
    return unavailable("bytes", f"known only once the model is compiled: {why}", scope="device")


def _on_host(size: int) -> int:
    step = PAGE_BYTES if size >= MAPPED_FROM_BYTES else ALIGN_BYTES
    return -(-size // step) * step
