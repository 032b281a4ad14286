"""Contestants of bench/finetune.py, each in a process of its own; the peers need the extra `bench`."""
