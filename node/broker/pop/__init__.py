"""Pop consumption.

Messages that the leader hands out one by one; `pop` has the calls. These modules import `core`,
`records`, `append`, the filters of reads and the settings of groups; the face of the broker imports
them.
"""

from node.broker.pop.pop import Pop

__all__ = ["Pop"]
