"""What operators and machines see of a node.

Health, the HTTP port, metrics and their samples. These modules import what they measure and change
nothing; only nodes and the calls of AdminService import them.
"""
