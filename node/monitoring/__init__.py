"""The view of a node for operators and machines: health, the HTTP port, metrics, their samples.

`metrics` has one row for each metric; the table of a new part also needs a place in `METRICS` and
an `add_metrics` in a node. These modules import the modules they measure and change nothing; only
nodes and the calls of AdminService import them.
"""
