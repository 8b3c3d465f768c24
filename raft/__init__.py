"""The consensus core.

Raft as a pure state machine, without sockets, files, threads or clocks. `core` is the way in; what
it hands out is in `ready`, what replicas say to each other in `messages`. Nothing here imports
another package of the project; `node`, the fault suites and the tests import it.
"""
