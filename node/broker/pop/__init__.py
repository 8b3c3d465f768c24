"""Pop consumption: what the leader hands out message by message; `pop.py` has the calls."""

from node.broker.pop.pop import Pop

__all__ = ["Pop"]
