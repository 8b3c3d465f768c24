"""The consensus core: Raft as a pure state machine, without sockets, files, threads or clocks."""
