"""Links between nodes that delay, lose, double, reorder, hold back and cut (fault-matrix 10.2).

Owns the fate of a message between send and delivery; must not read its content, except that a
snapshot takes longer than a message. A link is directed. In datagram mode messages overtake each
other; in stream mode they arrive in order until a reset loses all messages in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from raft.messages import InstallSnapshot, NodeId
from raft.pump.effects import Outgoing
from simulation.raft.disk.image import DirectoryEntry
from simulation.raft.options import SimulatorOptions

if TYPE_CHECKING:
    # A circle of types: a world makes its parts, and they act on it and on each other.
    from simulation.raft.world.world import World

_DELAY_COUNT = 256
_DUPLICATE_DELAY_ELECTIONS_MAX = 10
"""Largest delay of the second copy of a doubled message, in election time-outs."""
_SNAPSHOT_DELAY_FACTOR = 8


class SimulatedLink:
    """One direction between two nodes."""

    __slots__ = ("clogged_until", "cuts", "epoch", "in_flight", "last_at", "receiver", "sender")

    def __init__(self, sender: NodeId, receiver: NodeId) -> None:
        self.sender = sender
        self.receiver = receiver
        self.cuts = 0
        """Number of faults that cut this link now; several may overlap."""
        self.clogged_until = 0
        self.epoch = 0
        """Number of resets. A message of an earlier epoch never arrives."""
        self.in_flight = 0
        self.last_at = 0


class Network:
    """All links of one world."""

    __slots__ = (
        "_bits",
        "_capacity",
        "_corruption",
        "_delays",
        "_duplication",
        "_is_stream",
        "_loss",
        "_random",
        "_unit",
        "_world",
        "deliver_to",
        "dropped",
        "duplicate_delay_us",
        "links",
        "snapshots_in_flight",
    )

    def __init__(self, world: World, options: SimulatorOptions, random: Random) -> None:
        self._world = world
        self._random = random
        self._unit = random.random
        self._bits = random.getrandbits
        self._delays = _draw_delays(options, random)
        self._loss = options.loss
        self._duplication = 1.0 - options.duplication
        self._corruption = options.corruption
        self._is_stream = options.is_stream
        self._capacity = options.link_capacity
        self.duplicate_delay_us = options.election_us * _DUPLICATE_DELAY_ELECTIONS_MAX
        self.links: dict[int, SimulatedLink] = {}
        """Links by sender * 256 + receiver: one small integer is the cheapest key."""
        self.deliver_to: Callable[[SimulatedLink, Outgoing], None]
        self.dropped = 0
        self.snapshots_in_flight = 0

    def link(self, sender: NodeId, receiver: NodeId) -> SimulatedLink:
        key = sender << 8 | receiver
        found = self.links.get(key)
        if found is None:
            found = self.links[key] = SimulatedLink(sender, receiver)
        return found

    def send(self, outgoing: Outgoing) -> None:
        """Take a message; deliver it some time later, once, twice or never."""
        message = outgoing.message
        link = self.links.get(message.sender << 8 | message.to)
        if link is None:
            link = self.link(message.sender, message.to)
        if link.cuts or link.in_flight >= self._capacity:
            self.dropped += 1
            return
        draw = self._unit()
        world = self._world
        if draw < self._loss:
            self.dropped += 1
            if self._is_stream:
                self.reset(link)
            return
        delay = self._delays[self._bits(8)]
        if type(message) is InstallSnapshot:
            delay *= _SNAPSHOT_DELAY_FACTOR
            self.snapshots_in_flight += 1
        at = world.now + delay
        at = max(at, link.clogged_until)
        if self._is_stream:
            if at <= link.last_at:
                at = link.last_at + 1
            link.last_at = at
        elif draw >= self._duplication:
            again = at + int(self._unit() * self.duplicate_delay_us)
            link.in_flight += 1
            world.push(again, self._arrive, link, outgoing, link.epoch)
        if self._corruption and self._unit() < self._corruption:
            outgoing = self._corrupt(outgoing)
        link.in_flight += 1
        world.push(at, self._arrive, link, outgoing, link.epoch)

    def _arrive(self, link: SimulatedLink, outgoing: Outgoing, epoch: int) -> None:
        link.in_flight -= 1
        if type(outgoing.message) is InstallSnapshot and self.snapshots_in_flight:
            self.snapshots_in_flight -= 1  # A doubled one is subtracted twice; no harm.
        if link.cuts or epoch != link.epoch:
            self.dropped += 1
            return
        self.deliver_to(link, outgoing)

    def _corrupt(self, outgoing: Outgoing) -> Outgoing:
        """Change one entry of a payload. A changed message frame never gets past its checksum."""
        payload = outgoing.payload
        if not isinstance(payload, list) or not payload:
            return outgoing
        at = self._random.randrange(len(payload))
        entry: DirectoryEntry = payload[at]
        damaged = entry._replace(body=self._bits(40), chain=entry.chain ^ 1 << self._bits(4))
        return Outgoing(outgoing.message, [*payload[:at], damaged, *payload[at + 1 :]])

    # Faults.

    def reset(self, link: SimulatedLink) -> None:
        """Lose the messages in flight; the sender's shell notices."""
        link.epoch += 1
        self._world.report_unreachable(link.sender, link.receiver)

    def cut(self, links: list[SimulatedLink]) -> None:
        for link in links:
            link.cuts += 1

    def heal(self, links: list[SimulatedLink]) -> None:
        for link in links:
            assert link.cuts > 0, f"link {link.sender}->{link.receiver} is not cut"
            link.cuts -= 1
            if self._is_stream:
                self.reset(link)

    def calm(self) -> None:
        """End loss, duplication and damage, and let clogged messages go: the liveness phase."""
        self._loss = self._corruption = 0.0
        self._duplication = 1.0
        self._capacity = 1 << 30
        self._delays = [200] * _DELAY_COUNT
        now = self._world.now
        for link in self.links.values():
            link.clogged_until = 0
            if link.last_at > now + self._world.options.election_us:
                # A keepalive ends a connection on which no message has arrived for so long.
                link.last_at = now
                self.reset(link)


def _draw_delays(options: SimulatorOptions, random: Random) -> list[int]:
    """Draw a table of delays: a look-up by a random byte is far cheaper than a distribution."""
    base = options.delay_us
    if options.delay_shape == "constant":
        return [base] * _DELAY_COUNT
    if options.delay_shape == "exponential":
        return [1 + int(random.expovariate(1 / base)) for _ in range(_DELAY_COUNT)]
    limit = 3 * options.election_us
    return [
        min(limit, int(base * 0.5 / (1.0 - random.random()) ** 0.8)) + 1
        for _ in range(_DELAY_COUNT)
    ]
