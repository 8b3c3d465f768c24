"""Delayed messages: cancelling, and the counts of messages that are held.

Owns the calls of DelayService and their values; must not know how calls find the leader.
"""

from dataclasses import dataclass

from quorumlog.admin.calls import AdminCalls
from quorumlog.arguments import checked
from quorumlog.pb import delay_pb2
from quorumlog.records.receipt import Receipt
from quorumlog.records.values import of_pb


@dataclass(frozen=True, slots=True)
class CancelledDelay:
    """Place and time of the delivery that was cancelled."""

    topic: str
    queue_id: int
    due_unix_ms: int


@dataclass(frozen=True, slots=True)
class DelayQueue:
    """The delayed messages of one queue. Level 0: those of any time."""

    level: int
    delay_ms: int
    held_count: int
    floor_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class DelayStatus:
    """The delayed messages of one broker group. Times are by the clock of its leader.

    `next_due_unix_ms` is 0 while no message is held, and may be some seconds early for distant
    times. `undeliverable_count` messages are in `rmq_sys_undeliverable`, because their own topic
    was gone or took no messages. While `is_loading`, the new leader reads the messages to deliver.
    """

    group: str
    queues: tuple[DelayQueue, ...]
    held_count: int
    held_count_max: int
    delay_ms_max: int
    next_due_unix_ms: int
    now_unix_ms: int
    undeliverable_count: int
    is_loading: bool


@checked
class DelayAdmin:
    """The calls of an `Admin` that are about delayed messages."""

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    async def cancel_delayed(self, message: Receipt | str, *, group: str = "") -> CancelledDelay:
        """Cancel the delivery of a delayed message, by its receipt or the message id in it.

        Certain once it returns. Raises DelayedGoneError when it was delivered, or is just being
        delivered; NotFoundError when it was never delayed. Of several broker groups `group` is the
        one that holds it, unless the receipt names it; without either the first one by name.
        """
        message_id = message if isinstance(message, str) else message.message_id
        if isinstance(message, Receipt):
            group = group or message.group
        broker_group = self._calls.groups.get(group)
        request = delay_pb2.CancelDelayedRequest(
            message_id=message_id, cluster_id=self._calls.groups.cluster_id
        )
        response = await self._calls.lead(broker_group, "CancelDelayed", request, service="delay")
        return of_pb(CancelledDelay, response)

    async def delay_status(self) -> list[DelayStatus]:
        """Return the delayed messages of each broker group, by group name."""
        request = delay_pb2.DelayStatusRequest()
        answers, _ = await self._calls.each("DelayStatus", request, service="delay")
        return [
            of_pb(DelayStatus, pb, group=name, delay_ms_max=pb.horizon_ms)
            for name, pb in sorted(answers.items())
        ]
