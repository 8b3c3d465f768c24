"""The division of queues among consumers: the strategies of RocketMQ, as pure functions.

Owns the division of one topic's queues among the members of a group; must not know how members are
found. Every member computes it from the same sorted inputs, so all agree without talking.
"""

import bisect
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Final

from quorumlog.errors import InvalidRequestError
from quorumlog.records.queues import Pair

Strategy = Callable[[str, Sequence[Pair], Sequence[str]], list[Pair]]
"""(own client id, sorted queues of one topic, sorted client ids) to this member's queues."""

VIRTUAL_NODES_COUNT: Final = 64  # Deviation: RocketMQ has 10, which divides very unevenly.


def averagely(client_id: str, queues: Sequence[Pair], client_ids: Sequence[str]) -> list[Pair]:
    """Give every member one run of neighbouring queues; the first members get one more.

    Source: RocketMQ AllocateMessageQueueAveragely.
    """
    if client_id not in client_ids:
        return []
    i, least, more = client_ids.index(client_id), *divmod(len(queues), len(client_ids))
    lo = i * least + min(i, more)
    return list(queues[lo : lo + least + (i < more)])


def circle(client_id: str, queues: Sequence[Pair], client_ids: Sequence[str]) -> list[Pair]:
    """Deal the queues out one by one. Source: RocketMQ AllocateMessageQueueAveragelyByCircle."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


def consistent_hash(
    client_id: str, queues: Sequence[Pair], client_ids: Sequence[str]
) -> list[Pair]:
    """Put members and queues on a ring: a member that joins or leaves moves few queues.

    Source: RocketMQ AllocateMessageQueueConsistentHash (MD5 ring with virtual nodes).
    """
    if client_id not in client_ids:
        return []
    ring = sorted(
        (_hash(f"{member}-{i}"), member)
        for member in client_ids
        for i in range(VIRTUAL_NODES_COUNT)
    )
    points = [point for point, _ in ring]
    mine = []
    for queue in queues:
        at = bisect.bisect_left(points, _hash(f"{queue[0]}/{queue[1]}")) % len(ring)
        if ring[at][1] == client_id:
            mine.append(queue)
    return mine


NAME_LENGTH_MAX: Final = 64  # The limit of the nodes.
STRATEGIES: Final[dict[str, Strategy]] = {
    "averagely": averagely,
    "circle": circle,
    "consistent_hash": consistent_hash,
}


def strategy_of(strategy: str | Strategy) -> Strategy:
    """Return the strategy of that name, or the function itself. Raises InvalidRequestError."""
    if not isinstance(strategy, str):
        return strategy
    if strategy not in STRATEGIES:
        names = ", ".join(STRATEGIES)
        raise InvalidRequestError(f"strategy {strategy!r} is unknown; use one of {names}")
    return STRATEGIES[strategy]


def strategy_name(strategy: Strategy) -> str:
    """Return the name of a strategy; of a program's own its module and name, the end of them."""
    for name, one in STRATEGIES.items():
        if one is strategy:
            return name
    kind = strategy if hasattr(strategy, "__qualname__") else type(strategy)
    return f"{kind.__module__}.{kind.__qualname__}"[-NAME_LENGTH_MAX:]


def assign(
    strategy: Strategy,
    client_id: str,
    queue_counts: dict[str, int],
    client_ids: Sequence[str],
    *,
    group: str = "",
) -> list[Pair]:
    """Apply a strategy to each topic; return this member's queues of a broker group, sorted.

    The queues of each group are divided on their own, among the members that this group knows:
    other groups, and their members, do not matter. So that the same members do not get more in
    every group, each numbered group (g0, g1...) begins to deal where the one before ended.
    """
    members = sorted(client_ids)
    mine: list[Pair] = []
    for topic in sorted(queue_counts):
        count = queue_counts[topic]
        at = _number(group) * count % len(members) if members else 0
        queues = [(topic, queue_id) for queue_id in range(count)]
        mine += _asked(strategy, client_id, queues, members[at:] + members[:at])
    return sorted(mine)


def _asked(
    strategy: Strategy, client_id: str, queues: Sequence[Pair], client_ids: Sequence[str]
) -> list[Pair]:
    """Call a strategy, which may be the program's own. Raises InvalidRequestError for a result
    with which its member would read unknown queues, or one queue twice."""
    try:
        mine = [(topic, queue_id) for topic, queue_id in strategy(client_id, queues, client_ids)]
        is_right = len(set(mine)) == len(mine) and set(mine) <= set(queues)
    except (Exception, SystemExit) as error:
        raise InvalidRequestError(
            f"the strategy raised {type(error).__name__}: {error}; correct it, or use one of "
            f"{', '.join(STRATEGIES)}",
            code="client.bad_strategy",
        ) from error
    if not is_right:
        raise InvalidRequestError(
            f"the strategy gave {mine!r:.200} out of {len(queues)} queues of a topic; have it "
            f"return some of those that it is given, each once",
            code="client.bad_strategy",
        )
    return mine


def _number(group: str) -> int:
    """Return the digits at the end of a name, up to six, as a number; 0 if there are none."""
    digits = re.search(r"[0-9]{1,6}$", group)
    return int(digits[0]) if digits else 0


def _hash(text: str) -> int:
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "big")
