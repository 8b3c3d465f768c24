"""What all parts of the broker share.

Who this node is, its ports, freshness of reads, parked readers. These modules import the state and
the store and no other part of the broker; every part imports them.
"""
