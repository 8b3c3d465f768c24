"""One replica of a master-slave group, as the parts of its driver see it.

Owns the facts about the replica, the order in which its machine takes inputs, their wait for room
on the disk, and the schedule of turns. Must not know how effects are carried out or what a turn
does: the driver fills both in. Must not know connections or frames.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

import structlog

from node.errors.common import ShuttingDownError
from node.replication.ha.applied import AppliedState
from node.replication.ha.core.effects import HaEffects
from node.replication.ha.core.machine import HaMachine
from node.replication.ha.core.state import HaState
from node.replication.ha.core.types import AckMode, HaRole, HaSettings
from node.replication.ha.storage.log import HaLog
from node.replication.pending_calls import PendingAppend
from raft.messages import NO_NODE, NodeId, Term
from raft.transitions import Role
from store.errors import FileSystemError, StoreFullError

_log: Final = structlog.get_logger(component="ha")
_ROLES: Final = {
    HaRole.MASTER: Role.LEADER,
    HaRole.CANDIDATE: Role.CANDIDATE,
    HaRole.SLAVE: Role.FOLLOWER,
}


class HaReplica(ABC):
    """A replica that takes inputs in order. Runs on the loop's thread."""

    def __init__(
        self,
        group: HaSettings,
        node_id: NodeId,
        log: HaLog,
        applied: AppliedState,
        *,
        mode: AckMode | None,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.group: Final = group
        self.node_id: Final = node_id
        self.log: Final = log
        self.applied: Final = applied
        facts = log, log.replica, log.epochs, log.end
        self.machine: Final = HaMachine(
            HaState(group, node_id, *facts, mode=mode, confirm=applied.applied)
        )
        self.on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._appends: list[tuple[int, PendingAppend]] = []
        """Appends written in this turn, which the machine does not know yet."""
        self._later: list[Callable[[HaMachine], HaEffects]] = []
        """Inputs that arrived during the work on effects, or while that had to wait."""
        self._unsaved: HaEffects | None = None
        """Effects of which a part must be durable first, while the disk has no room for it."""
        self.save_error: StoreFullError | FileSystemError | None = None
        """Error behind `_unsaved`; no other work happens here until it is gone."""
        self._is_busy = False
        self._is_turn_scheduled = False
        self.is_stopped = self.is_draining = False
        self.is_ready = False
        """Whether this is a serving master that has applied everything of the epochs before."""

    # --- Facts ---

    @property
    def role(self) -> Role:
        """The current role in the broker's words: the master is the leader."""
        return _ROLES[self.machine.role]

    @property
    def term(self) -> Term:
        """The number of the epoch that this node takes part in."""
        return self.machine.state.bound.number

    @property
    def leader_id(self) -> NodeId:
        """The serving master, as far as this node knows; NO_NODE if it knows none."""
        state = self.machine.state
        if state.role is HaRole.MASTER:
            return self.node_id
        master = state.bound.master_id
        link = state.up(master) if state.role is HaRole.SLAVE else None
        return master if link is not None and link.is_master else NO_NODE

    def check_running(self) -> None:
        """Raise ShuttingDownError after the stop."""
        if self.is_stopped:
            raise ShuttingDownError

    # --- Inputs ---

    def input(self, call: Callable[[HaMachine], HaEffects]) -> None:
        """Give the machine an input and carry out its effects; inputs caused by them come after.

        While the disk has no room for effects that must be durable first, inputs wait. They are few
        then: no frame is taken from links, no append is accepted, and time stands still.
        """
        self._later.append(call)
        if not self._is_busy and self._unsaved is None:
            self._go_on()

    def _go_on(self) -> None:
        self._is_busy = True
        try:
            if self._unsaved is not None:
                self._finish(self._unsaved)
            while self._unsaved is None and (self._later or self._appends):
                self._tell_appends()
                if self._later:
                    self._finish(self._later.pop(0)(self.machine))
        except BaseException as error:
            self.on_fatal(error)
            raise
        finally:
            self._is_busy = False
        self.touch()

    def _tell_appends(self) -> None:
        """Give new appends to the machine, before any other change of the machine or the log."""
        if self._appends:
            appends, self._appends = self._appends, []
            self._finish(self.machine.appended_all(appends))

    def _finish(self, fx: HaEffects) -> None:
        """Save what must be durable first, then carry out the rest; without room, all of it
        waits."""
        try:
            self._save(fx)
        except (StoreFullError, FileSystemError) as error:
            if self._unsaved is None:
                _log.warning("waits until it can write what it must not forget", error=str(error))
            self._unsaved, self.save_error = fx, error
            return
        self._unsaved = self.save_error = None
        self._carry_out(fx)

    @abstractmethod
    def _save(self, fx: HaEffects) -> None:
        """Make durable what comes first. Each step happens once, however often it is repeated.

        Raises StoreFullError or FileSystemError: repeat it before any other work here.
        """

    @abstractmethod
    def _carry_out(self, fx: HaEffects) -> None:
        """Carry out the other effects, in the order of the fields."""

    # --- The turn ---

    def touch(self) -> None:
        """Schedule a turn."""
        if not self._is_turn_scheduled:
            self._is_turn_scheduled = True
            self._loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_turn_scheduled = False
        if not self.is_stopped:
            self._turn()

    @abstractmethod
    def _turn(self) -> None:
        """Do the work that one turn of the loop shares."""
