"""Counters of the broker, and the levels of its bounded resources.

Owns one immutable status for metrics, health checks and the command line.
"""

from dataclasses import dataclass

from node.broker.append.sizes import AppendedSizes
from node.broker.delay.stats import DelayStats
from node.broker.pop.pop import PopStats
from node.config.limits import Limits


@dataclass(frozen=True, slots=True)
class BrokerStats:
    """Counters (`_total`) since the start of the process, and levels at this moment."""

    limits: Limits
    batch_size_bytes_max: int
    """Largest batch a client may send."""
    is_draining: bool

    batches_total: int
    """Acknowledged appends, duplicates not counted; their records and bytes follow."""
    records_total: int
    records_size_bytes_total: int
    duplicates_total: int
    """Appends that were in the log already and got the first receipt again."""
    failed_total: int
    busy_total: int
    timeouts_total: int
    in_flight_count: int
    in_flight_size_bytes: int
    parked_append_count: int
    parked_append_size_bytes: int

    pulls_total: int
    pulled_records_total: int
    pulled_size_bytes_total: int
    barriers_total: int
    """Linearizable reads, each a round to a quorum."""
    waiting_reader_count: int
    waiting_read_count: int
    woken_total: int
    tail_count: int

    commands_total: int
    command_entries_total: int
    command_count: int
    own_append_count: int
    """Entries that the broker writes on its own, under way."""
    own_entries_total: int
    retried_total: int
    """Messages that consumers gave back and that are delivered again."""
    dead_letters_total: int
    resent_total: int
    """Dead letters sent again."""
    record_sizes: AppendedSizes
    """Record sizes of all topics: bucket k counts records below 2**k bytes, by batch mean."""
    open_transaction_count: int
    """Transactions neither committed nor rolled back."""
    transaction_producer_count: int
    """Producers that wait to be asked."""
    transaction_question_size_bytes: int
    """Size of the questions that no producer has taken yet."""
    transaction_checks_total: int
    given_up_transactions_total: int
    refused_commands_total: int
    """Commands that the replicated state has refused since its beginning: equal on all nodes."""

    topic_count: int
    queue_count: int
    group_count: int
    offset_count: int
    producer_count: int
    group_member_count: int
    pop: PopStats
    delay: DelayStats
