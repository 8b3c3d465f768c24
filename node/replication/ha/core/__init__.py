"""The rules of master-slave mode.

Roles, fence, epochs and wire, without sockets, files or a clock. These modules import the errors of
the store only; the shell, the storage, the link and the simulator import them.
"""
