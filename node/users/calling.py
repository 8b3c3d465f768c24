"""The user in whose name a call runs, for the parts that it passes through.

Owns the one question that a part asks where only it knows what a call touches: the topic of a
message that is found by its id, the names of a list, a topic that a send makes. Work of the node
runs in no user's name, and everything is allowed to it.
"""

import asyncio
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final, Protocol

from node.errors.common import NodeError
from node.errors.users import ForbiddenError
from node.users.rules import Action, Need, ResourceKind
from raft.messages import NodeId


class Calling(Protocol):
    """Whose call it is, as a guard made it."""

    @property
    def name(self) -> str:
        """The name of the user; empty: it showed no credential."""

    @property
    def peer_id(self) -> NodeId:
        """The node of this group that it is; NO_NODE: it is none."""

    def may(self, need: Need) -> bool:
        """Whether it may do something now."""

    def require(self, need: Need) -> None:
        """Raise ForbiddenError or UnauthenticatedError unless it may."""

    def spend(self, size_bytes: int, message_count: int) -> None:
        """Count what it publishes where no batch of its own is looked through. Raises
        RateLimitedError."""

    def publish(
        self, queues: Iterable[tuple[bytes, int]], size_bytes: int = 0, message_count: int = 0
    ) -> None:
        """Raise as `require` unless it may publish to the topics of all these queues, and
        RateLimitedError unless it may do so now."""

    def check_debt(self) -> None:
        """Raise RateLimitedError while it has moved more than its rates allow."""

    def reading_wait_s(self) -> float:
        """Return the seconds until `check_debt` passes."""

    def received(self, size_bytes: int, message_count: int) -> None:
        """Count what it has read."""


_calling: ContextVar[Calling | None] = ContextVar("calling", default=None)

_watched: ContextVar[Calling | None] = ContextVar("watched", default=None)


def set_calling(caller: Calling | None, watched: Calling | None = None) -> None:
    """Run the rest of the current task in the name of a user; None: in that of the node. What a
    `watched` one may not do is noted, and done."""
    _calling.set(caller)
    _watched.set(watched)


watched: Final = _watched.get
"""Returns whose call is running of which only is noted what `users = on` would refuse."""
calling: Final = _calling.get
"""Returns whose call is running; None: users are off, or it is the node's own work."""


def check_debt() -> None:
    """Raise RateLimitedError while the running call's user has moved more than its rates allow."""
    caller = _calling.get()
    if caller is not None:
        caller.check_debt()


async def wait_for_reading() -> None:
    """Wait for as long as `check_debt` would refuse now."""
    caller = _calling.get()
    if caller is not None:
        await asyncio.sleep(caller.reading_wait_s())


def received(size_bytes: int, message_count: int) -> None:
    """Count messages that the running call hands to its user."""
    caller = _calling.get()
    if caller is not None:
        caller.received(size_bytes, message_count)


def may(action: Action, kind: ResourceKind, name: str) -> bool:
    """Whether the running call may do something."""
    caller = _calling.get()
    return caller is None or caller.may(Need(action, kind, name))


def require_known(action: Action, kind: ResourceKind, name: str, unknown: NodeError) -> None:
    """Raise `unknown`, the answer for an id that nothing has, unless the running call may do
    something to what has the id. Its cause is the refusal, which the guard notes."""
    caller = _calling.get()
    if caller is not None and not caller.may(need := Need(action, kind, name)):
        raise unknown from ForbiddenError(caller.name, str(need), str(action), str(need.resource))


def require(action: Action, kind: ResourceKind, name: str, *, is_found: bool = False) -> None:
    """Raise ForbiddenError or UnauthenticatedError unless the running call may do something.

    `is_found`: the name comes from what the call found by an id, so the error does not have it."""
    caller = _calling.get() or _watched.get()
    if caller is None:
        return
    if is_found and not caller.may(Need(action, kind, name)):
        raise ForbiddenError(
            caller.name, f"{action} on the {kind.lower()} of that id", str(action), f"{kind}:NAME"
        )
    caller.require(Need(action, kind, name))
