"""The view of a node for operators and machines: health, pages, the HTTP port, what a metric is.

`node.metrics` has the rows of all metrics. These modules import services and the broker, and change
nothing; replication and nodes import them.
"""
