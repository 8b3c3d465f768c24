"""The consensus core.

Raft as a pure state machine, without sockets, files, threads or clocks. `core` is the entry point;
its output is in `ready`, the messages between replicas in `messages`. The package imports no other
package of the project; `node`, the fault suites and the tests import it.
"""
