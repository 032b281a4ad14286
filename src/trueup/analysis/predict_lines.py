"""The lines of a prediction. Standard library only: runs that were foretold are listed on any machine."""

from __future__ import annotations

# Lines in the order in which they are shown, and their units.
LINES = {
    "step_s": "s",
    "compute_s": "s",
    "padding_s": "s",
    "communication_s": "s",
    "data_wait_s": "s",
    "compile_s": "s",
    "step_p99_s": "s",
    "useful_tokens_per_s": "tokens/s",
    "weights_bytes": "bytes",
    "gradients_bytes": "bytes",
    "optimizer_bytes": "bytes",
    "activations_bytes": "bytes",
    "working_copies_bytes": "bytes",
    "logits_bytes": "bytes",
    "fragmentation_bytes": "bytes",
    "training_bytes": "bytes",
    "base_bytes": "bytes",
    "peak_memory_bytes": "bytes",
    "power_w": "W",
    "usd_per_million_useful_tokens_steady": "USD/million useful tokens",
}
