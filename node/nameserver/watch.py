"""Facts about the groups in the directory for operators: new ones, and groups that cannot elect.

Owns the memory between two looks: since when a group has no master, the groups and addresses that
were there before, the counts and log lines of changes, and the time that silence is judged by.
Clients send messages to the addresses in the directory, so each new one is logged. Must not know
replication or the callers.
"""

import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from node.nameserver.directory.controller import has_master
from node.nameserver.directory.directory import Directory
from node.nameserver.directory.groups import Group
from node.nameserver.directory.limits import HEARTBEAT_PERIOD_MS
from node.nameserver.directory.routes import alive_brokers

NO_MASTER_AFTER_MS: Final = 15_000
"""Time without a master after which a group has a problem: three fail-overs."""
SETTLE_MS: Final = HEARTBEAT_PERIOD_MS + 2_000
"""Time with a leader after which each live broker has sent a heartbeat."""
_AWAY_COUNT_MAX: Final = 64
"""Brokers of a group that are remembered while they are away."""
_KNOWN_GROUP_COUNT_MAX: Final = 256
"""Groups that are remembered, four times as many as may be there; above it the group seen least
recently is forgotten, and would count as new again."""
_log: Final = logging.getLogger(__name__)


class Sight(NamedTuple):
    """The state of one group at one time."""

    name: str
    cluster: str
    addresses: dict[int, str]
    """The addresses of the live brokers, by id."""
    has_master: bool
    stuck: str
    """Why the group cannot elect any master; empty: the group can."""


def sights(directory: Directory, now_ms: int) -> tuple[Sight, ...]:
    """Return all groups with a broker that is alive at this time."""
    all_sights = (_sight(group, directory, now_ms) for group in directory.groups.values())
    return tuple(sight for sight in all_sights if sight.addresses)


def _sight(group: Group, directory: Directory, now_ms: int) -> Sight:
    limits = directory.limits
    alive = alive_brokers(group, now_ms, limits.broker_expiry_ms)
    if group.kind == "ha":
        is_led = has_master(group, now_ms, limits.master_silence_ms)
    else:
        is_led = any(broker.broker_id == group.master_id for broker in alive)
    stuck = ""
    if group.is_unfounded(limits):
        stuck = f"epoch {group.epoch_highest} is far above all that its nodes report"
    elif group.is_exhausted(limits):
        stuck = f"epoch {group.epoch_highest} is the last one"
    addresses = {broker.broker_id: broker.address for broker in alive}
    return Sight(group.name, group.cluster, addresses, is_led, stuck)


class GroupWatch:
    """The watch of one process with a replica. Call `note` at least every second."""

    def __init__(self, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._addresses: dict[tuple[str, str], dict[int, str]] = {}
        """Addresses that were seen of the brokers of each cluster and group."""
        self._led_since_s: float | None = None
        """Time at which a leader was first known."""
        self._masterless_s: dict[str, float] = {}
        """Time since which a group has no master, by group."""
        self.problems: dict[str, str] = {}
        """By group: that it has no master, or why it cannot elect one."""
        self.groups: tuple[str, ...] = ()
        """The names of the live groups."""
        self.new_group_count = self.new_address_count = 0
        """Groups that came, and brokers at a new address, after SETTLE_MS with a leader."""

    def note(self, seen: tuple[Sight, ...], *, has_leader: bool) -> None:
        """Record the state of the groups. Without a leader no heartbeat is recorded, so no master
        counts as missing."""
        now_s = self._monotonic_s()
        self.groups = tuple(sight.name for sight in seen)
        if has_leader and self._led_since_s is None:
            self._led_since_s = now_s
        led_s = 0.0 if self._led_since_s is None else now_s - self._led_since_s
        self._note_addresses(seen, is_news=led_s >= SETTLE_MS / 1000)
        before, self._masterless_s = self._masterless_s, {}
        problems: dict[str, str] = {}
        for sight in seen if has_leader else ():
            if not sight.has_master:
                self._masterless_s[sight.name] = before.get(sight.name, now_s)
            silent_s = now_s - self._masterless_s.get(sight.name, now_s)
            where = f"broker group {sight.name}"
            if sight.stuck:
                problems[sight.name] = f"{where} can elect no master: {sight.stuck}"
            elif silent_s >= NO_MASTER_AFTER_MS / 1000:
                alive = ", ".join(map(str, sorted(sight.addresses)))
                problems[sight.name] = (
                    f"{where} has had no master for {silent_s:.0f} s, as far as the name server "
                    f"knows; alive: node {alive}"
                )
        for name in sorted(problems.keys() - self.problems.keys()):
            _log.warning("%s", problems[name])
        for name in sorted(self.problems.keys() - problems.keys()):
            _log.info("what was said of group %s is over", name)
        self.problems = problems

    def clear(self) -> None:
        """Forget the problems and groups, because the replica has ended."""
        self._masterless_s, self.problems, self.groups = {}, {}, ()

    def _note_addresses(self, seen: tuple[Sight, ...], *, is_news: bool) -> None:
        level = logging.WARNING if is_news else logging.INFO
        for sight in seen:
            key = (sight.cluster, sight.name)
            before = self._addresses.pop(key, None)
            # Brokers that are away are remembered, so that their return does not count as new.
            away = dict(list((before or {}).items())[-_AWAY_COUNT_MAX:])
            self._addresses[key] = {**away, **sight.addresses}
            if len(self._addresses) > _KNOWN_GROUP_COUNT_MAX:
                del self._addresses[next(iter(self._addresses))]
            if before is None:
                self.new_group_count += is_news
                where = ", ".join(f"{n} at {a}" for n, a in sorted(sight.addresses.items()))
                _log.log(level, "broker group %s of cluster %s: %s", sight.name, key[0], where)
                continue
            for node, address in sorted(sight.addresses.items()):
                if before.get(node) != address:
                    self.new_address_count += is_news
                    was = before.get(node, "unknown")
                    text = "broker %d of group %s is at %s, was %s"
                    _log.log(level, text, node, sight.name, address, was)


class TrustedTime:
    """The time that decides which brokers are silent. Call `note` at least every few seconds.

    Silence counts only while heartbeats are recorded. Without a leader none is recorded, so this
    time stands still, and all brokers that were in the routes stay there; it goes on once each
    broker had the time for another heartbeat. So an outage of the name server changes no route,
    while a broker that dies during its operation leaves the routes.
    """

    def __init__(self, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._since_s: float | None = None
        self._frozen_ms: int | None = 0
        """The time while it stands still; None while it runs. 0 at first: every known broker counts
        as alive."""

    def note(self, now_ms: int, *, has_leader: bool) -> None:
        """Record whether there is a leader at `now_ms`."""
        now_s = self._monotonic_s()
        if not has_leader:
            self._since_s = None
            if self._frozen_ms is None:
                self._frozen_ms = now_ms
            return
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s >= SETTLE_MS / 1000:
            self._frozen_ms = None

    def at(self, now_ms: int) -> int:
        """Return `now_ms`, or the time at which trusted time stands still."""
        return now_ms if self._frozen_ms is None else self._frozen_ms
