"""The receipt: the place of a message in the log of a quorum, and the counts of its append."""

from dataclasses import asdict, dataclass
from typing import Any

from quorumlog.records.options import Durability


@dataclass(frozen=True, slots=True)
class AppendStages:
    """Where the time of a batch at the leader went, in microseconds.

    `queued_us`: until there was room for it; `sent_us`: until it was written, and sent to the other
    nodes; `quorum_us`: until enough nodes had it; `applied_us`: until readers saw it and the
    receipt left. Batches that arrive together share their times."""

    queued_us: int
    sent_us: int
    quorum_us: int
    applied_us: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that a message is in the log of a quorum.

    `log_position` is the byte of the log at which its record begins, `index` and `term` name the
    Raft entry that it is part of. `synced_by` are the nodes known to have it. `sent_unix_ms` is
    when its batch was made (by this machine's clock), `store_unix_ms` when the leader stored it,
    `duration_ms` the time from the batch's first message to the receipt, `commit_us` the leader's
    part of that. `is_duplicate`: an earlier attempt of the batch was in the log already.
    `broker_group` has the log: queue, position, index and term are of that one. `due_unix_ms` is
    when a delayed message is delivered, by the leader's clock, 0 for others. Until then it is no
    message of its topic: `queue_offset` is -1, and `message_id` is for `cancel_delayed`.
    `stages` of a producer made `with_stages`; None for a duplicate.
    """

    message_id: str
    topic: str
    queue_id: int
    queue_offset: int
    log_position: int
    index: int
    term: int
    durability: Durability
    synced_by: tuple[int, ...]
    attempts: int
    sent_unix_ms: int
    store_unix_ms: int
    duration_ms: float
    commit_us: int
    is_duplicate: bool
    broker_group: str = ""
    due_unix_ms: int = 0
    stages: AppendStages | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the receipt as plain values under stable names, for JSON."""
        values = asdict(self)
        values["durability"] = self.durability.value
        values["synced_by"] = list(self.synced_by)
        return values
