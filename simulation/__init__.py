"""Whole nodes, clients and their machines in one thread and one virtual time, from one seed.

Everything that runs here is the code that ships: store, Raft, broker, links, the framed port, the
SDK. What stands below it is simulated: time, threads, sockets, calls, disks, randomness. `kernel`,
`network` and `disk` import nothing of the project; `machines` and `rpc` import what of it they
replace; `cluster` and what stands above it import whole nodes, the SDK, and the load and the judges
of `chaos`. A simulator of rules alone stands beside all that, and is faster: `raft` runs core and
pump, and `mutants` plants faults in them. Nothing that ships imports this package: tests do, and
`tests.hours` runs it as a command.
"""
