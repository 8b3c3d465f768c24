"""How a broker registers: at once, again when something changed, and in between by heartbeats.

Owns the times of registrations and heartbeats, and the reaction to their answers. Must not know
whether the directory is in this process or in another (`DirectoryAccess`), or the content of a
report (`brokers`). Failures are ordinary here: the next attempt is soon, and the data path never
waits for registration.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, TypeVar

from node.errors.common import NodeError
from node.errors.nameserver import NoQuorumError
from node.nameserver.directory.directory import Command, Directory, unregister_command
from node.nameserver.directory.fields import Result
from node.nameserver.directory.limits import REGISTER_PERIOD_MS
from node.nameserver.directory.reports import BrokerReport
from node.nameserver.local_broker import LocalBroker
from node.runtime.clock import unix_ms
from node.runtime.logs.rate_limited_log import RateLimitedLog
from store.errors import StoreError

LOOK_PERIOD_MS: Final = 1_000
"""Interval of the checks for changes; heartbeats may be due less often."""
REFUSED_PAUSE_MS: Final = 5_000
"""Pause before a refused registration is sent again unchanged."""
TIMEOUT_MS: Final = 2_000
LEAVE_TIMEOUT_MS: Final = 500
_PATIENCE_MS: Final = 10_000
_LOG_INTERVAL_MS: Final = 60_000
_T = TypeVar("_T")
_log: Final = logging.getLogger(__name__)


class DirectoryAccess(Protocol):
    """A way to the directory."""

    @property
    def leader(self) -> str:
        """The replica that can commit now; empty: none."""
        ...

    async def change(self, command: Command, *, timeout_ms: int = ...) -> Result:
        """Carry out a command and return its confirmed result."""
        ...

    async def report(self, command: Command, *, timeout_ms: int = ...) -> Result:
        """Carry out a heartbeat, once."""
        ...

    def look(self, reader: Callable[[Directory], _T]) -> _T:
        """Call a reader with the directory as it is known here; return its result."""
        ...


class _Told(NamedTuple):
    """The facts that a registration reports and heartbeats do not."""

    role: str
    epoch: int
    topics_version: tuple[int, int]

    @classmethod
    def of(cls, report: BrokerReport) -> "_Told":
        # The term of a Raft follower is not used, nor are the topics of a broker that is no master.
        is_master = report.role == "master"
        epoch = report.epoch if is_master or report.kind == "ha" else 0
        return cls(report.role, epoch, report.topics_version if is_master else (0, 0))


class Registration:
    """Keeps one broker registered. All on the event loop's thread."""

    def __init__(
        self,
        access: DirectoryAccess,
        broker: LocalBroker,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access, self._broker, self._monotonic_s = access, broker, monotonic_s
        self._changed = asyncio.Event()
        self._rate_limited = RateLimitedLog(
            _log, interval_ms=_LOG_INTERVAL_MS, monotonic_s=monotonic_s
        )
        self._last_report: _Told | None = None
        self._topics_told: tuple[int, int] | None = None
        """The version of this broker's topics that the directory has; None: send them."""
        self._next_register_s = self._next_beat_s = 0.0
        self._refused: _Told | None = None
        self._refused_until_s = 0.0
        self._refusal = ""
        """Why the directory refused the last registration; empty: it did not."""
        self.leader = ""
        """The replica that could commit at the last look; empty: none."""
        self._well_s = monotonic_s()
        """Time of the last successful look, or of the start."""
        self.problem = "not registered yet"
        """Why the directory does not know this broker as it is; empty: the directory does."""

    async def run(self) -> None:
        """Look at intervals, and at once after `changed`, until cancelled."""
        period_s = min(LOOK_PERIOD_MS, self._broker.heartbeat_period_ms // 4) / 1000
        while True:
            try:
                await self.look()
                self._note(self._refusal)
            except (NodeError, StoreError, RegistrationRefusedError) as error:
                self._note(str(error))
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(period_s):
                    await self._changed.wait()

    def changed(self) -> None:
        """Look at once, because something that the directory should know may have changed."""
        self._changed.set()

    def _note(self, problem: str) -> None:
        """Set `problem`; log it only if it lasts for _PATIENCE_MS, since elections are ordinary."""
        now_s = self._monotonic_s()
        if not problem:
            self._well_s = now_s
        elif now_s - self._well_s >= _PATIENCE_MS / 1000:
            self._rate_limited.warn("the name server does not know this broker", problem)
        self.problem = problem

    async def look(self) -> None:
        """Send the registration or heartbeat that is due. Raises RegistrationRefusedError, and the
        errors of `DirectoryAccess`."""
        now_s = self._monotonic_s()
        leader, before = self._access.leader, self.leader
        self.leader = leader
        if leader and leader != before:
            # A leader that is new, or follows a time without one, must learn soon which brokers
            # live.
            self._next_beat_s = now_s
        if not leader:
            raise NoQuorumError(LOOK_PERIOD_MS)
        report = self._broker.report(unix_ms(), with_topics=False)
        statement = _Told.of(report)
        may_register = statement != self._refused or now_s >= self._refused_until_s
        if may_register and (statement != self._last_report or now_s >= self._next_register_s):
            await self._register(report)
        elif now_s >= self._next_beat_s:
            await self._beat(report)

    async def leave(self) -> None:
        """Report that this broker stops; if the report is lost, the broker only expires later."""
        broker = self._broker
        command = unregister_command(broker.group, broker.broker_id, broker.start_ms)
        try:
            await self._access.report(command, timeout_ms=LEAVE_TIMEOUT_MS)
        except NodeError as error:
            _log.info("did not unregister: %s", error)

    async def _register(self, report: BrokerReport) -> None:
        is_master = report.role == "master"
        with_topics = is_master and report.topics_version != self._topics_told
        if with_topics:
            report = self._broker.report(unix_ms(), with_topics=True)
        result = await self._access.change(report.command(), timeout_ms=TIMEOUT_MS)
        if result.reason == "state_full" and with_topics:
            # A broker that is known without its topics is better than an unknown one.
            bare = self._broker.report(unix_ms(), with_topics=False)
            await self._access.change(bare.command(), timeout_ms=TIMEOUT_MS)
        if not result.is_accepted:
            self._refused = _Told.of(report)
            self._refused_until_s = self._monotonic_s() + REFUSED_PAUSE_MS / 1000
            what = "registration"
            if result.reason == "state_full":
                what = (
                    "newest topics left out, which have no route at the name server: registration"
                )
            error = RegistrationRefusedError(what, result)
            self._refusal = str(error)  # Heartbeats are accepted meanwhile.
            raise error
        if with_topics:
            self._topics_told = report.topics_version
        self._last_report, self._refused, self._refusal = _Told.of(report), None, ""
        now_s = self._monotonic_s()
        self._next_register_s = now_s + REGISTER_PERIOD_MS / 1000
        self._next_beat_s = now_s + self._broker.heartbeat_period_ms / 1000
        if result.values.get("needs_topics") is True:
            self._topics_told = self._last_report = None
            self._changed.set()

    async def _beat(self, report: BrokerReport) -> None:
        # Counted from the sending and not from the answer, lest slow answers stretch the period.
        self._next_beat_s = self._monotonic_s() + self._broker.heartbeat_period_ms / 1000
        result = await self._access.report(report.heartbeat(), timeout_ms=TIMEOUT_MS)
        if result.is_accepted:
            return
        self._last_report = self._topics_told = None
        if result.reason != "unknown_broker":
            raise RegistrationRefusedError("heartbeat", result)
        # The broker expired while no replica could commit, or the directory lost all its content.
        await self._register(report)


class RegistrationRefusedError(Exception):
    """The directory refused a broker's report about itself."""

    def __init__(self, what: str, result: Result) -> None:
        super().__init__(what, result)
        self.what, self.result = what, result

    def __str__(self) -> str:
        return f"{self.what} refused ({self.result.reason}): {self.result.detail}"
