"""The pump.

Input, core, log and effects in the one safe order, in production and in the simulator. The pump
imports the core and nothing of a node; `node.replication.raft` and `simulation.raft` drive it.
"""
