"""A run's whole state on disk: written whole or not at all, and checked before it is used."""
