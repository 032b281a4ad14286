"""What follows from a run's records: steady part, statistics, measurements and the bill. Pure functions.

Modules are imported by name where used: `measure` needs numpy; the bill, which is printed often, does not.
"""
