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
        raft: core election follower leader log_view membership progress quorum read_index recovery
            replication snapshot transfer state
        store: ledger ledger_damage ledger_entry ledger_extent ledger_fetched
            ledger_index ledger_mend ledger_raw ledger_recovery ledger_start ledger_verify
            durable_mark marks opening stamp record_check cut_file meta_file checked
            replicated_store
        node: replica flush_queue hard_state founding maintenance received_snapshot snapshot repair
            handshake auth
        node/parts: pop
        node/ha: epochs epoch_file machine
        """,
    _STATE: """
        store: commit_log commit_log_recovery flush consume_queue dispatch shipped_log shipped_store
            replica_store term_runs entry_runs ledger_reader ledger_records retention
        node: ledger_log fetch state state_machine state_parts checkpoint_files checkpoint_tables
            snapshots snapshot_transfer wire raft_codec log_configurations waiters driver
        node/parts: transactions delay dead_letters gone_offsets group_settings
        node/broker: sequences produce consumed receipts own_appends freshness
        node/ha: follower leader intake applied losses loss_count state copies promotion
        """,
    _SURROUNDINGS: """
        node/broker: commands waits pull groups
        node/broker/pop: taking settling receives held dead deadlines
        node/broker/transactions: calls checks ends records
        node/broker/delay: admission deliveries delivering due_index
        quorumlog: append_stream producer delivery fetching group message batch outgoing lanes
            consumer membership
        store: consume_queues mapped_file mapped_file_queue record_tail store message file_system
        """,
}
ISSUE_18: Final = frozenset(
    {
        "raft/read_index.py:_echoed:first:1",
        "node/maintenance.py:Maintenance.checkpoint:drop:1",
        "store/ledger_mend.py:_repair:drop:3",
        "node/parts/pop.py:PopPart._restore:drop:2",
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
        found: dict[str, Change] = {}
        for path, wanted in by_path.items():
            if (self.root / path).exists():
                found |= changes_of(path, self.source_of(path), wanted)
        return found

    def all_faults(self) -> list[Fault]:
        """Return all faults of all files."""
        return [fault for path in self.paths() for fault in faults_of(path, self.source_of(path))]

    def is_standing(self, fault: Fault) -> bool:
        """Say whether the fault belongs to those that are judged one by one."""
        portion = self.portions[fault.path]
        if fault.operator not in _TELLING and portion < _PERMILLE:
            portion //= 4
        drawn = zlib.crc32(fault.name.encode()) % _PERMILLE
        return drawn < portion or fault.name in self.known


THIS: Final = Project(
    Path(__file__).resolve().parents[2],
    _portions(),
    ("store", "raft", "node", "quorumlog", "chaos-tests"),
    tuple(
        f"tests/{name}" for name in ("raft", "scenarios", "store", "node", "simulation", "client")
    ),
    ISSUE_18,
)
