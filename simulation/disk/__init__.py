"""Disks of machines in a world: what survives, how long a call takes, and what goes wrong.

Files are real ones in a memory directory, so maps are real maps. Imports `simulation.kernel` and
nothing of the project; tests of `store` use the model of durability as well.
"""
