"""The measured loop: open, warm up, step, evaluate, keep, record."""
