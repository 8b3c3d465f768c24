"""The messages that groups have in flight by pop.

Owns this call; must not know how calls find the leader.
"""

from dataclasses import dataclass

from quorumlog.admin.calls import AdminCalls
from quorumlog.arguments import checked
from quorumlog.pb import pop_pb2
from quorumlog.records.values import of_pb


@dataclass(frozen=True, slots=True)
class PopQueue:
    """The messages of one queue that a group has in flight; `group` is the queue's broker group.

    Everything before `offset` is done; messages from `next_offset` on are not examined yet.
    `waiting_count` messages were passed over because an earlier one of their message group is in
    flight. The first one is visible again at `first_visible_unix_ms` (0: none is in flight). A
    queue that `is_full` delivers no new message until some are acknowledged; one with a
    `held_reason` delivers none until its next message can be read again.
    """

    topic: str
    queue_id: int
    group: str
    offset: int
    next_offset: int
    in_flight_count: int
    waiting_count: int
    delivery_count_max: int
    first_visible_unix_ms: int
    is_full: bool
    held_reason: str = ""


@checked
class PopAdmin:
    """The part of `Admin` that is about pop."""

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    async def describe_pop(self, group: str) -> list[PopQueue]:
        """Return the queues in which a group has messages in flight, by topic."""
        request = pop_pb2.DescribePopRequest(group=group)
        answers, _ = await self._calls.each(
            "DescribePop", request, service="pop", may_be_away=False
        )
        queues = [
            of_pb(PopQueue, queue, group=name)
            for name, answer in answers.items()
            for queue in answer.queues
        ]
        return sorted(queues, key=lambda queue: (queue.topic, queue.group, queue.queue_id))
