"""Holds a call until the leader of its broker group answers: this node, or one that it goes to.

Owns how long a call is held and when it is tried again, for both protocols of RocketMQ. Must not
know what a call means, nor how it travels. Clients try three times within milliseconds and then
report to the application, so a call is held for longer than an election takes (protocol section
16.3), and so is one that this node refuses because its leadership is about to end.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from node.errors.common import (
    DrainingError,
    NodeError,
    NotAppliedError,
    NotLeaderError,
    NotReadyError,
    ShuttingDownError,
    TransferringError,
)
from node.errors.ha import NotMasterError
from node.rocketmq.cluster import GatewayCluster
from node.rocketmq.protocol.statuses import CallRefusedError
from quorumlog.pb.rocketmq_pb2 import Code

T = TypeVar("T")

HOLD_S: Final = 2.5
"""Time that a call waits for a leader: below the 3 s after which clients give one up."""
_LOOK_S: Final = 0.02
"""Pause while no leader is known: no event tells that another node begins to lead."""
_PAUSE_S: Final = 0.05
"""Pause after a leader refused a call. It doubles: many calls may wait, and each is done from the
start."""
_PAUSE_S_MAX: Final = 0.2
LED_ELSEWHERE: Final[tuple[type[NodeError], ...]] = (
    DrainingError,
    NotAppliedError,
    NotLeaderError,
    NotMasterError,
    NotReadyError,
    ShuttingDownError,
    TransferringError,
)
"""Errors of a node whose leadership begins or ends just then. The call changed nothing, and soon a
leader can take it."""


class NothingDoneError(Exception):
    """A call did not reach a leader, or changed nothing there: it can go to the next leader."""

    def __init__(self, refusal: Exception) -> None:
        """`refusal` is the error for the client when no time is left."""
        super().__init__(refusal)
        self.refusal = refusal


async def answer_of_leader(
    cluster: GatewayCluster,
    group: str,
    here: Callable[[], Awaitable[T]],
    there: Callable[[str], Awaitable[T]],
    limit_s: float = math.inf,
) -> T:
    """Return the answer of a group's leader: that of `here`, or of `there` with its address.

    The call is held from its first refusal on, until `limit_s` of the loop's clock at the latest.
    Raises CallRefusedError without a leader, and the errors of `here` and `there`.
    """
    loop = asyncio.get_running_loop()
    until_s, pause_s = math.inf, _PAUSE_S
    while True:
        leader = cluster.leader_of(group)
        wait_s, pause_s = pause_s, min(2 * pause_s, _PAUSE_S_MAX)
        refusal: Exception
        if leader is None:
            wait_s, pause_s = _LOOK_S, _PAUSE_S
            text = f"group {group!r} has no leader at the moment; try again"
            refusal = CallRefusedError(Code.HA_NOT_AVAILABLE, text)
        else:
            try:
                return await (here() if leader.is_here else there(leader.address))
            except LED_ELSEWHERE as error:
                refusal = error
            except NothingDoneError as error:
                refusal = error.refusal
        now_s = loop.time()
        until_s = min(until_s, now_s + HOLD_S, limit_s)
        if now_s + wait_s > until_s:
            raise refusal
        await asyncio.sleep(wait_s)
