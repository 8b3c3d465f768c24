"""Delayed messages: delivery times, cancelling, and the counts of messages that are held.

Owns the rules for a delivery time and the calls of DelayService; must not know how messages travel.
`Admin` inherits these calls.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from quorumlog.arguments import check_number, check_real, checked, wrong_type
from quorumlog.cluster.broker_groups import BrokerGroups
from quorumlog.cluster.calls import Service
from quorumlog.cluster.retry import Deadline
from quorumlog.errors import InvalidRequestError
from quorumlog.pb import delay_pb2, log_pb2
from quorumlog.records.message import OutgoingMessage
from quorumlog.records.receipt import Receipt

HAS_DELAYED: Final = log_pb2.AppendRequest(has_delayed=True).SerializeToString()
"""The additional field of an append request with delayed messages."""
HELD_SIZE_BYTES: Final = 128
"""Upper bound of the bytes by which a held message is larger than the sent one."""
_NAMES: Final = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")


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

    @classmethod
    def of(cls, group: str, pb: delay_pb2.DelayStatusResponse) -> "DelayStatus":
        """Decode the status from the wire."""
        queues = tuple(
            DelayQueue(q.level, q.delay_ms, q.held_count, q.floor_offset, q.max_offset)
            for q in pb.queues
        )
        return cls(
            group,
            queues,
            pb.held_count,
            pb.held_count_max,
            pb.horizon_ms,
            pb.next_due_unix_ms,
            pb.now_unix_ms,
            pb.undeliverable_count,
            pb.is_loading,
        )


def with_wish(
    properties: Mapping[str, str] | None,
    delay: float | None,
    level: int | None,
    deliver_at: float | None,
) -> dict[str, str]:
    """Return properties with the delivery time. Raises InvalidRequestError."""
    if (delay is not None) + (level is not None) + (deliver_at is not None) != 1:
        text = "more than one of delay, level and deliver_at is given; give one of them"
        raise InvalidRequestError(text)
    if properties is not None and not isinstance(properties, Mapping):
        raise wrong_type("properties", properties, "a dict")
    taken = [name for name in _NAMES if name in (properties or ())]
    if taken:
        raise InvalidRequestError(f"property {taken[0]} says when to deliver, too; leave it out")
    if delay is not None:
        return {"TIMER_DELAY_MS": str(_ms("delay", delay)), **(properties or {})}
    if deliver_at is not None:
        return {"TIMER_DELIVER_MS": str(_ms("deliver_at", deliver_at)), **(properties or {})}
    check_number("level", level)
    return {"DELAY": str(operator.index(cast(int, level))), **(properties or {})}


def all_with_wish(
    bodies: Sequence[bytes | str | OutgoingMessage],
    delay: float | None,
    level: int | None,
    deliver_at: float | None,
) -> Sequence[bytes | str | OutgoingMessage]:
    """Return a batch in which messages with properties of their own get the delivery time, too."""
    return [
        replace(body, properties=with_wish(body.properties, delay, level, deliver_at))
        if isinstance(body, OutgoingMessage) and body.properties is not None
        else body
        for body in bodies
    ]


def _ms(name: str, seconds: float) -> int:
    check_real(name, seconds)
    return math.ceil(seconds * 1000)


@checked
class DelayAdmin:
    """The calls of an `Admin` that are about delayed messages."""

    _groups: BrokerGroups
    _timeout_ms: int

    async def _each(
        self, method: str, request: Any, *, service: Service = "admin"
    ) -> tuple[dict[str, Any], list[str]]:
        raise NotImplementedError

    async def cancel_delayed(self, message: Receipt | str, *, group: str = "") -> CancelledDelay:
        """Cancel the delivery of a delayed message, by its receipt or the message id in it.

        Certain once it returns. Raises DelayedGoneError when it was delivered, or is just being
        delivered; NotFoundError when it was never delayed. Of several broker groups `group` is the
        one that holds it, unless the receipt names it; without either the first one by name.
        """
        message_id = message if isinstance(message, str) else message.message_id
        if isinstance(message, Receipt):
            group = group or message.group
        broker_group = self._groups.get(group)
        request = delay_pb2.CancelDelayedRequest(
            message_id=message_id, cluster_id=self._groups.cluster_id
        )
        response = await broker_group.calls.leader(
            "delay", "CancelDelayed", request, Deadline(self._timeout_ms), is_repeatable=True
        )
        return CancelledDelay(response.topic, response.queue_id, response.due_unix_ms)

    async def delay_status(self) -> list[DelayStatus]:
        """Return the delayed messages of each broker group, by group name."""
        request = delay_pb2.DelayStatusRequest()
        answers, _ = await self._each("DelayStatus", request, service="delay")
        return [DelayStatus.of(name, answers[name]) for name in sorted(answers)]
