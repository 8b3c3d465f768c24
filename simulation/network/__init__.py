"""A network of machines: links with latency, loss, order and partitions; streams, sockets.

Imports `simulation.kernel`. Knows no protocol of ours.
"""
