"""Hosts, copies and leaders of a fleet at one moment.

Owns who is up, which copies are level, and who leads. Must not know times or rates. A copy that
lacks log takes no part in a quorum until it is level again, since entries reach it in order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from planning.capacity.leaders import LedGroup
from planning.capacity.placement import FleetHost

LEVEL_SIZE_BYTES = 1e-3
"""Bytes behind which a copy counts as level: what is below is an error of floating point."""


@dataclass(slots=True)
class Copy:
    """A copy of a group on a host."""

    host: str
    behind_size_bytes: float = 0.0
    """Log that the copy lacks."""
    is_voter: bool = True
    """False for a copy in the place of a lost one, until it is level."""

    @property
    def is_level(self) -> bool:
        """Whether the copy has the whole log."""
        return self.behind_size_bytes <= LEVEL_SIZE_BYTES


@dataclass(slots=True)
class FleetGroup:
    """A group: its copies and its leader."""

    name: str
    copies: list[Copy]
    leader: str | None
    leaderless_since_s: float | None = None
    awaited: int = 0
    """Number of the election or hand-over that is under way, 0: none. Others are void."""
    is_lost: bool = False
    """Whether no copy with the whole log is left: it is never served again."""

    def copy_on(self, host: str) -> Copy | None:
        """Return the copy on a host."""
        return next((copy for copy in self.copies if copy.host == host), None)


@dataclass(slots=True)
class FleetState:
    """The state of all. Hosts are up unless they are in `away` or `lost`."""

    hosts: dict[str, FleetHost]
    groups: list[FleetGroup]
    quorum: int
    away: dict[str, int] = field(default_factory=dict)
    """Faults by which a host is away: it is back when none is left."""
    lost: set[str] = field(default_factory=set)

    def is_up(self, host: str) -> bool:
        """Whether the host is there."""
        return host not in self.lost and not self.away.get(host)

    def up_hosts(self) -> list[str]:
        """Return the names of hosts that are there."""
        return [name for name in self.hosts if self.is_up(name)]

    def able_hosts(self) -> list[str]:
        """Return the hosts that may lead a group: they are there, with a copy that is level."""
        able = {copy.host for group in self.groups for copy in self.level_copies(group)}
        return sorted(able)

    def up_copies(self, group: FleetGroup) -> list[Copy]:
        """Return the copies of a group on hosts that are there."""
        return [copy for copy in group.copies if self.is_up(copy.host)]

    def level_copies(self, group: FleetGroup) -> list[Copy]:
        """Return the copies that count for a quorum: on hosts that are there, with all log."""
        return [copy for copy in self.up_copies(group) if copy.is_level]

    def can_elect(self, group: FleetGroup) -> bool:
        """Whether a leader can be elected: a quorum is there, and one of it has the whole log."""
        voters = [copy for copy in self.up_copies(group) if copy.is_voter]
        return len(voters) >= self.quorum and any(copy.is_level for copy in voters)

    def has_quorum(self, group: FleetGroup) -> bool:
        """Whether appends can be committed, with a leader."""
        return len(self.level_copies(group)) >= self.quorum

    def is_served(self, group: FleetGroup) -> bool:
        """Whether the group takes appends now."""
        return group.leader is not None and self.has_quorum(group)

    def led_groups(self) -> list[LedGroup]:
        """Return groups and hosts for the balance of leaders."""
        return [
            LedGroup(
                group.name,
                group.leader,
                tuple(sorted(copy.host for copy in self.level_copies(group))),
            )
            for group in self.groups
        ]

    def behind_copies(self) -> Iterator[tuple[FleetGroup, Copy]]:
        """Yield the copies that lack log and are on hosts that are there."""
        for group in self.groups:
            for copy in group.copies:
                if not copy.is_level and self.is_up(copy.host):
                    yield group, copy
