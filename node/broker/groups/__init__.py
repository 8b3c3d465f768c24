"""Consumer groups.

Heartbeats, members, settings and offsets. These modules import `core` and `append`; reads, pop and
retries import the settings.
"""
