"""Options of one run, drawn from its seed: sizes, time-outs, strengths of faults. Swarm testing.

Owns the draw of all options of a run; must not act on them. A seed with a little of every fault
finds little, so each option is drawn from a few extremes and whole families of faults are left out
of most seeds (fault-matrix 10.5).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from raft.config import RaftConfig
from raft.messages import NodeId

GROUP = "simulated"
TICK_US = 10_000
"""Length of a tick of a clock that runs at rate 1. Only ratios matter."""

FAULT_KINDS = (
    "kill",
    "power",
    "power_all",
    "pause",
    "isolate",
    "split",
    "one_way",
    "random_links",
    "ring",
    "swizzle",
    "clog",
    "reset",
    "slow_disk",
    "sync_error",
    "meta_error",
    "clock_rate",
    "clock_jump",
    "stall",
    "wipe",
    "transfer",
    "add_node",
    "promote",
    "remove",
)


DISK_KINDS = ("full_disk",)
"""Drawn apart from the others, so that seeds without them remained unchanged."""
COPY_KINDS = ("backup", "backup", "old_disk")
"""Drawn apart from the others, too."""


@dataclass(frozen=True, slots=True)
class SimulatorOptions:
    """Everything about a run except its fault plan. Drawn from the seed, then possibly shrunk."""

    seed: int
    voter_count: int
    event_count_max: int
    """Events of the safety phase; those of the liveness phase are additional."""
    duration_us: int

    heartbeat_ticks: int
    election_ticks_min: int
    election_ticks_max: int
    message_entry_count_max: int
    window_entry_count_max: int
    probe_size_bytes_max: int
    message_run_count_max: int
    hint_run_count_max: int
    retained_lag_entry_count_max: int
    apply_entry_count_max: int

    delay_us: int
    delay_shape: str
    loss: float
    duplication: float
    corruption: float
    is_stream: bool
    link_capacity: int

    sync_us: int
    apply_us: int
    """Duration of applying. 0: applied within the turn, as a fast state machine does."""
    batch_turns: bool
    """Whether several inputs may share one turn of the pump."""
    page_cache: bool
    """Whether entries count as durable without a sync (design 4.5, `flush=async`)."""
    snapshot_every: int
    """Entries applied between two snapshots; 0: never."""

    client_count: int
    think_us: int
    read_share: float
    patience: float
    """Probability that a client whose attempt failed tries again within the same call."""
    clock_spread: bool
    """Whether every clock runs at a rate of its own from the start."""
    fault_kinds: tuple[str, ...]
    fault_gap_us: int
    disk_kinds: tuple[str, ...] = ()
    lease_drift_percent: int | None = None
    """Drift bound that the replicas are told, with reads by lease on. None: off."""
    clocks_obey_lease: bool = True
    """With leases on: whether all clocks keep to the drift bound that the replicas are told."""
    total_loss: bool = False
    """With acks from the page cache: whether a majority may lose power; the loss is reported."""
    cas_share: float = 0.0
    """Share of a client's calls that go to a compare-and-set register."""
    hint_every: int = 0
    """Entries applied between two saves of the known commit index on disk; 0: only beside a cut of
    the log."""
    relapses: bool = False
    """With `total_loss`: whether nodes lose power again under the leader elected after the loss of
    all. Each append then has one entry, so that catching up takes a while, and other faults are
    rarer."""

    copy_kinds: tuple[str, ...] = ()
    """Faults that copy disks and put copies back."""

    @property
    def election_us(self) -> int:
        """Longest election time-out of a clock at rate 1."""
        return self.election_ticks_max * TICK_US

    @property
    def are_clocks_bounded(self) -> bool:
        return self.lease_drift_percent is not None and self.clocks_obey_lease

    def tick_us(self, rate: float) -> int:
        """Return the length of a tick of a clock with a rate of 0 (fastest) to 1 (slowest)."""
        if self.are_clocks_bounded:
            assert self.lease_drift_percent is not None
            return int(TICK_US * (1 + rate * self.lease_drift_percent / 100))
        return int(TICK_US * (0.5 + 1.5 * rate))

    def raft_config(self, node: NodeId) -> RaftConfig:
        """Return the settings of one replica."""
        return RaftConfig(
            group=GROUP,
            node_id=node,
            heartbeat_ticks=self.heartbeat_ticks,
            election_ticks_min=self.election_ticks_min,
            election_ticks_max=self.election_ticks_max,
            message_entry_count_max=self.message_entry_count_max,
            message_run_count_max=self.message_run_count_max,
            hint_run_count_max=self.hint_run_count_max,
            probe_size_bytes_max=self.probe_size_bytes_max,
            window_entry_count_max=self.window_entry_count_max,
            retained_lag_entry_count_max=self.retained_lag_entry_count_max,
            apply_entry_count_max=self.apply_entry_count_max,
            snapshot_ticks_max=4 * self.election_ticks_max,
            waiter_grace_ticks=2 * self.election_ticks_max,
            lease_reads=self.lease_drift_percent is not None,
            clock_drift_percent_max=self.lease_drift_percent,
        )


