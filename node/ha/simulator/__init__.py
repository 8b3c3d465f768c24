"""A whole master-slave group in one thread, driven by one seed, with referees.

Runs the real machine and the real wire; replaces clock, network, disk and the controller, which is
hostile. Must not know `raft` or its simulator.
"""
