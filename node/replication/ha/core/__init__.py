"""The rules of master-slave mode.

Roles, fence, epochs and the frames of the HA link (`wire`), without sockets, files or a clock.
These modules import checksums and errors of the store only; the shell, the storage, the link and
the simulator import them.
"""
