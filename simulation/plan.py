"""The fault plan: which fault strikes when, drawn from the seed before the run, so that it can be
shrunk.

Owns the draw; `simulation.injection` knows how. A fault names its victim by number or as the leader
of that moment, since faults that follow the leader find most.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final

LEADER: Final = 0
"""As a victim: the node that leads at that moment."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: it begins, and ends after a while."""

    at_ms: int
    kind: str
    victim: int
    duration_ms: int
    number: int
    """What else there is to draw comes from here."""


FAILING: Final = {"disk_hang": 1, "sync_fails": 1, "calls_fail": 2}
"""Kinds by which a node may end itself; it is started again."""
HARMING: Final = {"disk_damage": 3, "disk_lies": 1}
"""Kinds after which a disk lacks what it promised: of one node only."""
DISK_FAULTS: Final = {
    "die_at_call": 5,
    "power_at_call": 5,
    "disk_slow": 2,
    "disk_full": 2,
    **FAILING,
    **HARMING,
}
KINDS: Final = {
    "kill": 6,
    "stop": 2,
    "pause": 3,
    "power": 4,
    "power_all": 3,
    "cut": 4,
    "cut_one_way": 2,
    "flap": 1,
    "slow_link": 2,
    "lossy_link": 2,
    "clock_jump": 2,
    "slow_core": 2,
    "hand_over": 2,
    "advise": 4,
    "new_disk": 2,
    **DISK_FAULTS,
}
"""The kinds, and how often one is drawn."""
MODES: Final = ("raft", "sync_master", "async_master")
"""The ways to replicate: settings of a first node."""
OF_MASTER_SLAVE: Final = frozenset(("advise", "new_disk"))
"""Kinds that a Raft group does not know."""
OF_SYNCED_RAFT: Final = frozenset((*FAILING, *HARMING))
"""Kinds that only a Raft group survives whose acks wait for disks."""


@dataclass(frozen=True, slots=True)
class Options:
    """Everything about a world beside its faults."""

    seed: int
    node_count: int
    duration_ms: int
    client_count: int
    rate_per_s: int
    body_size_bytes_max: int
    transport: str
    flush: str
    replication: str = "raft"
    copies: int = 2
    """On how many nodes of a master-slave group a sync master has an append before it acks."""


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that a run depends on: drawn from a seed, or shrunk from that."""

    options: Options
    faults: tuple[Fault, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as a document."""
        return {"options": asdict(self.options), "faults": [asdict(one) for one in self.faults]}

    @staticmethod
    def from_json(document: dict[str, Any]) -> Case:
        """Read what `to_json` returned."""
        faults = tuple(Fault(**one) for one in document["faults"])
        return Case(Options(**document["options"]), faults)


def draw(seed: int, duration_ms: int, replication: str | None = None) -> Case:
    """Draw the case of a seed; `replication`: of these only."""
    random = Random(seed)
    drawn = random.choice(("raft", *MODES))
    replication = replication or drawn
    node_count = random.choice((3, 3, 3, 3, 5))
    options = Options(
        seed=seed,
        node_count=node_count,
        duration_ms=duration_ms,
        client_count=random.choice((1, 2, 3)),
        rate_per_s=random.choice((1, 3, 10)),
        body_size_bytes_max=random.choice((64, 1024, 4096)),
        transport=random.choice(("auto", "framed", "grpc")),
        flush=random.choice(("sync", "sync", "sync", "async")) if replication == "raft" else "sync",
        replication=replication,
        copies=random.choice((2, 2, node_count // 2 + 1, node_count)),
    )
    # Swarm testing: each run has some kinds only, so that rare ones are not drowned.
    kinds = [kind for kind in KINDS if random.random() < 0.5] or ["kill"]
    if replication == "raft":
        kinds = [kind for kind in kinds if kind not in OF_MASTER_SLAVE] or ["kill"]
    if replication != "raft" or options.flush == "async":
        kinds = [kind for kind in kinds if kind not in OF_SYNCED_RAFT] or ["kill"]
    if options.flush == "async":  # It promises nothing once a majority has lost its power.
        kinds = [kind for kind in kinds if not kind.startswith("power")] or ["kill"]
    weights = [KINDS[kind] for kind in kinds]
    faults: list[Fault] = []
    at_ms = random.randrange(500, 4_000)
    calm_ms = random.choice((1_000, 3_000, 8_000) if replication == "raft" else (100, 300, 1_000))
    while at_ms < duration_ms:
        kind = random.choices(kinds, weights)[0]
        victim = random.choice((LEADER, *range(1, node_count + 1)))
        faults.append(
            Fault(
                at_ms,
                kind,
                1 + seed % node_count if kind in HARMING else victim,
                random.choice((20, 200, 1_000, 3_000, 8_000)),
                random.randrange(1 << 16),
            )
        )
        at_ms += 1 + int(random.expovariate(1 / calm_ms))
    return Case(options, tuple(faults))
