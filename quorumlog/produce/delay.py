"""Delayed messages: the delivery time that a message carries.

Owns the rules for a delivery time; must not know how messages travel.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

from quorumlog.arguments import check_number, check_real, wrong_type
from quorumlog.errors import InvalidRequestError
from quorumlog.pb import log_pb2
from quorumlog.records.message import OutgoingMessage

HAS_DELAYED: Final = log_pb2.AppendRequest(has_delayed=True).SerializeToString()
"""The additional field of an append request with delayed messages."""
HELD_SIZE_BYTES: Final = 128
"""Upper bound of the bytes by which a held message is larger than the sent one."""
_NAMES: Final = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")


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
