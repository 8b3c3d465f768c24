"""Which modules faults are planted in, and which of all possible faults are the standing ones.

Owns the choice; must not know how a fault is made or found. There are some 16,000 possible faults
in these modules, too many to judge each. The standing ones are drawn by a checksum of their name,
so that a fault stays in or out whatever else changes. `--all` plants the others as well.
"""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutate.faults import Change, Fault, changes_of, faults_of

_PERMILLE: Final = 1000

_CORE: Final = 170
_STATE: Final = 85
_SURROUNDINGS: Final = 40
"""Of a thousand possible faults of a module so many are standing ones."""

_TELLING: Final = frozenset(
    {"drop", "never", "operand", "first", "second", "bound", "uncaught", "item", "extreme"}
)
"""Operators whose faults are likely to survive where a test is missing. Those of the others nearly
always break every test that runs the line; a quarter of the portion is enough."""

_BY_PORTION: Final[dict[int, str]] = {
    _CORE: """
        node/peers: handshake
        node/peers/security: proof
        node/replication: foundation maintenance
        node/replication/ha/core: epochs machine
        node/replication/ha/storage: epoch_file
        node/replication/raft: maintenance repair
        node/replication/raft/storage: hard_state received_snapshot snapshot
        node/state/tables: pop
        raft: core quorum
        raft/pump: replica flush_queue
        raft/rules: election follower leader membership read_index recovery replication snapshot
            steady transfer
        raft/state: log_view progress state
        store: opening
        store/durability: durable_mark
        store/files: meta_file
        store/ledger: ledger entry index raw recovery start verify
        store/ledger/mending: damage fetched mend
        store/log: cut_file checked
        store/record: stamp check
        store/replicated: store
        """,
    _STATE: """
        node/broker/append: sequences produce receipts own_appends
        node/broker/core: freshness
        node/broker/transactions: consumed
        node/peers: frames
        node/replication/ha: inbound applied driver
        node/replication/ha/core: follower leader state copies
        node/replication/ha/storage: losses log
        node/replication: fetch
        node/replication/raft: snapshots snapshot_transfer codec driver
        node/replication/raft/digests: checks fence
        node/replication/raft/storage: log configurations
        node/state: state machine registry checkpoint_files checkpoint_tables digest
        node/state/tables: transactions delay dead_letters offset_set group_settings
        raft/pump: pending_proposals
        store/derived: dispatch
        store/derived/queues: consume_queue
        store/durability: flush
        store/ledger: term_runs reader records
        store/log: commit_log commit_log_recovery shipped_log
        store/replicated: shipped_store ledger_store
        store/maintenance: retention
        """,
    _SURROUNDINGS: """
        node/broker/core: parked_readers
        node/broker/delay: calls deliveries delivery_task due_index
        node/broker/groups: groups
        node/broker/pop: take settlement receives shared deadlines
        node/broker/read: pull
        node/broker/records: half
        node/broker/transactions: calls checks ends
        quorumlog/consume: prefetch group consumer membership
        quorumlog/produce: append_stream producer delivery outgoing_messages accumulator
        quorumlog/records: message batch
        store: store
        store/derived/queues: consume_queues
        store/files: mapped_file mapped_file_queue file_system
        store/record: tail message
        """,
}
ISSUE_18: Final = frozenset(
    {
        "raft/rules/read_index.py:_echoed:first:1",
        "node/replication/raft/maintenance.py:RaftSteps.checkpoint:drop:1",
        "store/ledger/mending/mend.py:_repair:drop:3",
        "node/state/tables/pop.py:PopTable._restore:drop:2",
    }
)
"""Faults that nothing noticed until somebody planted them by hand."""


def _portions() -> dict[str, int]:
    portions: dict[str, int] = {}
    for portion, text in _BY_PORTION.items():
        folder = ""
        for word in text.split():
            if word.endswith(":"):
                folder = word[:-1]
            else:
                portions[f"{folder}/{word}.py"] = portion
    return portions


@dataclass(frozen=True, slots=True)
class Project:
    """A tree of sources: where faults are planted, and which tests may find them."""

    root: Path
    portions: Mapping[str, int]
    """By the path of a file. One that is not there (any more) is left out."""
    code_folders: tuple[str, ...]
    """What decides whether the map is of this code."""
    test_folders: tuple[str, ...]
    known: frozenset[str] = frozenset()
    """Names of faults that are standing ones whatever the portion."""

    def paths(self) -> list[str]:
        """Return the files that are there."""
        return [path for path in self.portions if (self.root / path).exists()]

    def source_of(self, path: str) -> str:
        """Return the text of a file."""
        return (self.root / path).read_text()

    def changes_of(self, names: Iterable[str]) -> dict[str, Change]:
        """Return what those of these faults that there are would change."""
        by_path: dict[str, set[str]] = {}
        for name in names:
            by_path.setdefault(name.partition(":")[0], set()).add(name)
        changes: dict[str, Change] = {}
        for path, wanted in by_path.items():
            if (self.root / path).exists():
                changes |= changes_of(path, self.source_of(path), wanted)
        return changes

    def all_faults(self) -> list[Fault]:
        """Return all faults of all files."""
        return [fault for path in self.paths() for fault in faults_of(path, self.source_of(path))]

    def is_standing(self, fault: Fault) -> bool:
        """Whether the fault belongs to those that are judged one by one."""
        portion = self.portions[fault.path]
        if fault.operator not in _TELLING and portion < _PERMILLE:
            portion //= 4
        drawn = zlib.crc32(fault.name.encode()) % _PERMILLE
        return drawn < portion or fault.name in self.known


THIS: Final = Project(
    Path(__file__).resolve().parents[2],
    _portions(),
    ("store", "raft", "node", "quorumlog", "chaos-tests"),
    tuple(f"tests/{name}" for name in ("raft", "scenarios", "store", "node", "quorumlog")),
    ISSUE_18,
)
