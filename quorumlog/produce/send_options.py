"""The options of the messages of a transaction, for the calls that hand them on to `begin`.

Owns their names and types; must not know what is sent. Calls of a producer have parameters, since
passing options on costs a third of such a call; a test compares them.
"""

from collections.abc import Mapping
from typing import TypedDict


class HalfOptions(TypedDict, total=False):
    """Options of `TransactionalProducer.begin`."""

    key: str | None
    """Indexed for `query_by_key`, several with one blank between. Chooses group and queue."""
    tag: str | None
    """Consumers can filter by it."""
    queue_id: int | None
    """The queue; None: chosen by `key`, or round robin a batch at a time."""
    properties: Mapping[str, str] | None
    group: str
    """Name of the broker group; empty: chosen by `queue_id` or `key`."""
