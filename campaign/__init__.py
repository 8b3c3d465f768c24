"""Campaigns: the tests without an end, interleaved for hours, and a ledger of what they did.

Owns the queue of small units of work (seeds of the simulators, chaos scenarios, planted faults,
fuzzers), their totals by commit, and the fuzzers themselves (`fuzz`). A unit is a command of this
repository in a process of its own; what a seed or a scenario does belongs to the package that has
the command. The fuzz targets import the parsers; units run everything else as commands. No package
imports it.
"""
