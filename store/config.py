"""The settings of a store, their defaults and limits.

Owns the names and what is allowed; must not read files or the environment (the node does that).
RocketMQ's defaults are kept unless a docstring says `Deviation:`. Source: storage-formats 5 and 10.
"""

import mmap
from dataclasses import dataclass, fields
from typing import Literal

from store import format as fmt
from store.format import LOOPBACK, Host

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """How one store behaves. Frozen: a changed value needs a reopened store.

    Raises ValueError naming each setting that is out of its range.
    """

    # --- Layout ---
    container: Literal["commit_log", "ledger"] = "commit_log"
    """`commit_log`: records back to back, as RocketMQ. `ledger`: DLedger entries with checksums."""
    self_id: str = "n0"
    """Id in the name of the ledger's directory, `dledger-<self_id>`."""
    file_size_bytes: int = GIB
    """Size of each log file; any multiple of the page size."""
    consume_queue_units_per_file: int = 300_000
    index_slot_count: int = 5_000_000
    index_entry_count: int = 20_000_000
    ledger_index_units_per_file: int = 5 * 1024 * 1024
    body_size_bytes_max: int = 4 * MIB
    batch_size_bytes_max: int = 4 * MIB
    """A batch is one atomic append. With `ledger` the entry header counts too."""
    property_crc: bool = False
    """Demand and fill in a CRC over each whole record (1.7). The ledger has its own checksums."""
    store_host: Host = LOOPBACK
    """Stored in each record and in each message id; its family must match the records'."""

    # --- Durability ---
    flush: Literal["sync", "async"] = "sync"
    """Deviation: RocketMQ's default is async; here a receipt means durable by default."""
    flush_timeout_ms: int = 5_000
    flush_interval_ms: int = 500
    flush_least_pages: int = 4
    flush_thorough_interval_ms: int = 10_000
    durable_mark_interval_ms: int = 1_000
    """Largest age of the synced copy of the durable mark; 0 syncs it in every round."""
    derived_flush_interval_ms: int = 1_000
    """Interval at which consume queues and index are synced and the checkpoint moves."""
    transient_pool: bool = False
    """Write into locked memory first, then commit to the files. Only with async flush."""
    transient_pool_size: int = 5
    commit_interval_ms: int = 200
    commit_least_pages: int = 4
    commit_thorough_interval_ms: int = 200

    # --- New files ---
    preallocate_file_count: int = 2
    """Files kept ready ahead of the log by the warm-up thread, once the first one is half full; 0
    allocates in line."""
    warm_up: bool = True
    """Write zeros through the next files, so that no append waits for a block allocation. Files in
    memory need none. Deviation: off in RocketMQ."""
    lock_memory: bool = False
    """mlock the active file; degrades with a counted warning when the limit is too low."""
    allocate_timeout_ms: int = 5_000

    # --- Writers ---
    put_lock: Literal["blocking", "spin"] = "blocking"
    put_lock_timeout_ms: int = 1_000
    """Time that an append waits for the lock before it is refused as busy (5.8)."""

    # --- Retention ---
    retention_ms: int = 72 * 3_600_000
    """Age up to which the log is kept; 0 is no limit by age."""
    retention_size_bytes: int = 0
    """Keep at most this much log; 0 is no limit by size."""
    retention_interval_ms: int = 10_000
    delete_when_full: bool = False
    """Delete the oldest files although they have not expired, from `disk_force_ratio` on or without
    the reserve. Deviation: always so in RocketMQ (`cleanFileForciblyEnable`); here no record that
    was promised to be kept goes unless its owner said so (docs/decisions/0028)."""
    disk_warn_ratio: float = 0.75
    """Used part of the disk from which operators are warned."""
    disk_force_ratio: float = 0.85
    """Used part from which `delete_when_full` deletes; without that this mark does not exist."""
    disk_full_ratio: float = 0.90
    """Used part from which appends are refused with `store.full`; reads go on."""
    disk_reserve_bytes: int = 64 * MIB
    """Appends are refused when less than this is free, whatever the ratios say."""

    def __post_init__(self) -> None:
        """Check every setting at once. Raises ValueError with all that is wrong."""
        wrong = [*self._wrong_sizes(), *self._wrong_counts(), *self._wrong_rules()]
        if wrong:
            raise ValueError("; ".join(wrong))

    def _wrong_sizes(self) -> list[str]:
        page, wrong = mmap.PAGESIZE, []
        if self.file_size_bytes < page or self.file_size_bytes % page:
            wrong.append(f"file_size_bytes is {self.file_size_bytes}: use a multiple of {page}")
        for name in ("body_size_bytes_max", "batch_size_bytes_max"):
            if not 10 <= getattr(self, name) <= 4 * MIB:
                wrong.append(f"{name} is {getattr(self, name)}: use 10 to {4 * MIB}")
        return wrong

    def _wrong_counts(self) -> list[str]:
        wrong = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type in (int, "int") and not isinstance(value, int):
                wrong.append(f"{field.name} is {value!r}: use a whole number")
            elif isinstance(value, int) and value < 0:
                wrong.append(f"{field.name} is {value}: use 0 or more")
        positive = "consume_queue_units_per_file index_slot_count ledger_index_units_per_file"
        wrong += [f"{n} is 0: use 1 or more" for n in positive.split() if not getattr(self, n)]
        if self.index_entry_count < 2:
            wrong.append("index_entry_count: use 2 or more, entry 0 is never used")
        if (self.ledger_index_units_per_file * fmt.INDEX_UNIT_SIZE_BYTES) % mmap.PAGESIZE:
            wrong.append("ledger_index_units_per_file: its files must be whole pages")
        return wrong

    def _wrong_rules(self) -> list[str]:
        wrong = []
        if self.container not in ("commit_log", "ledger"):
            wrong.append(f"container is {self.container!r}: use commit_log or ledger")
        if self.flush not in ("sync", "async"):
            wrong.append(f"flush is {self.flush!r}: use sync or async")
        if self.put_lock not in ("blocking", "spin"):
            wrong.append(f"put_lock is {self.put_lock!r}: use blocking or spin")
        if self.transient_pool and (self.flush != "async" or self.container != "commit_log"):
            wrong.append("transient_pool needs flush=async and container=commit_log")
        if not 0 < self.disk_warn_ratio <= self.disk_force_ratio <= self.disk_full_ratio <= 1:
            wrong.append("disk ratios: use 0 < warn <= force <= full <= 1")
        return wrong
