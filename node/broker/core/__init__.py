"""Shared by all parts of the broker.

The identity of this node, its ports, freshness of reads, parked readers. These modules import the
state and the store and no other part of the broker; every part imports them.
"""
