"""One call to a group: to its leader, to one node or to any, tried again under one deadline.

Owns which failures are tried again and where; must not know what the calls mean. A call that hangs
because its node was paused or cut off is noticed: after a second without an answer all nodes are
asked for the leader, and if that has changed the call is made again there.
"""

import asyncio
import copy
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

from quorumlog.cluster.channels import NodeChannel, answer_of
from quorumlog.cluster.forks import forks
from quorumlog.cluster.framed.frames import FRAMED_METHODS
from quorumlog.cluster.retry import Backoff, Deadline
from quorumlog.cluster.routes import Router
from quorumlog.errors import (
    ClosedError,
    DeadlineError,
    NotLeaderError,
    Outcome,
    QuorumlogError,
    UnavailableError,
)

SUSPECT_AFTER_MS: Final = 1_000
REDIRECTS_AT_ONCE: Final = 2  # Hints that are followed without a pause in between.

_Answer = TypeVar("_Answer")


class Calls:
    """Makes unary calls. `is_repeatable` calls do no harm when they are applied twice."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self._any_at = random.randrange(1 << 16)  # Clients spread over the replicas.
        self.attempts = 0
        self.retries = 0
        self.is_closed = False

    async def leader(
        self,
        request: Any,
        deadline: Deadline,
        *,
        is_repeatable: bool = True,
        is_read: bool = False,
        wait_ms: int = 0,
    ) -> Any:
        """Call the leader; the class of the request names the call. `wait_ms` is how long the
        leader may wait on purpose before it answers.

        Raises the node's error if another attempt does not help, DeadlineError when time ran out,
        OutcomeUnknownError when a call that must not be repeated may have had an effect. For a call
        that may be repeated, `outcome` of the DeadlineError says whether it may have had an effect.
        """
        what = f"{method_of(request)} at the leader{self.router.where}"
        attempt = _Attempts(self, what, deadline, is_repeatable, is_read)
        while True:
            node = await attempt.within(self.router.leader)
            try:
                return await self._watched(node, request, deadline, wait_ms)
            except QuorumlogError as error:
                if isinstance(error, NotLeaderError):
                    self.router.on_hint(error.leader_id, error.leader_address, node.address)
                elif isinstance(error, UnavailableError):
                    self.router.leader_failed(node.address)
                await attempt.failed(error)

    async def node(
        self,
        node: NodeChannel,
        request: Any,
        deadline: Deadline,
        *,
        is_read: bool = True,
        answer_ms: int = 0,
    ) -> Any:
        """Call one node, of any role; the call must be repeatable. No attempt begins after the
        deadline; one that has begun may take `answer_ms` more."""
        what = f"{method_of(request)} at {node.address}"
        attempt = _Attempts(self, what, deadline, True, is_read=is_read)
        while True:
            try:
                timeout_s = deadline.remaining_s + answer_ms / 1000
                return await self.once(node, request, timeout_s)
            except QuorumlogError as error:
                await attempt.failed(error)

    async def any(self, request: Any, deadline: Deadline) -> Any:
        """Call the same node as last time, or the next one if that fails; a repeatable call."""
        what = f"{method_of(request)} at any node{self.router.where}"
        attempt = _Attempts(self, what, deadline, True, is_read=True)
        while True:
            addresses = self.router.addresses()
            node = self.router.channels.get(addresses[self._any_at % len(addresses)])
            timeout_s = min(deadline.remaining_s, max(deadline.timeout_ms / 4000, 1.0))
            try:
                return await self.once(node, request, timeout_s)
            except QuorumlogError as error:
                self._any_at += 1
                await attempt.failed(error)

    async def once(self, node: NodeChannel, request: Any, timeout_s: float) -> Any:
        forks.check()
        if self.is_closed:
            raise ClosedError("the client is closed; connect again")
        self.attempts += 1
        method = method_of(request)
        framed = FRAMED_METHODS.get(method)
        if framed is not None and node.framed is not None:
            end_s = time.monotonic() + timeout_s
            answer = await node.framed.call(framed, request, timeout_s)
            if answer is not None:
                return answer
            timeout_s = end_s - time.monotonic()
        return await answer_of(node.address, getattr(node.rpc, method), request, timeout_s)

    async def _watched(
        self,
        node: NodeChannel,
        request: Any,
        deadline: Deadline,
        wait_ms: int,
    ) -> Any:
        call = asyncio.ensure_future(self.once(node, request, deadline.remaining_s))
        try:
            patience_s = (wait_ms + SUSPECT_AFTER_MS) / 1000
            while not (await asyncio.wait({call}, timeout=patience_s))[0]:
                patience_s = SUSPECT_AFTER_MS / 1000
                # An answer that came during the question is worth more than a new leader.
                if await has_moved(self.router, node.address) and not call.done():
                    raise UnavailableError(
                        f"{node.address} does not answer, and another node leads; ask that one",
                        outcome=Outcome.UNKNOWN,
                    )
            return call.result()
        finally:
            if not call.done():
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
            elif not call.cancelled():
                call.exception()  # A cancelled waiter never takes the exception; mark it retrieved.


def method_of(request: Any) -> str:
    """Return the name of the call that a request is of."""
    return type(request).__name__.removesuffix("Request")


async def has_moved(router: Router, address: str) -> bool:
    """Ask all nodes for the leader; return whether it is now another one than at `address`."""
    try:
        await router.refresh(Deadline(SUSPECT_AFTER_MS))
    except QuorumlogError:
        return False  # No news: the call keeps waiting, under its deadline.
    return router.leader_address not in ("", address)


def in_doubt(error: QuorumlogError) -> QuorumlogError:
    """Return the same error with an unknown outcome, unless it already admits an effect."""
    if error.outcome is not Outcome.NOT_APPLIED:
        return error
    doubtful = copy.copy(error)  # Other calls may hold the same error, without doubt.
    doubtful.outcome = Outcome.UNKNOWN
    return doubtful


def beside(error: BaseException, results: Iterable[object]) -> BaseException:
    """Return the error of one of several calls, in doubt if another one had or may have an effect.

    `results` are those of all of the calls, answers and errors.
    """
    others = (result for result in results if result is not error)
    is_single = all(
        isinstance(other, QuorumlogError) and other.outcome is Outcome.NOT_APPLIED
        for other in others
    )
    return error if is_single or not isinstance(error, QuorumlogError) else in_doubt(error)


class Steps:
    """A change in several calls: once one of them is done, no failure is without effect."""

    def __init__(self) -> None:
        self._is_begun = False

    async def take(self, step: Awaitable[_Answer]) -> _Answer:
        """Await the next call. Raises its error, in doubt if calls before it had an effect."""
        try:
            answer = await step
        except QuorumlogError as error:
            if not self._is_begun:
                raise
            raise in_doubt(error) from error
        self._is_begun = True
        return answer


class _Attempts:
    """The attempts of one call: whether there is another one, and the final error if not."""

    def __init__(
        self, calls: Calls, what: str, deadline: Deadline, is_repeatable: bool, is_read: bool
    ) -> None:
        self._calls = calls
        self._what = what
        self._deadline = deadline
        self._backoff = Backoff(deadline)
        self._is_repeatable = is_repeatable
        self._is_read = is_read
        self._redirects = 0
        self._count = 0
        self._may_be_applied = False
        self._last: QuorumlogError | None = None

    async def within(self, find: Callable[[Deadline], Awaitable[NodeChannel]]) -> NodeChannel:
        """Find a node under the deadline of the call; a failure counts as one of the call."""
        try:
            return await find(self._deadline)
        except QuorumlogError as error:
            if self._may_be_applied and error.retryable:
                raise self._late(error) from error
            if self._last is not None and isinstance(error, DeadlineError) and not error.cause:
                raise self._late(self._last) from error  # It says more than the last search.
            raise self._final(error) from None

    async def failed(self, error: QuorumlogError) -> None:
        """Record a failed attempt. Return, after a pause, if there is another one; else raise."""
        self._count += 1
        self._last = error
        if error.outcome is Outcome.UNKNOWN:
            self._may_be_applied = True
            if not self._is_repeatable:
                raise self._unknown(error) from error
        if self._deadline.has_passed:
            raise self._late(error) from error
        if not error.retryable:
            raise self._final(error)
        self._calls.router.full_disks.note(error)
        self._calls.retries += 1
        if isinstance(error, NotLeaderError | UnavailableError):
            self._redirects += 1
            if self._redirects <= REDIRECTS_AT_ONCE:
                return
        await self._backoff.pause(error.retry_after_ms)

    def _final(self, error: QuorumlogError) -> QuorumlogError:
        """Return the final error, in doubt if an attempt before it may have had an effect."""
        if self._may_be_applied and not self._is_read:
            error = in_doubt(error)
        error.attempts = self._count
        return error

    def _late(self, error: QuorumlogError) -> QuorumlogError:
        if not self._may_be_applied or self._is_read:
            return self._deadline.error(self._what, error, attempts=self._count)
        if not self._is_repeatable:
            return self._unknown(error)
        # The call may be repeated, and may still have had its effect.
        late = self._deadline.error(self._what, error, attempts=self._count)
        late.outcome = Outcome.UNKNOWN
        return late

    def _unknown(self, error: QuorumlogError) -> QuorumlogError:
        return self._deadline.error_unknown(self._what, error, attempts=self._count)
