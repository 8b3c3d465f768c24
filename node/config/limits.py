"""Every limit of the broker: what it bounds, its default, and why this number.

Owns the numbers and nothing else. The broker's stats export them, so that an operator sees how full
each bounded resource is. A limit marked `Replicated:` decides what a command does to the replicated
state, so it must be equal on all nodes of a cluster and changes with a release only; tests use
small limits. `PortLimits` are those of the node's ports.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

EPOCH_END: Final = (1 << 31) - (1 << 16)
"""The typed end: an epoch is below it, since RocketMQ's frames and files hold 32 bits."""

COMMAND_SIZE_BYTES_MAX: Final = 256
"""Room that a batch leaves for the record that names its producer: about 150 bytes with IPv6."""

DEAD_LETTER_SIZE_BYTES_MAX: Final = 1_536
"""Room that a batch leaves for the additions that make its message a dead letter: two commands and
three properties with names of groups and topics, 1,100 bytes with the longest names."""

TEST_VARIABLE: Final = "QUORUMLOG_TEST_PORT_LIMITS"


def check_limits(limits: Any) -> None:
    """Raise ValueError for limits of which one is below 1, by name."""
    wrong = [field.name for field in fields(limits) if getattr(limits, field.name) < 1]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: use 1 or more")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one node's broker. Frozen; a wrong value raises ValueError by name."""

    # --- Appends ---
    in_flight_size_bytes_max: int = 64 * MIB
    """Bytes of batches handed to the log and not yet decided. A third of a second at 200 MB/s; also
    the most that an election may leave undecided. Above it callers wait, first come first served.
    The broker's own entries may have as many bytes; above it `node.busy`."""
    in_flight_count_max: int = 16_384
    """The same as a count of batches: for single messages of many clients."""
    parked_append_size_bytes_max: int = 64 * MIB
    """Bytes of batches that wait for room. Above it `node.busy` at once: memory is bounded."""
    parked_append_count_max: int = 16_384
    """The same as a count of batches."""
    append_timeout_ms: int = 10_000
    """How long a caller waits for its receipt: the default and the maximum. Ten elections: a
    cluster that has not answered by then has no quorum."""

    # --- Commands: topics, offsets, members ---
    command_count_max: int = 16_384
    """Commands submitted and not yet decided. Above it `node.busy`."""
    command_entry_size_bytes_max: int = 256 * KIB
    """Bytes of the commands of one loop turn that share one entry. Small beside a batch of
    messages."""

    own_append_count_max: int = 4_096
    """Entries of the broker itself (deliveries, retries, ends of transactions) that are written and
    not yet decided. Above it the caller that needs one gets `node.busy`."""

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
    """Replicated: producers whose last batches are known; beyond it the producer whose last batch
    is oldest in the log is forgotten. 64 positions each: a checkpoint of about 10 MB."""
    producer_window_count: int = 64
    """Replicated: batches per producer whose receipt can be given again. Producers keep at most
    this many in flight."""
    producer_name_count_max: int = 10_000
    """Replicated: names of producers. A name is never forgotten: its former owner must stay fenced.
    """
    key_value_count_max: int = 10_000
    """Replicated: keys of the configuration of RocketMQ's name server: one for each topic."""
    key_value_size_bytes_max: int = 4 * KIB
    """Replicated: one of these keys with its namespace and value: 128 broker names of an ordered
    topic. A checkpoint of 40 MB at most, of about 1 MB with short ones."""
    member_count_max: int = 64
    """Replicated: nodes whose address is known. Far more than voters and learners."""

    # --- Settings of groups, retries and dead letters ---
    retry_count_max: int = 10_000
    """Replicated: deliveries of one message that a group's settings may ask for. 16 is usual."""
    retry_delay_count_max: int = 64
    """Replicated: pauses of a group's own table."""
    retry_delay_ms_max: int = 259_200_000
    """Replicated: the longest pause before a delivery: three days, as for any delayed message."""
    forbidden_topic_count_max: int = 256
    """Replicated: topics that one group may not read."""
    resent_range_count_max: int = 4_096
    """Replicated: runs of dead letters of one group that were sent again and have not expired."""
    deleted_group_count_max: int = 10_000
    """Replicated: groups that had dead letters when they were deleted, remembered so that a new
    group of the name does not get these. Beyond it the group deleted first is forgotten."""
    retry_batch_count_max: int = 256
    """Messages that one call retries, or dead letters that one call resends."""

    # --- Transactions ---
    open_transaction_count_max: int = 20_000
    """Replicated: transactions that are neither committed nor rolled back. 200 bytes each here, and
    a checkpoint of about 2 MB; RocketMQ has no limit, and walks a queue of them."""
    transaction_record_count_max: int = 4_096
    """Messages of one transaction. The loop encodes each when it is sent (25 ms for all) and again,
    in portions, when it is committed (20 ms). This many messages of 1 KiB fill an entry."""
    ended_transaction_count_max: int = 20_000
    """Replicated: the transactions that ended last, whose outcome can still be asked for: a
    checkpoint of about 1 MB."""
    transaction_check_after_ms: int = 6_000
    """Time until the first question to the producer, if it asks for no other: RocketMQ's default.
    """
    transaction_check_interval_ms: int = 30_000
    """Time between two questions: RocketMQ's default since 5.0."""
    transaction_check_count_max: int = 15
    """Unanswered questions after which a transaction is given up: RocketMQ's default."""
    transaction_age_ms_max: int = 86_400_000
    """Age at which a transaction is given up even if its producer could still be asked: one day, a
    third of the usual retention, so that its messages are not deleted before its end is known."""
    transaction_producer_count_max: int = 8_192
    """Producers that wait for questions. Above it `node.busy`. Each node has 1,000 at most for its
    clients of RocketMQ, so those of seven nodes leave room to others."""
    transaction_question_count_max: int = 64
    """Questions that one producer has not taken yet; the node asks others of its group meanwhile.
    """
    transaction_question_size_bytes_max: int = 64 * 1024 * 1024
    """Bytes of messages in questions that all producers have not taken yet; one producer holds an
    eighth at most. Above it the node asks no more questions, and counts none as asked, until some
    are taken."""
    transaction_list_count_max: int = 1_000
    """Transactions in one answer of a list."""

    # --- Pop: messages that were handed out and are not acknowledged ---
    pop_window_count_max: int = 4_096
    """Replicated: messages in flight of one queue for one group, messages that wait for their
    message group included. Above it no new message is handed out: 128 of the largest receives. One
    address may have half of them."""
    pop_in_flight_count_max: int = 131_072
    """Replicated: messages in flight of all groups: 100 bytes each, a checkpoint of 10 MB."""
    pop_attempt_count_max: int = 64
    """Replicated: named attempts of one queue that may be repeated: one for each of its consumers.
    """
    pop_receive_count_max: int = 32
    """Messages of one receive, as in RocketMQ: the maximum and the default."""
    pop_invisible_ms_default: int = 30_000
    """How long a message is invisible, if the caller gives no time."""
    pop_invisible_ms_max: int = 43_200_000
    """The longest time a message may be invisible: 12 hours, as in RocketMQ."""
    pop_handle_count_max: int = 1_024
    """Receipt handles of one acknowledgement."""
    pop_waiters_max: int = 16_384
    """Receives parked until a message arrives. Above it `node.busy`."""
    pop_attempt_id_size_characters_max: int = 64
    """Characters of the name of an attempt: room for a UUID."""

    # --- Delayed messages ---
    cancelled_delayed_count_max: int = 10_000
    """Replicated: cancels that are remembered, so that a repeated cancel gets its answer."""
    delayed_count_max: int = 2_000_000
    """Messages held at once. The leader spends 8 to 20 bytes on each (measured), 60 if it is due
    within 20 s: 40 MB, at worst 120. Above it `node.delayed_full`."""
    delay_ms_max: int = 259_200_000
    """How far off a delivery may be: RocketMQ's three days. The log is kept that long for it."""
    delivery_count_max: int = 256
    """Delayed messages that one entry delivers: 3 ms of the loop."""
    delivery_size_bytes_max: int = 1 * MIB
    """The same in bytes, one message at least."""
    delivery_in_flight_count_max: int = 8
    """Delivering entries that are written and not yet decided: 2,000 messages."""

    # --- Topics ---
    queue_count_default: int = 4
    """Queues of a topic that is created without a count: RocketMQ's client default."""

    # --- Reads ---
    pull_count_default: int = 1_024
    """Records of one pull, if the caller gives no count."""
    pull_count_max: int = 16_384
    """Records of one pull: bounds the time the loop spends on one caller to a few ms."""
    pull_count_filtered_max: int = 1_024
    """Records that one pull with a property filter examines, about 5 us each: for the same reason.
    """
    pull_test_count_max: int = 8_192
    """Tests that one pull with a property filter makes of all these records, 1 to 4 us each."""
    pull_size_bytes_default: int = 256 * KIB
    """Bytes of one pull, if the caller gives no size."""
    pull_size_bytes_max: int = 2 * MIB
    """Bytes of one pull; half of gRPC's default message limit."""
    pull_wait_ms_max: int = 30_000
    """How long a pull may be parked: less than the idle time-out of proxies and firewalls."""
    pull_waiters_max: int = 16_384
    """Pulls and tails parked until a message arrives. Above it `node.busy`."""
    pull_tag_count_max: int = 64
    """Tags of one filter."""
    read_wait_ms_max: int = 5_000
    """How long a read waits for a quorum's confirmation, or until an index is applied."""
    read_waiters_max: int = 4_096
    """Reads that wait in this way; equal to the Raft core's own limit for confirmations. Above it
    `node.busy`."""
    tail_idle_ms: int = 15_000
    """Interval at which an idle tail sends an empty response, so that a dead client is noticed."""
    query_count_default: int = 32
    """Messages of one query by key, if the caller gives no count."""
    query_count_max: int = 256
    """Messages of one query by key."""
    trace_scan_count_max: int = 20_000
    """Records, or entries of the key index, examined for one trace: about 0.2 s."""
    query_size_bytes_max: int = 3 * MIB
    """Bytes of one query's answer, one message at least."""
    queue_offsets_count_max: int = 4_096
    """Queues of one request for offsets, and offsets of one commit: four of the widest topics."""

    # --- Members of consumer groups (known to the leader only) ---
    heartbeat_ms: int = 2_000
    """Interval of the heartbeats of a member."""
    session_ms: int = 10_000
    """Silence after which a member leaves its group: five missed heartbeats."""
    group_settle_ms: int = 3_000
    """Time that a new leader, which knows no members yet, collects them before it lists the members
    of an existing group: one and a half heartbeats, lest the first member takes all queues."""
    group_member_count_max: int = 1_024
    """Members of one group: one for each queue of the widest topic."""
    member_topic_count_max: int = 256
    """Topics that one member names."""
    name_size_characters_max: int = 127
    """Characters of a group name, as of a topic; twice as many for a client id."""

    def __post_init__(self) -> None:
        check_limits(self)
        if self.heartbeat_ms >= self.session_ms:
            raise ValueError("session_ms must be longer than heartbeat_ms")


@dataclass(frozen=True, slots=True)
class PortLimits:
    """How long a client of a node's ports may take. Frozen; a wrong value raises ValueError."""

    request_ms_max: int = 30_000
    """From the first byte of a call to the last one of its request: 4 MiB at 1.2 Mbit/s."""
    half_ms_max: int = 30_000
    """Time for the message of a stream, as for a request."""
    handshake_ms_max: int = 10_000
    """Time for TLS and the HTTP/2 preface; then a connection that stayed silent is closed."""
    http_ms_max: int = 10_000
    """Time of an HTTP connection to send the request and take the answer: as long as Prometheus
    waits for one."""

    def __post_init__(self) -> None:
        check_limits(self)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "PortLimits":
        """Return the defaults, with what a test sets as a JSON object in TEST_VARIABLE: it does not
        wait for half a minute. A wrong name raises TypeError."""
        return cls(**json.loads(environment.get(TEST_VARIABLE) or "{}"))
