"""One world: a heap of events, replicas, a network, faults and a hostile controller.

Owns the order of everything; must not judge. Two phases: faults until the horizon, then rest, in
which the group has to serve again with one log everywhere.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from node.replication.ha.core.machine import HaMachine
from node.replication.ha.core.types import AckMode, HaRole, HaSettings, HaStanding, PromotionError
from simulation.ha.network import HaNetwork
from simulation.ha.options import CALM_MS, HORIZON_MS, HaSimulatorOptions, draw
from simulation.ha.referee import HaReferee, ViolationError
from simulation.ha.replica import SimulatedReplica

_FAULT_ROUND_MS = 100
_REST_ROUND_MS = 500
_ROUNDS_PER_PROMOTION = 8
_APPEND_PAUSES_MS = (1, 3, 10, 40, 200)
"""Bursts and pauses: records in flight meet each fault, and most events are not appends."""


class SimulationReport(NamedTuple):
    """The result of a seed."""

    seed: int
    code: str
    """Empty if every check passed."""
    detail: str
    events: int
    acked: int
    promotions: int
    cuts: int
    lost: int
    digest: int


class HaWorld:
    """One simulated group; see the module."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.options: HaSimulatorOptions = draw(seed)
        self.random = Random(seed ^ 0x5EED)
        self.now = 0
        self.is_calm = False
        self.events = 0
        self.digest = 0
        self.mode = self.options.mode
        self._trace = trace
        self._heap: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._pushed = 0
        self._record = 0
        self._incarnation = 1000
        self._rest_rounds = 0
        self._is_done = False
        self.settings = HaSettings(
            "sim",
            tuple(range(self.options.replica_count)),
            self.options.copies,
            self.options.window_size_bytes,
            self.options.transfer_size_bytes,
            heartbeat_ms=300,
            silence_ms=1500,
        )
        self.network = HaNetwork(self)
        self.referee = HaReferee(self)
        self.replicas = [SimulatedReplica(self, number) for number in self.settings.replica_ids]

    def push(self, at: int, action: Callable[..., None], *arguments: object) -> None:
        """Schedule an action."""
        self._pushed += 1
        heapq.heappush(self._heap, (at, self._pushed, action, arguments))

    def trace(self, line: str) -> None:
        """Note an event; the digest of all events makes two runs comparable."""
        self.digest = zlib.crc32(f"{self.now} {line}".encode(), self.digest)
        if self._trace is not None:
            self._trace(f"{self.now:6} {line}")

    def run(self) -> SimulationReport:
        """Run to the end or to the first violation."""
        code = detail = ""
        try:
            for replica in self.replicas:
                replica.start()
            self.push(0, self._faults)
            self.push(0, self._client)
            self.push(HORIZON_MS, self._rest)
            while not self._is_done:
                self.now, _, action, arguments = heapq.heappop(self._heap)
                self.events += 1
                action(*arguments)
        except ViolationError as error:
            code, detail = error.code, error.detail
        except AssertionError as error:
            code, detail = "assert", str(error) or "an assertion without text"
        except Exception as error:  # noqa: BLE001  # A crash of the machine is a finding.
            code, detail = "crash", f"{type(error).__name__}: {error}"
        self.trace(f"end {code} {detail} {self.events} {self.referee.acked}")
        referee = self.referee
        return SimulationReport(
            self.seed,
            code,
            detail,
            self.events,
            referee.acked,
            referee.promotions,
            referee.cut_count,
            len(referee.lost),
            self.digest,
        )

    def restart(self, replica_id: int) -> None:
        """Start a process that is down."""
        if not self.replicas[replica_id].is_up:
            self.trace(f"{replica_id} starts")
            self.replicas[replica_id].start()

    # Events from outside.

    def _client(self) -> None:
        self.push(self.now + self.random.choice(_APPEND_PAUSES_MS), self._client)
        if self.is_calm and self._rest_rounds > _ROUNDS_PER_PROMOTION:
            return  # Rest needs the end of all appends.
        for replica in self.replicas:
            if replica.is_up and replica.machine.role is HaRole.MASTER:
                self._record += 1
                replica.append(self._record)

    def _faults(self) -> None:
        if self.is_calm:
            return
        self.push(self.now + _FAULT_ROUND_MS, self._faults)
        random, options = self.random, self.options
        one = random.choice(self.replicas)
        if random.random() < options.crash:
            self._crash(one)
        if random.random() < options.cut:
            self._cut_links(one)
        if random.random() < options.reset and self.network.wires:
            self.network.shut(random.choice(list(self.network.wires.values())))
        if random.random() < options.second_link and one.is_up:
            self.network.dial(one.id, random.choice([p for p in self.replicas if p is not one]).id)
        if random.random() < options.advice:
            self._advise()
        if options.switches_mode and random.random() < 0.05:
            self.mode = random.choice(list(AckMode))
            for replica in self.replicas:
                if replica.is_up:
                    replica.run(lambda m: m.set_mode(self.mode))

    def _crash(self, replica: SimulatedReplica) -> None:
        self.trace(f"{replica.id} crashes")
        replica.crash()
        joining = sum(r.saved.standing is HaStanding.JOINING for r in self.replicas)
        room = len(self.replicas) - self.settings.fence_count
        is_full = replica.saved.standing is HaStanding.FULL
        if (
            self.options.wipes
            and joining + is_full <= min(room, self.settings.copies - 1)
            and self.random.random() < 0.3
        ):
            self.trace(f"{replica.id} gets a new disk")
            self._incarnation += 1
            replica.wipe(self._incarnation)
        self.push(self.now + self.random.choice([10, 500, 3000]), self.restart, replica.id)

    def _cut_links(self, replica: SimulatedReplica) -> None:
        peers = [p for p in self.replicas if p is not replica and self.random.random() < 0.7]
        both = {(replica.id, p.id) for p in peers} | {(p.id, replica.id) for p in peers}
        one_way = {pair for pair in sorted(both) if self.random.random() < 0.8}
        self.trace(f"cut {sorted(one_way)}")
        self.network.cuts |= one_way
        self.push(self.now + self.random.choice([200, 1000, 4000]), self._heal, one_way)

    def _heal(self, pairs: set[tuple[int, int]]) -> None:
        self.network.cuts -= pairs

    def _advise(self) -> None:
        """Advise any number to any replica, like two controller leaders, or one without memory."""
        random = self.random
        highest = max(r.saved.bound.number for r in self.replicas)
        number = random.choice([highest + 1, highest + 1, highest + 1, highest, 1, highest + 5])
        for one in random.sample(self.replicas, random.choice([1, 1, 2])):
            if one.is_up:
                nonce = random.randrange(1 << 64)
                self.trace(f"{one.id} is advised {number}")
                one.run(partial(HaMachine.advise, number=number, master_id=one.id, nonce=nonce))

    # Rest.

    def _rest(self) -> None:
        if not self.is_calm:
            self.trace("rest")
            self.is_calm = True
            self.network.cuts.clear()
            for replica in self.replicas:
                self.restart(replica.id)
        self._rest_rounds += 1
        self.push(self.now + _REST_ROUND_MS, self._rest)
        masters = [r for r in self.replicas if r.machine.role is HaRole.MASTER]
        reason = f"{len(masters)} masters"
        if len(masters) == 1:
            reason = self.referee.at_rest(self.replicas)
            if not reason and self._rest_rounds > _ROUNDS_PER_PROMOTION + 2:
                self._is_done = True
                return
        # A replica that is bound to the same number of another master needs a higher one, too.
        if reason and self._rest_rounds % _ROUNDS_PER_PROMOTION == 1:
            self._promote_any()
        if self.now > HORIZON_MS + CALM_MS:
            raise ViolationError("I15", f"no rest: {reason}")

    def _promote_any(self) -> None:
        full = [r for r in self.replicas if r.saved.standing is HaStanding.FULL]
        one = self.random.choice(full)
        try:
            one.run(lambda m: m.promote(self.random.randrange(1 << 64)))
        except PromotionError as error:
            self.trace(f"{one.id}: {error}")
