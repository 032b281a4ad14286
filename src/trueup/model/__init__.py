"""Which model, loaded how, with which loss and precision, and how it leaves again.

Importing this package does not import torch: submodules that need it are imported where they are used.
"""
