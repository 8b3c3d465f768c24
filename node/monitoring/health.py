"""Whether a node lives, and whether it is ready for clients: the rule, and its listeners.

Owns the phases of a node's life and the meaning of ready. Must not know HTTP or gRPC: they ask, or
they listen for changes of the answer.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from node.contract import Driver
from raft.messages import NO_NODE
from raft.transitions import Role


class Phase(Enum):
    """The phases of a node's life."""

    STARTING = "starting"
    """The node opens its store."""
    REPAIRING = "repairing"
    """The node fetches damaged entries from its peers."""
    WAITING = "waiting"
    """The disk is empty, and the node has not met all voters of the new cluster yet."""
    SERVING = "serving"
    DRAINING = "draining"
    """The node was told to stop, or not to lead any more: it takes no new appends."""
    STOPPING = "stopping"


class HealthVerdict(NamedTuple):
    """An answer, and the reason as text for an operator."""

    is_good: bool
    reason: str


_LEADS: Final = HealthVerdict(True, "this node leads")  # Given in each turn of a leader.


class Health:
    """The state behind liveness and readiness."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.detail = "opening the store"
        self._driver: Driver | None = None
        self._problems: list[Callable[[], str]] = []
        self._refusal: Callable[[], Exception | None] = lambda: None
        self._listeners: list[Callable[[bool], None]] = []
        self._was_ready = False

    def add_listener(self, listener: Callable[[bool], None]) -> None:
        """Call a listener with the new answer each time readiness changes."""
        self._listeners.append(listener)

    def enter(self, phase: Phase, detail: str = "") -> None:
        """Set the phase of the node; `detail` describes its work in it."""
        self.phase, self.detail = phase, detail
        self.refresh()

    def progress(self, what: str, done: int, total: int) -> None:
        """Put the progress of a long step of the opening into the detail."""
        self.detail = f"{what}: {done} of {total}"

    def watch(
        self,
        driver: Driver,
        problem: Callable[[], str] = lambda: "",
        refusal: Callable[[], Exception | None] = lambda: None,
    ) -> None:
        """Take the leader from `driver` from now on.

        `problem` returns a reason to avoid this node, even with a ready driver; empty: none.
        `refusal` returns why the disk takes no appends: a leader says so, and still serves reads.
        """
        self._driver, self._refusal = driver, refusal
        self._problems.append(problem)

    def add_problem(self, problem: Callable[[], str]) -> None:
        """Ask for one more reason to avoid this node; empty: there is none."""
        self._problems.append(problem)

    @property
    def problem(self) -> str:
        """The first reason to avoid this node; empty: there is none."""
        return next(filter(None, (ask() for ask in self._problems)), "")

    def refresh(self) -> None:
        """Compute readiness again; call the listeners if it has changed."""
        is_ready = self.ready().is_good
        if is_ready != self._was_ready:
            self._was_ready = is_ready
            for listener in self._listeners:
                listener(is_ready)

    def live(self) -> HealthVerdict:
        """Whether the process lives: always good, since a stuck process does not answer at all."""
        return HealthVerdict(True, self.phase.value)

    def ready(self) -> HealthVerdict:
        """Whether clients should use this node: it serves, and leads or knows the leader."""
        if self.phase is not Phase.SERVING:
            return HealthVerdict(False, f"{self.phase.value}: {self.detail}".removesuffix(": "))
        problem = self.problem
        if problem:
            return HealthVerdict(False, problem)
        driver = self._driver
        if driver is None or driver.leader_id == NO_NODE:
            return HealthVerdict(False, "no leader is known")
        if driver.role is not Role.LEADER:
            return HealthVerdict(True, f"node {driver.leader_id} leads")
        if not driver.is_ready:
            text = "this node leads, and serves once it has applied all entries committed before"
            return HealthVerdict(False, text)
        if (error := self._refusal()) is not None:
            return HealthVerdict(True, f"this node leads, and refuses appends: {error}")
        return _LEADS
