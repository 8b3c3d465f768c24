"""The controller's task: the leading replica of the name server sends the commands that are due.

Owns when decisions are made: only by a leader, and only after it has led for so long that each live
broker had the time to send a heartbeat. Must not know the decisions (`controller`).
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from itertools import count
from typing import Final

from node.errors.common import NodeError
from node.nameserver.directory.controller import FailoverWatch
from node.nameserver.directory.directory import Command, Directory
from node.nameserver.directory.reports import Binding
from node.nameserver.local_broker import LocalBroker
from node.nameserver.registration import DirectoryAccess
from node.runtime.clock import unix_ms

LOOK_PERIOD_MS: Final = 250
SETTLE_MS: Final = 1_500
"""Time that a new leader waits for heartbeats, which all brokers send when the leader changes. Its
predecessor may have died with an HA master; then the other brokers seemed silent only because there
was no leader."""
ADVICE_PERIOD_MS: Final = 100
"""Interval at which a broker looks whether it was chosen."""
IN_SYNC_PERIOD_MS: Final = 1_000
_TIMEOUT_MS: Final = 2_000
_NONCE_SIZE_BITS: Final = 62
_log: Final = logging.getLogger(__name__)


class Controller:
    """Makes decisions while its replica leads."""

    def __init__(
        self,
        access: DirectoryAccess,
        is_leader: Callable[[], bool],
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access, self._is_leader, self._monotonic_s = access, is_leader, monotonic_s
        self._watch = FailoverWatch()
        self._leads_since_s: float | None = None
        self._looked_s = 0.0

    async def run(self) -> None:
        """Look at intervals until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_PERIOD_MS / 1000)

    async def look(self) -> None:
        """Send the commands that are due."""
        for command in self._due():
            try:
                result = await self._access.change(command, timeout_ms=_TIMEOUT_MS)
            except NodeError as error:
                _log.info("the controller's %s was not confirmed: %s", command["op"], error)
                return
            if not result.is_accepted:
                # Another command came first; the next look sees its effect.
                _log.info("the controller's %s was refused: %s", command["op"], result.detail)
                return
            _log.warning("the controller decided: %s", _described(command))

    def _due(self) -> list[Command]:
        now_s, before_s = self._monotonic_s(), self._looked_s
        self._looked_s = now_s
        if not self._is_leader():
            self._leads_since_s = None
            return []
        if self._leads_since_s is None or now_s - before_s > SETTLE_MS / 1000:
            # A new leader, or a process that did not run for a while and missed heartbeats.
            self._leads_since_s, self._watch = now_s, FailoverWatch()
        if now_s - self._leads_since_s < SETTLE_MS / 1000:
            return []
        nonce = str(1 + secrets.randbits(_NONCE_SIZE_BITS))
        return self._access.look(
            lambda directory: self._watch.commands(directory, unix_ms(), nonce)
        )


class Adviser:
    """Passes the controller's decisions about its HA group to the broker in this process, and keeps
    the in-sync set of the group while that broker is the master."""

    def __init__(self, access: DirectoryAccess, broker: LocalBroker) -> None:
        self._access, self._broker = access, broker
        self._advised_number = 0
        """The highest epoch that was passed to the broker."""

    async def run(self) -> None:
        """Advise at intervals until cancelled."""
        for turn in count(1):
            self.advise()
            if turn * ADVICE_PERIOD_MS % IN_SYNC_PERIOD_MS == 0:
                await self.keep_in_sync()
            await asyncio.sleep(ADVICE_PERIOD_MS / 1000)

    def advise(self) -> None:
        """Pass on, once, an epoch that was given out and that no master serves yet."""
        newest = self._access.look(self._newest)
        if newest is not None and newest[0] > self._advised_number:
            self._advised_number = newest[0]
            self._broker.advise(*newest)

    async def keep_in_sync(self) -> None:
        """Request another in-sync set if this broker is the master and the set is not right."""
        command = self._access.look(self._in_sync_change)
        if command is None or not self._access.leader:
            return
        try:
            await self._access.change(command, timeout_ms=_TIMEOUT_MS)
        except NodeError as error:
            _log.info("the in-sync set was not changed: %s", error)

    def _in_sync_change(self, directory: Directory) -> Command | None:
        group = directory.groups.get(self._broker.group)
        return None if group is None else self._broker.in_sync_change(group)

    def _newest(self, directory: Directory) -> tuple[int, Binding] | None:
        group = directory.groups.get(self._broker.group)
        binding = group.epochs.get(group.epoch_highest) if group and group.is_unserved else None
        return (group.epoch_highest, binding) if group and binding else None


def _described(command: Command) -> str:
    if command["op"] == "elect":
        group, number = command["group"], command["number"]
        return f"broker {command['master_id']} of {group} gets epoch {number}"
    if command["op"] == "forget_group":
        return (
            f"broker group {command['group']} is forgotten and learned again: none of its brokers "
            f"is near epoch {command['expected_epoch']}"
        )
    return str(command["op"])
