"""Settings of a node, how they are read and checked, and the limits that follow from them.

These modules import `peers` for TLS and proof, and `runtime`; everything above imports settings and
limits.
"""
