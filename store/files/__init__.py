"""Files as the engine sees them.

The one port to the disk, and maps, rolling queues and caches over it. These modules import the
ground (`errors`, `format`, `stats`) and know no record; every other folder of the store imports
them.
"""
