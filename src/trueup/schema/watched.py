"""What a guard may watch beside the sensors themselves: values derived from steps, samples and facts."""

from __future__ import annotations

# Known once a step has ended: none comes while a run is paused.
STEP_VALUES = {
    "loss": "loss of the step",
    "loss_ratio": "loss over its running median",
    "step_time_ratio": "seconds per processed token of the step over their running median",
    "data_wait_share": "part of the step's time in which it waited for data",
    "usd_projected": "dollars at the last step, at the recent rate",
    "usd_after_next_step": "dollars spent once one more step like the recent ones is done",
}
# Known at every sample.
SAMPLE_VALUES = {
    "clock_share": "clock_mhz over its running median",
    "power_share": "power over the device's own limit",
    "memory_share": "the fuller of host_memory_share and device_memory_share",
    "host_memory_share": "used part of the machine's memory, or of the container's where that is fuller",
    "device_memory_share": "used part of the device's memory",
    "memory_growth_bytes_per_hour": "steady growth of what the run never gives back, host or device",
    "memory_full_in_s": "seconds until that growth has filled the memory; a month where there is none",
    "usd_spent": "dollars of the run's wall clock so far",
    "disk_free_bytes": "free bytes where the run folder is",
}
DERIVED_VALUES = STEP_VALUES | SAMPLE_VALUES
# A paused run has none of these: it makes no steps, and an idle chip's clock says nothing of throttling.
ONLY_TRAINING = {*STEP_VALUES, "clock_share"}
ONLY_RISING = {"usd_spent"}  # a pause that waits for these to come back would never end
