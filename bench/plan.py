"""The order of a comparison: sessions, each of one peer in one place, in turn.

Owns the scale of a run and its order: A B C, then A B C again, so that a slow minute of the machine
meets all peers. Must not know how a session is run or its result.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from bench.peers.registry import OWN
from store.config import GIB, MIB

Scenario = Literal["limits", "rates", "growth", "topics"]
SCENARIOS: Final[tuple[Scenario, ...]] = ("rates", "topics", "growth")
"""The scenarios to choose from; the limits of the machine belong to the rates."""
KEYS: Final = {"sparse": 100_000, "dense": 1}
"""Messages for each one with a key, in logs whose nodes are killed."""


@dataclass(frozen=True, slots=True)
class PlanScale:
    """Amount of work of a run."""

    rounds: Mapping[str, int]
    """Rounds of the rates, by place."""
    seconds: float
    """Duration of each measured load."""
    warm_up_s: float
    """Duration of each kind of load before it is measured: a Java client is ten times slower at
    first."""
    trial_s: float
    """Duration of each trial for the count of batches in flight."""
    failover_s: float
    """Limit of a failover; it is measured in the first round of a place."""
    log_sizes_bytes: tuple[int, ...]
    """Sizes to which the log grows; at each the rates are measured."""
    restart_size_bytes: int
    """One of these sizes: at it all nodes are stopped and started."""
    fill_s_max: float
    """Limit of the time to fill a log; a peer that would take longer is not asked to."""
    topic_counts: tuple[int, ...]
    session_s_max: Mapping[Scenario, float]
    run_s_max: float
    """Limit of a run; sessions that are left are for the next start."""

    def row(self) -> dict[str, Any]:
        """Return the scale under stable keys, as JSON decodes it."""
        fields = asdict(self)
        return {key: list(v) if isinstance(v, tuple) else v for key, v in fields.items()}


FULL: Final = PlanScale(
    rounds={"tmpfs": 3, "disk": 3},
    seconds=2.5,
    warm_up_s=1.5,
    trial_s=0.5,
    failover_s=40.0,
    log_sizes_bytes=(GIB, 5 * GIB, 10 * GIB),
    restart_size_bytes=5 * GIB,
    fill_s_max=1800.0,
    topic_counts=(1, 100, 10_000),
    session_s_max={"limits": 120.0, "rates": 600.0, "growth": 5400.0, "topics": 900.0},
    run_s_max=24 * 3600.0,
)
QUICK: Final = PlanScale(
    rounds={"tmpfs": 2, "disk": 1},
    seconds=0.4,
    warm_up_s=0.3,
    trial_s=0.15,
    failover_s=8.0,
    log_sizes_bytes=(32 * MIB, 64 * MIB),
    restart_size_bytes=64 * MIB,
    fill_s_max=5.0,
    topic_counts=(1, 100),
    session_s_max={"limits": 20.0, "rates": 90.0, "growth": 60.0, "topics": 45.0},
    run_s_max=560.0,
)


@dataclass(frozen=True, slots=True)
class PlannedSession:
    """One peer, started afresh, in one place, for one scenario."""

    scenario: Scenario
    place: str
    round: int
    peer: str
    """Name of the peer; empty for the limits of the machine."""
    topic_count: int = 1
    key_step: int = 0
    """Messages for each one with a key, in a session that kills nodes; 0 in all others."""

    @property
    def key(self) -> str:
        """Name of the session in the journal."""
        peer = self.peer or "machine"
        suffix = f"/{self.key_step}" if self.key_step else ""
        return f"{self.scenario}/{self.place}/{self.round}/{self.topic_count}/{peer}{suffix}"


def sessions(
    scale: PlanScale,
    places: Sequence[str],
    peers: Sequence[str],
    scenarios: Collection[Scenario] = SCENARIOS,
) -> Iterator[PlannedSession]:
    """Yield all sessions in order. The log grows on the last place only, topics on the first."""
    for number in range(max(scale.rounds[place] for place in places)):
        for place in places:
            if number < scale.rounds[place] and "rates" in scenarios:
                yield PlannedSession("limits", place, number, "")
                for peer in peers:
                    yield PlannedSession("rates", place, number, peer)
        if number == 0 and "topics" in scenarios:
            for count in scale.topic_counts:
                for peer in peers:
                    yield PlannedSession("topics", places[0], 0, peer, count)
        if number == 0 and "growth" in scenarios:
            for peer in peers:
                yield PlannedSession("growth", places[-1], 0, peer)
            for key_step in KEYS.values() if OWN in peers else ():
                yield PlannedSession("growth", places[-1], 0, OWN, key_step=key_step)
