"""Stored logs that tests open, write as a leader does, and ship to a follower."""

from pathlib import Path

from node.replication.raft.storage.log import LedgerLog
from raft.messages import (
    NO_INDEX,
    AppendRequest,
    ConfigurationAt,
    Index,
    TermRun,
)
from raft.ready import EntryKind
from store.files.staging import TEMPORARY_SUFFIX
from store.ledger.ledger import Deletion
from tests.node.ledger_cluster import CLUSTER, open_log
from tests.store.records import batch, numbers

VOTERS = (1, 2, 3)


def new_log(root: Path, node_id: int = 1, **how: object) -> LedgerLog:
    log = open_log(root, node_id, **how)  # type: ignore[arg-type]
    log.found(VOTERS)
    log.start_at(NO_INDEX)
    return log


def reopen(root: Path, applied_index: int = NO_INDEX, **how: object) -> LedgerLog:
    log = open_log(root, **how)  # type: ignore[arg-type]
    log.start_at(applied_index)
    return log


def delete_to(log: LedgerLog, index: Index) -> Deletion:
    """Delete the files that end by an entry, as far as they have expired; return what was done."""
    deletion = log.plan_deletion(index)
    assert deletion is not None
    assert deletion.write_start()
    assert deletion.forget()
    deletion.remove()
    return deletion


def put(log: LedgerLog, lo: int, hi: int, *, term: int = 1, **how: object) -> int:
    """Append the records [lo, hi) as a leader does; return the entry's index."""
    prepared = log.prepare(batch(lo, hi, **how))
    index = log.last_index + 1
    log.append(index, term, EntryKind.DATA, prepared)
    assert prepared.result is not None
    assert prepared.result.entry_index == index
    return index


def append_request(
    leader: LedgerLog, lo: int, hi: int, configurations: tuple[ConfigurationAt, ...] = ()
) -> AppendRequest:
    """What a leader says of its entries [lo, hi)."""
    ledger = leader.store.ledger
    runs: list[TermRun] = []
    for index in range(lo, hi):
        if not runs or runs[-1][1] != ledger.term_at(index):
            runs.append((index, ledger.term_at(index)))
    return AppendRequest(
        CLUSTER, 1, 2, 99, lo - 1, ledger.term_at(lo - 1), hi, tuple(runs), -1, 0, configurations, 0
    )


def ship(leader: LedgerLog, follower: LedgerLog, lo: int, hi: int) -> None:
    raw = leader.read_raw(lo, hi)
    all_configurations = leader.load().configurations
    configurations = tuple(at for at in all_configurations if lo <= at.index < hi)
    message = append_request(leader, lo, hi, configurations)
    follower.write_raw(lo, hi, follower.check_raw(message, raw))


def queue_numbers(log: LedgerLog, queue_id: int = 0) -> list[int]:
    result = log.store.reads.pull("orders", queue_id, 0, max_count=1000, max_size_bytes=1 << 24)
    return numbers(result.data)


def data_image(log: LedgerLog) -> dict[str, bytes]:
    """The ledger's files by name. One that is being made may vanish, and holds nothing yet."""
    top = Path(log.store.ledger.files.directory)
    made = [path for path in sorted(top.iterdir()) if path.suffix != TEMPORARY_SUFFIX]
    return {path.name: path.read_bytes() for path in made}
