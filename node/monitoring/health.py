"""Whether a node lives, and whether it is ready for clients: the rule, and who is told.

Owns the phases of a node's life and what ready means. Must not know HTTP or gRPC: they ask, or they
are called when the answer changes.
"""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from raft.messages import NO_NODE, NodeId
from raft.transitions import Role


class Phase(Enum):
    """Where a node is in its life."""

    STARTING = "starting"
    """Opening its store."""
    REPAIRING = "repairing"
    """Fetching damaged entries from its peers."""
    WAITING = "waiting"
    """Its disk is empty, and not all voters of the new cluster were heard of yet."""
    SERVING = "serving"
    DRAINING = "draining"
    """Told to stop, or by an operator to lead no more: takes no new appends."""
    STOPPING = "stopping"


class Replicated(Protocol):
    """What is asked of the driver."""

    @property
    def role(self) -> Role: ...
    @property
    def leader_id(self) -> NodeId: ...
    @property
    def is_ready(self) -> bool: ...


class Verdict(NamedTuple):
    """An answer, and the reason for a person."""

    is_good: bool
    reason: str


class Health:
    """The state behind liveness and readiness."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.detail = "opening the store"
        self.problem: Callable[[], str] = lambda: ""
        """Why clients should not come here, whatever the driver says; empty if they should."""
        self._driver: Replicated | None = None
        self._listeners: list[Callable[[bool], None]] = []
        self._was_ready = False

    def enter(self, phase: Phase, detail: str = "") -> None:
        """The node has come to a phase; `detail` says what it is busy with."""
        self.phase, self.detail = phase, detail
        self.refresh()

    def watch(self, driver: Replicated) -> None:
        """From now on the driver says whether there is a leader."""
        self._driver = driver

    def add_listener(self, listener: Callable[[bool], None]) -> None:
        """Have `listener` called with the new answer each time readiness changes."""
        self._listeners.append(listener)

    def refresh(self) -> None:
        """Something changed: tell the listeners if readiness did."""
        is_ready = self.ready().is_good
        if is_ready != self._was_ready:
            self._was_ready = is_ready
            for listener in self._listeners:
                listener(is_ready)

    def live(self) -> Verdict:
        """Whether the process is of any use. One that is stuck does not answer at all."""
        return Verdict(True, self.phase.value)

    def ready(self) -> Verdict:
        """Whether clients should come here: it serves, and it leads or knows who does."""
        if self.phase is not Phase.SERVING:
            return Verdict(False, f"{self.phase.value}: {self.detail}".removesuffix(": "))
        problem = self.problem()
        if problem:
            return Verdict(False, problem)
        driver = self._driver
        if driver is None or driver.leader_id == NO_NODE:
            return Verdict(False, "no leader is known")
        if driver.role is Role.LEADER and not driver.is_ready:
            return Verdict(False, "leads, and applies what was committed before")
        leads = "leads" if driver.role is Role.LEADER else f"node {driver.leader_id} leads"
        return Verdict(True, leads)
