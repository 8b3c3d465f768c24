"""The view of a node for operators and machines: health, the HTTP port, metrics, their samples.

These modules import the modules they measure and change nothing; only nodes and the calls of
AdminService import them.
"""