def draw(seed: int, event_count_max: int) -> SimulatorOptions:
    """Draw the options of a seed."""
    random = Random(seed)
    pick = random.choice
    election_ticks_min = pick((5, 8, 12, 20))
    election_ticks_max = election_ticks_min + pick((3, 5, election_ticks_min))
    election_us = election_ticks_max * TICK_US
    page_cache = random.random() < 0.15
    later = Random(seed ^ 0x1A7E)
    disk_share = later.choice((0.0, 0.0, 0.0, 0.6))
    draws = [later.random() for _ in range(4)]  # Three unused: seeds stay what they are.
    options = SimulatorOptions(
        seed=seed,
        voter_count=pick((1, 3, 3, 3, 3, 3, 5, 5, 5)),
        event_count_max=event_count_max,
        duration_us=election_us * pick((40, 100, 200)),
        heartbeat_ticks=pick((1, 2, 3)),
        election_ticks_min=election_ticks_min,
        election_ticks_max=election_ticks_max,
        message_entry_count_max=pick((1, 2, 4096)),
        window_entry_count_max=pick((1, 4, 4096)),
        probe_size_bytes_max=pick((1, 250, 16384)),
        message_run_count_max=pick((1, 2, 64)),
        hint_run_count_max=pick((1, 2, 8)),
        retained_lag_entry_count_max=pick((0, 5, 1 << 20)),
        apply_entry_count_max=pick((1, 3, 4096)),
        delay_us=int(election_us * pick((0.002, 0.01, 0.04, 0.15))),
        delay_shape=pick(("constant", "exponential", "heavy")),
        loss=pick((0.0, 0.0, 0.02, 0.1, 0.3)),
        duplication=pick((0.0, 0.0, 0.05, 0.3)),
        corruption=pick((0.0, 0.0, 0.0, 0.02)),
        is_stream=random.random() < 0.35,
        link_capacity=pick((4, 16, 64)),
        sync_us=int(election_us * pick((0.001, 0.01, 0.05, 0.2))),
        apply_us=int(election_us * pick((0, 0, 0.005, 0.2))),
        batch_turns=random.random() < 0.3,
        page_cache=page_cache,
        snapshot_every=pick((0, 0, 4, 12, 40)),
        client_count=pick((1, 2, 3, 5)),
        think_us=int(election_us * pick((0.005, 0.03, 0.2))),
        read_share=pick((0.1, 0.3, 0.6)),
        patience=pick((0.0, 0.7, 1.0)),
        clock_spread=random.random() < 0.4,
        fault_kinds=tuple(kind for kind in FAULT_KINDS if random.random() < 0.35),
        fault_gap_us=int(election_us * pick((0.3, 1.0, 3.0))),
        disk_kinds=DISK_KINDS if draws[2] < disk_share else (),
        lease_drift_percent=later.choice((*[None] * 9, 0, 10, 40)),
        total_loss=page_cache and later.random() < 0.6,
        cas_share=later.choice((0.0, 0.0, 0.2, 0.6)),
        hint_every=later.choice((0, 1, 8)) if disk_share else 0,
        relapses=later.random() < 0.7,
        copy_kinds=COPY_KINDS if later.random() < 0.3 else (),
    )
    if not options.total_loss or not options.relapses:
        return options
    return replace(
        options,
        message_entry_count_max=1,
        window_entry_count_max=1,
        fault_gap_us=4 * options.fault_gap_us,
    )
