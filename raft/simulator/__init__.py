"""A whole cluster in one thread, driven by one seed, with referees and a judge of its histories.

Runs the real `raft` core and the real pump of `node.replica`; replaces clock, network, disk,
randomness and the order of events. This package is the one place below `raft` that may import
`node` (only `node.replica` and `node.effects`). `history`, `checker`, `sweep` and `register` know
nothing of the rest, so that tests against real processes can use them as a library.
"""
