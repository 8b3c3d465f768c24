"""A whole cluster in one thread, driven by one seed, with referees and a judge of its histories.

The simulator runs the real core and the real pump of `raft.pump.replica`; it replaces clock,
network, disk, randomness and the order of events. `mutants.txt` lists the planted faults, each with
the number of seeds or the test that must find it. The package imports `raft`,
`checkers` and `simulation.mutants` only; tests import it, and `tests.hours` runs it as a command.
"""
