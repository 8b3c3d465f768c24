"""The message record.

Its codec, the stamp that only the store can give, the checks of what is stored, and the names of
topics that are the system's. These modules import `files` and the ground and know no log; logs,
derived files and checks import them.
"""
