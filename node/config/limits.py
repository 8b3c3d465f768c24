"""Every limit of the broker: what it bounds, its default, and why this number.

Owns the numbers and nothing else. They are exported with the broker's stats, so that a person sees
how full each bounded thing is. Those marked `Replicated:` decide what a command does to the
replicated state, so they must be equal on all nodes of a cluster and change with a release only;
tests use small ones.
"""

from dataclasses import dataclass, fields
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

COMMAND_SIZE_BYTES_MAX: Final = 256
"""Room that a batch leaves for the record that names its producer: about 150 bytes with IPv6."""

DEAD_LETTER_SIZE_BYTES_MAX: Final = 1_536
"""Room that a batch leaves for what makes a dead letter of its message: two commands and three
properties with names of groups and topics, which are 1,100 bytes where these are longest."""


LARGE_RECORD_SIZE_BYTES: Final = 16 * KIB
"""After a larger record whoever reads one of each queue lets others have their turn: reading 4 MiB
takes some ms."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one node's broker. Frozen; a wrong value raises ValueError by name."""

    # --- Appends ---
    in_flight_size_bytes_max: int = 64 * MIB
    """Batches handed to the log and not yet decided. A third of a second at 200 MB/s; also what an
    election may leave to decide. Above it callers wait, first come first served. The broker's own
    entries may have as many bytes; above it `node.busy`."""
    in_flight_count_max: int = 16_384
    """The same in batches: single messages of many clients."""
    parked_append_size_bytes_max: int = 64 * MIB
    """Batches that wait for room. Above it `node.busy` at once: memory is bounded."""
    parked_append_count_max: int = 16_384
    """The same in batches."""
    append_timeout_ms: int = 10_000
    """How long a caller waits for its receipt, if it does not say; a caller may not wait longer.
    Ten elections: whoever is not answered then has a cluster without a quorum."""

    # --- Commands: topics, offsets, members ---
    command_count_max: int = 16_384
    """Commands submitted and not yet decided. Above it `node.busy`."""
    command_entry_size_bytes_max: int = 256 * KIB
    """Commands of one loop turn that share one entry. Small beside a batch of messages."""

    own_append_count_max: int = 4_096
    """Entries that the broker writes by itself (deliveries, retries, ends of transactions), written
    and not yet decided. Above it whoever asked for one gets `node.busy`."""

    # --- The replicated state ---
    topic_count_max: int = 10_000
    """Replicated: topics. A name costs 200 bytes here, and each written queue a directory."""
    queue_count_max: int = 1_024
    """Replicated: queues of one topic. RocketMQ's largest common topic has as many."""
    queue_total_count_max: int = 65_536
    """Replicated: queues of all topics; each written one is a directory with files."""
    group_count_max: int = 10_000
    """Replicated: consumer groups."""
    group_offset_count_max: int = 10_240
    """Replicated: offsets one group may hold: ten of the widest topics."""
    offset_count_max: int = 200_000
    """Replicated: offsets of all groups: a checkpoint of about 10 MB."""
    producer_count_max: int = 10_000
    """Replicated: producers whose past is known; beyond it the one silent for longest is forgotten,
    by its last batch in the log. 64 positions each: a checkpoint of about 10 MB."""
    producer_window_count: int = 64
    """Replicated: batches per producer whose receipt can be given again. Producers keep at most
    this many in flight."""
    producer_name_count_max: int = 10_000
    """Replicated: names of producers. One is never forgotten: whoever had it must stay fenced."""
    member_count_max: int = 64
    """Replicated: nodes whose address is known. Far more than voters and learners."""

    # --- Settings of groups, retries and dead letters ---
    retry_count_max: int = 10_000
    """Replicated: deliveries of one message that a group may ask for. 16 is usual."""
    retry_delay_count_max: int = 64
    """Replicated: pauses of a group's own table."""
    retry_delay_ms_max: int = 259_200_000
    """Replicated: the longest pause before a delivery: three days, as of any delayed message."""
    forbidden_topic_count_max: int = 256
    """Replicated: topics that one group may not read."""
    resent_range_count_max: int = 4_096
    """Replicated: runs of dead letters of one group that were sent again and have not expired."""
    deleted_group_count_max: int = 10_000
    """Replicated: groups that had dead letters when they were deleted, remembered so that a new one
    of the name does not get these. Beyond it the one deleted first is forgotten."""
    retry_batch_count_max: int = 256
    """Messages of one call that are tried again, or of dead letters that are sent again."""

    # --- Transactions ---
    open_transaction_count_max: int = 20_000
    """Replicated: transactions that are neither committed nor rolled back. 200 bytes each here, and
    a checkpoint of about 2 MB; RocketMQ has no limit, and walks a queue of them."""
    transaction_record_count_max: int = 4_096
    """Messages of one transaction, each of which is made anew when it is sent and, in portions,
    when it is committed: 25 ms of the loop, then 20. So many of 1 KiB fill an entry."""
    ended_transaction_count_max: int = 20_000
    """Replicated: the last ones that ended, whose outcome can be told again: a checkpoint of about
    1 MB."""
    transaction_check_after_ms: int = 6_000
    """When a producer is asked for the first time, if it does not say: RocketMQ's."""
    transaction_check_interval_ms: int = 30_000
    """Between two questions: RocketMQ's since 5.0."""
    transaction_check_count_max: int = 15
    """Questions without an answer, after which a transaction is given up: RocketMQ's."""
    transaction_age_ms_max: int = 86_400_000
    """A transaction is given up when it is a day old, whoever is there to be asked: a third of the
    usual retention, so that its messages are not deleted before that is said."""
    transaction_producer_count_max: int = 4_096
    """Producers that wait to be asked. Above it `node.busy`."""
    transaction_question_count_max: int = 64
    """Questions that one producer has not taken yet; others of its group are asked meanwhile."""
    transaction_question_size_bytes_max: int = 64 * 1024 * 1024
    """Messages in questions that producers have not taken yet, of all of them; one that takes none
    has an eighth at most. Above it nobody is asked anything more, and nothing counts as asked,
    until some are taken."""
    transaction_list_count_max: int = 1_000
    """Transactions of one list."""

    # --- Pop: messages that were handed out and are not acknowledged ---
    pop_window_count_max: int = 4_096
    """Replicated: messages in flight of one queue for one group, those that wait for their message
    group included. Above it nothing new is handed out: 128 of the largest receives."""
    pop_in_flight_count_max: int = 131_072
    """Replicated: messages in flight of all groups: 100 bytes each, a checkpoint of 10 MB."""
    pop_attempt_count_max: int = 64
    """Replicated: named attempts of one queue that may be repeated: its consumers at one time."""
    pop_receive_count_max: int = 32
    """Messages of one receive, as in RocketMQ; also if the caller does not say."""
    pop_invisible_ms_default: int = 30_000
    """How long a message is invisible, if the caller does not say."""
    pop_invisible_ms_max: int = 43_200_000
    """The longest time a message may be invisible: 12 hours, as in RocketMQ."""
    pop_handle_count_max: int = 1_024
    """Receipt handles of one acknowledgement."""
    pop_waiters_max: int = 16_384
    """Receives parked until there is a message. Above it `node.busy`."""
    pop_attempt_id_size_characters_max: int = 64
    """Characters of the name of an attempt: room for a UUID."""

    # --- Delayed messages ---
    cancelled_delayed_count_max: int = 10_000
    """Replicated: cancels that are remembered, so that one that is repeated gets its answer."""
    delayed_count_max: int = 2_000_000
    """Messages held at once. The leader spends 8 to 20 bytes on each (measured), 60 on those that
    are due within 20 s: 40 MB, at worst 120. Above it `node.delayed_full`."""
    delay_ms_max: int = 259_200_000
    """How far off a delivery may be: RocketMQ's three days. The log is kept that long for it."""
    delivery_count_max: int = 256
    """Messages of one entry that delivers: 3 ms of the loop."""
    delivery_size_bytes_max: int = 1 * MIB
    """The same in bytes, one message at least."""
    delivery_in_flight_count_max: int = 8
    """Entries that deliver, written and not yet decided: 2,000 messages."""

    # --- Topics ---
    queue_count_default: int = 4
    """Queues of a topic that is created without a count: RocketMQ's client default."""

    # --- Reads ---
    pull_count_default: int = 1_024
    """Records of one pull, if the caller does not say."""
    pull_count_max: int = 16_384
    """Records of one pull: bounds the time the loop spends on one caller to a few ms."""
    pull_count_filtered_max: int = 1_024
    """Records that one pull looks at with a property filter, about 5 us each: the same reason."""
    pull_size_bytes_default: int = 256 * KIB
    """Bytes of one pull, if the caller does not say."""
    pull_size_bytes_max: int = 2 * MIB
    """Bytes of one pull; half of gRPC's default message limit."""
    pull_wait_ms_max: int = 30_000
    """How long a pull may be parked: less than what proxies and firewalls let pass in silence."""
    pull_waiters_max: int = 16_384
    """Pulls and tails parked until there is something. Above it `node.busy`."""
    pull_tag_count_max: int = 64
    """Tags of one filter."""
    read_wait_ms_max: int = 5_000
    """How long a read waits for a quorum's confirmation, or until an index is applied."""
    read_waiters_max: int = 4_096
    """Reads that wait so; the Raft core's own limit for confirmations. Above it `node.busy`."""
    tail_idle_ms: int = 15_000
    """A tail without news says so this often, so that a dead client is noticed."""
    query_count_default: int = 32
    """Messages of one query by key, if the caller does not say."""
    query_count_max: int = 256
    """Messages of one query by key."""
    trace_scan_count_max: int = 20_000
    """Records looked through for the trace of a message without a unique key: about 0.2 s."""
    query_size_bytes_max: int = 3 * MIB
    """Bytes of one query's answer, one message at least."""
    queue_offsets_count_max: int = 4_096
    """Queues of one question for offsets, and offsets of one commit: four of the widest topics."""

    # --- Members of consumer groups (known to the leader only) ---
    heartbeat_ms: int = 2_000
    """How often members should speak."""
    session_ms: int = 10_000
    """A member silent for this long is out: five missed heartbeats."""
    group_settle_ms: int = 3_000
    """A new leader knows no members yet: for this long, one and a half heartbeats, it collects them
    before it says who is in a group that is known to exist, lest the first one takes all queues."""
    group_member_count_max: int = 1_024
    """Members of one group: as many as queues of one topic can be shared by."""
    group_member_total_count_max: int = 20_000
    """Members of all groups."""
    member_topic_count_max: int = 256
    """Topics that one member names."""
    name_size_characters_max: int = 127
    """Characters of a group name, as of a topic; twice as many for a client id."""

    def __post_init__(self) -> None:
        wrong = [f.name for f in fields(self) if getattr(self, f.name) < 1]
        if wrong:
            raise ValueError(f"{', '.join(wrong)}: use 1 or more")
        if self.heartbeat_ms >= self.session_ms:
            raise ValueError("session_ms must be longer than heartbeat_ms")
