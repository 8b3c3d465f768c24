"""Settings of a node, the code that reads and checks them, and the limits of the broker.

These modules import `peers` for TLS and proof, and `runtime`; everything above imports settings and
limits.
"""
