"""The metrics of a node for Prometheus: their names, and the source of each value.

Owns names, types and texts of all metrics; docs/metrics.md is generated from this table. A scrape
reads the values from the stats of the components, so no value is counted twice and a metric costs
nothing between two scrapes. Must not know HTTP.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from node.broker.append.sizes import AppendedSizes
from node.broker.stats import BrokerStats
from node.nameserver.replica.status import STATES
from node.nameserver.service import NameServerService
from node.peers.handshake import CloseCode
from node.peers.types import LinkStats
from node.replication.contract import Sample
from node.replication.derived_scrub import CareStats
from node.replication.lives import NodeLives
from node.replication.raft.repair import LiveRepairStats
from node.replication.scrub import ScrubStats
from node.services.calls import CallCounters
from raft.pump.replica import ReplicaStats
from store.stats import LatencyStats, StoreStats


class Spec(NamedTuple):
    """One metric. A counter is shown with `_total` behind its name, as Prometheus demands."""

    kind: str
    text: str
    labels: tuple[str, ...] = ()


PREFIX: Final = "quorumlog_"

METRICS: Final[Mapping[str, Spec]] = {
    "node": Spec("gauge", "1, with what the node is.",
                 ("node_id", "cluster_id", "group", "version")),
    "ready": Spec("gauge", "1 when the node serves: see /ready."),
    "uptime_seconds": Spec("gauge", "Since the process started."),
    "tls_expiry_timestamp_seconds": Spec("gauge", "When the first certificate of a file ends.",
                                         ("file",)),
    "role": Spec("gauge", "1 for the role the node has, 0 for the others.", ("role",)),
    "divergent_peers": Spec("gauge", "Nodes whose committed log contradicts this one's."),
    "old_copies": Spec("gauge", "Nodes that began with an old copy of their disk, as seen here."),
    "old_copy_refusals": Spec("counter", "Connections refused to such nodes."),
    "old_copy_memories_dropped": Spec("counter", "Times that a peer told of one more life of a "
                                      "node than are kept apart (8): it is not compared here."),
    "state_fenced": Spec("gauge", "1 while the state is not a majority's: nothing is served."),
    "state_checks_equal": Spec("counter", "Digests of the state equal to that of a majority."),
    "state_checks_differing": Spec("counter", "Digests of the state that differed from it."),
    "state_checks_undecided": Spec("counter", "Leader only: states differ, no majority agrees."),
    "state_checks_passed_over": Spec("counter", "Digests not compared: no time, another build."),
    "state_digest_seconds": Spec("gauge", "Time that the last digest of the state took."),
    "standing": Spec("gauge", "1 for the standing the node has, 0 for others: counts only if full.",
                     ("standing",)),
    "term": Spec("gauge", "Newest Raft term this node knows."),
    "leader_id": Spec("gauge", "Node that leads, 0 when unknown."),
    "first_index": Spec("gauge", "First entry that is kept."),
    "last_index": Spec("gauge", "Last entry in the log, committed or not."),
    "durable_index": Spec("gauge", "Last entry that counts as durable here."),
    "commit_index": Spec("gauge", "Last entry known to be committed."),
    "applied_index": Spec("gauge", "Last entry that readers here see."),
    "uncommitted_entries": Spec("gauge", "Entries above the commit index."),
    "waiting_appends": Spec("gauge", "Appends whose caller waits for the commit."),
    "waiting_reads": Spec("gauge", "Linearizable reads that wait for a quorum."),
    "held_messages": Spec("gauge", "Answers to peers that wait for a sync."),
    "held_messages_dropped": Spec("counter", "Answers to peers dropped over the limit."),
    "appends_without_room": Spec("counter", "Appends of the leader dropped: no room on the disk."),
    "apply_retries": Spec("counter", "Committed entries not shown: no room for queues."),
    "follower_match_index": Spec("gauge", "Leader only: last entry a node has.", ("node_id",)),
    "follower_in_flight_bytes": Spec("gauge", "Leader only: sent, not acked.", ("node_id",)),
    "peer_connected": Spec("gauge", "1 when the link to a peer is up.", ("node_id",)),
    "peer_sent_bytes": Spec("counter", "Bytes of frames sent to a peer.", ("node_id",)),
    "peer_received_bytes": Spec("counter", "Bytes of frames received of a peer.", ("node_id",)),
    "peer_queued_bytes": Spec("gauge", "Bytes that wait for a peer's socket.", ("node_id",)),
    "peer_dropped_frames": Spec("counter", "Frames dropped: link down, or full.", ("node_id",)),
    "peer_closed": Spec("counter", "Peer connections that ended, by reason.", ("code",)),
    "calls": Spec("counter", "Calls that began, over gRPC and in frames.", ("method",)),
    "calls_failed": Spec("counter", "Calls, and appends of a stream, that failed.",
                         ("method", "code")),
    "calls_open": Spec("gauge", "Calls that are being served."),
    "framed_connections": Spec("gauge", "Connections to the framed port."),
    "framed_connections_limit": Spec("gauge", "Limit of these: above it new ones are closed."),
    "framed_accept_failures": Spec("counter", "Connections to it that could not be accepted."),
    "framed_calls": Spec("gauge", "Framed calls that are being served."),
    "framed_calls_limit": Spec("gauge", "Limit of these: above it busy."),
    "framed_half_bytes": Spec("gauge", "Of frames that are not whole, or wait for their turn."),
    "framed_half_limit_bytes": Spec("gauge", "Limit of these: above it the largest is closed."),
    "framed_waiting_bytes": Spec("gauge", "Of framed answers that clients do not take."),
    "framed_waiting_limit_bytes": Spec("gauge", "Limit of these: above it answers are dropped."),
    "framed_answers_dropped": Spec("counter", "Framed answers dropped: too many bytes waited."),
    "framed_closed": Spec("counter", "Framed connections that the node closed.", ("reason",)),
    "requests_slow": Spec("gauge", "Requests of clients that take over a second to arrive."),
    "requests_slow_limit": Spec("gauge", "Limit of these: above it the oldest is refused."),
    "request_streams": Spec("gauge", "Streams on which clients send."),
    "request_streams_limit": Spec("gauge", "Limit of these: above it the most silent one ends."),
    "request_half_bytes": Spec("gauge", "Of messages on streams that are not whole."),
    "request_half_limit_bytes": Spec("gauge", "Limit of these: above it silent streams end."),
    "requests_given_up": Spec("counter", "Calls ended for what did not come.", ("reason",)),
    "responses_waiting_bytes": Spec("gauge", "Of large responses that clients have not taken."),
    "responses_waiting_limit_bytes": Spec("gauge", "Limit of these: above it busy."),
    "responses_cut": Spec("counter", "Connections closed for a response that was not read."),
    "responses_dropped": Spec("counter", "Responses dropped, since too many bytes waited."),
    "log_lines_left_out": Spec("counter", "Log lines of others above 50 in 10 s.", ("component",)),
    "http_connections": Spec("gauge", "Connections to this port."),
    "http_connections_limit": Spec("gauge", "Limit of these: above it the oldest is closed."),
    "http_closed": Spec("counter", "Connections to this port that the node closed.", ("reason",)),
    "rocketmq_clients": Spec("gauge", "Clients of the RocketMQ protocol that spoke lately."),
    "rocketmq_clients_limit": Spec("gauge", "Limit of these: the one silent for longest goes."),
    "rocketmq_streams": Spec("gauge", "Of these: those that can be told something."),
    "rocketmq_forwarded": Spec("counter", "Calls of that protocol sent on to a leader."),
    "rocketmq_renewed": Spec("gauge", "Messages of push consumers kept invisible."),
    "rocketmq_renewed_limit": Spec("gauge", "Limit of these: more are handed out again."),
    "rocketmq_not_renewed": Spec("counter", "Messages that could not be kept invisible."),
    "rocketmq_question_bytes": Spec("gauge", "Of such questions that wait for clients."),
    "rocketmq_question_limit_bytes": Spec("gauge", "Limit of these: above it none is asked."),
    "rocketmq_checks_asked": Spec("counter", "Producers asked what became of a transaction."),
    "acked_records": Spec("counter", "Records acknowledged to clients by this node."),
    "acked_bytes": Spec("counter", "Bytes of these records."),
    "append_duplicates": Spec("counter", "Appends that were in the log already."),
    "append_busy": Spec("counter", "Appends refused because too many are under way."),
    "append_timeouts": Spec("counter", "Appends not decided in time: outcome unknown."),
    "in_flight_bytes": Spec("gauge", "Of appends taken in and not yet decided."),
    "in_flight_limit_bytes": Spec("gauge", "Limit of these: above it callers wait."),
    "parked_append_bytes": Spec("gauge", "Of appends that wait for room."),
    "retried_messages": Spec("counter", "Messages given back that go to their group again."),
    "dead_letters": Spec("counter", "Messages that became dead letters."),
    "resent_dead_letters": Spec("counter", "Dead letters sent again to their topics."),
    "pulls": Spec("counter", "Pulls answered by this node."),
    "pulled_records": Spec("counter", "Records given to clients."),
    "pulled_bytes": Spec("counter", "Bytes of these records."),
    "waiting_readers": Spec("gauge", "Pulls and tails that wait for a message."),
    "topics": Spec("gauge", "Topics of the cluster."),
    "groups": Spec("gauge", "Consumer groups of the cluster."),
    "open_transactions": Spec("gauge", "Neither committed nor rolled back, of the cluster."),
    "open_transactions_limit": Spec("gauge", "Limit of these: above it refused."),
    "transaction_producers": Spec("gauge", "Leader only: producers that wait to be asked."),
    "transaction_question_bytes": Spec("gauge", "Leader only: of questions not taken yet."),
    "transaction_question_limit_bytes": Spec("gauge", "Limit of these: above it none is asked."),
    "transaction_checks": Spec("counter", "Questions to producers what became of one."),
    "transactions_given_up": Spec("counter", "Ended without an answer, or too old."),
    "delayed_messages": Spec("gauge", "Held until they are due, of the cluster."),
    "delayed_messages_limit": Spec("gauge", "Limit of these: above it refused."),
    "undeliverable_messages": Spec("counter", "Delayed ones whose topic was gone, of the cluster."),
    "delayed_delivered": Spec("counter", "Delayed messages that this leader delivered."),
    "delayed_lateness_seconds": Spec("counter", "Of these: time since each was due, added up."),
    "delayed_cancelled": Spec("counter", "Delayed messages that were cancelled here."),
    "delayed_failed": Spec("counter", "Deliveries that were written again, for want of room."),
    "delayed_missing": Spec("counter", "Held messages that the log has lost: damage."),
    "pop_receives": Spec("counter", "Calls for messages by pop."),
    "pop_delivered": Spec("counter", "Messages handed out by pop."),
    "pop_redelivered": Spec("counter", "Of these: those that were handed out before."),
    "pop_acked": Spec("counter", "Messages acknowledged by pop."),
    "pop_stale_handles": Spec("counter", "Receipt handles that came too late."),
    "pop_dead_letters": Spec("counter", "Messages handed out too often, or given up."),
    "pop_full_queues": Spec("counter", "Looks at a queue with too much in flight."),
    "pop_held_queues": Spec("gauge", "Leader only: passed over, as what they have is damaged."),
    "pop_held": Spec("counter", "How often a queue was held for a second for that."),
    "pop_in_flight": Spec("gauge", "Handed out and not acknowledged, of the cluster."),
    "pop_in_flight_limit": Spec("gauge", "Limit of these: above it nothing new is handed out."),
    "pop_waiting_receives": Spec("gauge", "Leader only: receives that wait for a message."),
    "group_members": Spec("gauge", "Leader only: consumers that said they are alive."),
    "append_seconds": Spec("histogram", "From the call of the store to bytes in the page cache."),
    "record_bytes": Spec("histogram", "Sizes of acked records, by the mean of their batch."),
    "sync_seconds": Spec("histogram", "Duration of a sync of the log."),
    "sync_running_seconds": Spec("gauge", "How long the sync that runs has been running."),
    "unsynced_bytes": Spec("gauge", "Bytes written and not yet synced."),
    "log_first_position": Spec("gauge", "First byte of the log that is kept."),
    "log_end_position": Spec("gauge", "Where the next entry goes."),
    "log_files": Spec("gauge", "Files of the log."),
    "log_files_deleted": Spec("counter", "Files deleted by retention."),
    "log_files_deleted_for_room": Spec("counter", "Of these: not expired (delete_when_full)."),
    "disk_used_ratio": Spec("gauge", "Use of the disk of the log, 0 to 1, as `df` counts it."),
    "store_full": Spec("counter", "Appends refused because the disk is full."),
    "repairs_waiting": Spec("gauge", "Damaged places that are being repaired from peers."),
    "repaired_entries": Spec("counter", "Entries of the log that were put right from peers."),
    "scrub_interval_seconds": Spec("gauge", "Within it all full files are read again; 0: never."),
    "scrub_read_bytes": Spec("counter", "Bytes of full files that were read and checked again."),
    "scrub_passes": Spec("counter", "Times that this came from the first file to the last."),
    "scrub_damage": Spec("counter", "Damaged places of the log that passes found, of any kind."),
    "scrub_index_mended": Spec("counter", "Places where the log's index was put right."),
    "scrub_compared": Spec("counter", "Ends of files that are the same on another node."),
    "derived_read_bytes": Spec("counter", "Bytes compared with queues and key index in passes."),
    "derived_passes": Spec("counter", "Times that all of them were compared with the log."),
    "derived_damage": Spec("counter", "Blocks of queues and key index that were damaged."),
    "derived_mended_units": Spec("counter", "Units of queues that were put right from the log."),
    "derived_mended_keys": Spec("counter", "Entries and slots of the key index, likewise."),
    "derived_waiting": Spec("gauge", "Damaged places in them that are being put right."),
    "derived_given_up": Spec("counter", "Damaged places that could not be put right for now."),
    "inner_batch_records": Spec("counter", "Records of RocketMQ's topics of inner batches."),
    "inner_batch_topics": Spec("gauge", "Such topics: kept, and not readable here."),
    "scrub_differing": Spec("counter", "Ends of files that are not: replicas have come apart."),
    "ha_waiting_appends_limit": Spec("gauge", "Appends that may wait for copies: above it busy."),
    "ha_window_bytes": Spec("gauge", "Limit of bytes sent to a slave and not yet acked."),
    "ha_in_sync_replicas": Spec("gauge", "Master only: replicas with all that readers see."),
    "ha_copies": Spec("gauge", "How many a sync master needs of these."),
    "ha_slave_lag_bytes": Spec("gauge", "Master only: what a slave has not synced.", ("node_id",)),
    "ha_cuts": Spec("counter", "Times that the end of this log was cut off and set aside."),
    "ha_cut_bytes": Spec("counter", "Bytes of these."),
    "ha_bindings_refused": Spec("counter", "Epochs refused: this node is bound otherwise."),
    "ha_promises_refused": Spec("counter", "Epoch numbers that somebody else had already."),
    "ha_violations": Spec("counter", "Frames that could not be meant; the link was closed."),
    "ha_epoch_jumps": Spec("counter", "Epochs refused, since no promotions explain them."),
    "ha_advice_refused": Spec("counter", "Proposals of a controller that were impossible."),
    "ha_waits_for_room": Spec("counter", "Transfers that waited for room on this disk."),
    "ha_images_failed": Spec("counter", "Images of the state that could not be made here."),
    "ha_apply_retries": Spec("counter", "Decided batches not shown: no room for queues."),
    "ha_losses": Spec("gauge", "Losses known here, at most the newest hundred: qlog ha status."),
    "nameserver_up": Spec("gauge", "1 when this node's replica of the name server runs."),
    "nameserver_state": Spec("gauge", "1 for the state of that replica, 0 for the others.",
                             ("state",)),
    "nameserver_commit_index": Spec("gauge", "Last entry committed, as far as it knows."),
    "nameserver_journal_bytes": Spec("gauge", "Of its journal; compacted at 8 MiB."),
    "nameserver_directory_bytes": Spec("gauge", "Topics and values, as its limit counts them."),
    "nameserver_directory_limit_bytes": Spec("gauge", "Limit of these: above it refused."),
    "nameserver_in_flight": Spec("gauge", "Commands that wait for an answer, at most 256."),
    "nameserver_refused_connections": Spec("counter", "Closed because of what they sent."),
    "nameserver_old_copies": Spec("gauge", "Replicas that are connected and began with an old copy "
                                  "of their directory: they count for nothing."),
    "nameserver_old_copy_memories_dropped": Spec("counter", "The same of replicas as "
                                                 "old_copy_memories_dropped of nodes."),
    "nameserver_restarts": Spec("counter", "Times that replica was started again after a fault."),
    "nameserver_registered": Spec("gauge", "1 when the directory knows this node as it is."),
    "nameserver_refused_reports": Spec("counter", "Reports about brokers that were not believed.",
                                       ("reason",)),
    "nameserver_new_groups": Spec("counter", "Broker groups that came to the directory."),
    "nameserver_new_addresses": Spec("counter", "Brokers in it at an address that was new."),
    "nameserver_group_problem": Spec("gauge", "1 when a group can elect no master, or has had no "
                                     "master for 15 s: qlog nameserver status.", ("group",)),
    "store_warnings": Spec("gauge", "Things an operator should look at: see /status."),
}  # fmt: skip

Source = Callable[[], Iterable[Sample]]
Histograms = Mapping[str, LatencyStats | AppendedSizes]


class NodeCollector(Collector):
    """Collects the samples of all sources into families; each name must be in METRICS."""

    def __init__(self, samples: Source, histograms: Callable[[], Histograms]) -> None:
        self._samples, self._histograms = samples, histograms

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the table, also a metric without a sample."""
        families: dict[str, Metric] = {name: _family(name, spec) for name, spec in METRICS.items()}
        for name, labels, value in self._samples():
            families[name].add_metric(labels, value)  # type: ignore[attr-defined]
        for name, found in self._histograms().items():
            buckets, total = _sizes(found) if isinstance(found, AppendedSizes) else _buckets(found)
            families[name].add_metric((), buckets, total)  # type: ignore[attr-defined]
        yield from families.values()

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values, so that registration reads none."""
        for name, spec in METRICS.items():
            yield _family(name, spec)


def _family(name: str, spec: Spec) -> Metric:
    full = PREFIX + name
    match spec.kind:
        case "counter":
            return CounterMetricFamily(full, spec.text, labels=spec.labels)
        case "histogram":
            return HistogramMetricFamily(full, spec.text, labels=spec.labels)
        case kind:
            assert kind == "gauge", f"{name} is a {kind}"
            return GaugeMetricFamily(full, spec.text, labels=spec.labels)


def _buckets(latencies: LatencyStats) -> tuple[list[tuple[str, float]], float]:
    """Return cumulative buckets and the sum, in s. Our bucket k counts times below 2**k us."""
    seen, buckets = 0, []
    for k, count in enumerate(latencies.counts[:-1]):
        seen += count
        if k >= 3:  # Buckets below 8 us are of no use.
            buckets.append((f"{(1 << k) / 1e6:g}", float(seen)))
    buckets.append(("+Inf", float(latencies.count)))
    return buckets, latencies.total_us / 1e6


def _sizes(sizes: AppendedSizes) -> tuple[list[tuple[str, float]], float]:
    """Return cumulative buckets and the sum, in bytes. Our bucket k counts sizes below 2**k."""
    seen, buckets = 0, []
    for k, count in enumerate(sizes.buckets[:-1]):
        seen += count
        if k >= 7:  # The smallest record has 91 bytes.
            buckets.append((f"{(1 << k) - 1}", float(seen)))
    buckets.append(("+Inf", float(sizes.record_count)))
    return buckets, float(sizes.size_bytes)


# --- The source of each value ---


def replica_samples(stats: ReplicaStats) -> Iterator[Sample]:
    """Yield the samples of the pump and the core that only Raft mode has."""
    raft = stats.raft
    yield "divergent_peers", (), len(raft.divergent_peers)
    yield "uncommitted_entries", (), raft.uncommitted_entry_count
    yield "waiting_appends", (), stats.waiter_count
    yield "waiting_reads", (), raft.read_count
    yield "held_messages", (), stats.held_message_count
    yield "held_messages_dropped", (), stats.held_messages_dropped
    for row in raft.progress:
        yield "follower_match_index", (str(row.node),), row.match
        yield "follower_in_flight_bytes", (str(row.node),), row.in_flight_size_bytes


def lives_samples(lives: NodeLives) -> Iterator[Sample]:
    """Yield the samples of old copies of disks."""
    yield "old_copies", (), len(lives.refused)
    yield "old_copy_refusals", (), lives.refused_count
    yield "old_copy_memories_dropped", (), lives.dropped_memory_count


def link_samples(stats: LinkStats) -> Iterator[Sample]:
    """Yield the samples of the peer link."""
    for peer in stats.peers:
        label = (str(peer.node),)
        yield "peer_connected", label, float(peer.is_connected)
        yield "peer_sent_bytes", label, peer.sent_size_bytes
        yield "peer_received_bytes", label, peer.received_size_bytes
        yield "peer_queued_bytes", label, peer.queued_size_bytes
        dropped = peer.dropped_full_count + peer.dropped_unconnected_count
        yield "peer_dropped_frames", label, dropped
    # The counter of an alert exists from the start, or the alert would miss the first increase.
    for code, count in {str(CloseCode.TERM_JUMP): 0, **stats.closed_counts}.items():
        yield "peer_closed", (code,), count


def call_samples(counters: CallCounters) -> Iterator[Sample]:
    """Yield the samples of the gRPC services."""
    for method, count in counters.begun.items():
        yield "calls", (method,), count
    for (method, code), count in counters.failed.items():
        yield "calls_failed", (method, code), count
    yield "calls_open", (), counters.open_count


def broker_samples(stats: BrokerStats) -> Iterator[Sample]:
    """Yield the samples of the broker."""
    yield "acked_records", (), stats.records_total
    yield "acked_bytes", (), stats.records_size_bytes_total
    yield "append_duplicates", (), stats.duplicates_total
    yield "append_busy", (), stats.busy_total
    yield "append_timeouts", (), stats.timeouts_total
    yield "in_flight_bytes", (), stats.in_flight_size_bytes
    yield "in_flight_limit_bytes", (), stats.limits.in_flight_size_bytes_max
    yield "parked_append_bytes", (), stats.parked_append_size_bytes
    yield "retried_messages", (), stats.retried_total
    yield "dead_letters", (), stats.dead_letters_total
    yield "resent_dead_letters", (), stats.resent_total
    yield "pulls", (), stats.pulls_total
    yield "pulled_records", (), stats.pulled_records_total
    yield "pulled_bytes", (), stats.pulled_size_bytes_total
    yield "waiting_readers", (), stats.waiting_reader_count
    yield "topics", (), stats.topic_count
    yield "groups", (), stats.group_count
    yield "open_transactions", (), stats.open_transaction_count
    yield "open_transactions_limit", (), stats.limits.open_transaction_count_max
    yield "transaction_producers", (), stats.transaction_producer_count
    question_limit_bytes = stats.limits.transaction_question_size_bytes_max
    yield "transaction_question_bytes", (), stats.transaction_question_size_bytes
    yield "transaction_question_limit_bytes", (), question_limit_bytes
    yield "transaction_checks", (), stats.transaction_checks_total
    yield "transactions_given_up", (), stats.given_up_transactions_total
    delay = stats.delay
    yield "delayed_messages", (), delay.held_count
    yield "delayed_messages_limit", (), stats.limits.delayed_count_max
    yield "undeliverable_messages", (), delay.undeliverable_count
    yield "delayed_delivered", (), delay.delivered_total
    yield "delayed_lateness_seconds", (), delay.lateness_ms_total / 1000
    yield "delayed_cancelled", (), delay.cancelled_total
    yield "delayed_failed", (), delay.failed_total
    yield "delayed_missing", (), delay.missing_total
    pop = stats.pop
    yield "pop_receives", (), pop.receives_total
    yield "pop_delivered", (), pop.delivered_total
    yield "pop_redelivered", (), pop.redelivered_total
    yield "pop_acked", (), pop.acked_total
    yield "pop_stale_handles", (), pop.stale_total
    yield "pop_dead_letters", (), pop.dead_total
    yield "pop_full_queues", (), pop.full_total
    yield "pop_held_queues", (), pop.held_count
    yield "pop_held", (), pop.held_total
    yield "pop_in_flight", (), pop.in_flight_count
    yield "pop_in_flight_limit", (), stats.limits.pop_in_flight_count_max
    yield "pop_waiting_receives", (), pop.parked_count
    yield "group_members", (), stats.group_member_count


def repair_samples(stats: LiveRepairStats) -> Iterator[Sample]:
    """Yield the samples of repairs while the node runs."""
    yield "repairs_waiting", (), stats.waiting_count
    yield "repaired_entries", (), stats.repaired_entry_count


def scrub_samples(stats: ScrubStats, derived: CareStats) -> Iterator[Sample]:
    """Yield the samples of the passes that look for damage. The pass over derived files reads the
    log as well, and the pass that finds damage first has it repaired before the other sees it."""
    yield "scrub_read_bytes", (), stats.read_size_bytes
    yield "scrub_passes", (), stats.pass_count
    yield "scrub_damage", (), stats.damage_count + derived.log_damage_count
    yield "scrub_index_mended", (), stats.mended_unit_runs
    yield "scrub_compared", (), stats.compared_count
    yield "scrub_differing", (), stats.differing_count


def derived_samples(stats: CareStats) -> Iterator[Sample]:
    """Yield the samples of the passes that compare queues and key index with the log."""
    yield "derived_read_bytes", (), stats.read_size_bytes
    yield "derived_passes", (), stats.pass_count
    yield "derived_waiting", (), stats.waiting_count
    yield "derived_given_up", (), stats.given_up_count


def nameserver_samples(service: NameServerService) -> Iterator[Sample]:
    """Yield the samples of the name server; without a replica only those of registration."""
    status, registration = service.status(), service.registration
    if registration is not None:
        yield "nameserver_registered", (), float(not registration.problem)
    if status is None:
        return
    yield "nameserver_up", (), float(status.state not in ("stopped", "failed"))
    for state in STATES:
        yield "nameserver_state", (state,), float(state == status.state)
    yield "nameserver_commit_index", (), status.commit_index
    yield "nameserver_journal_bytes", (), status.journal_size_bytes
    yield "nameserver_directory_bytes", (), status.directory_size_bytes
    yield "nameserver_directory_limit_bytes", (), status.directory_size_bytes_max
    yield "nameserver_in_flight", (), status.in_flight_count
    yield "nameserver_refused_connections", (), status.refused_count
    yield "nameserver_old_copies", (), status.old_copy_count
    yield "nameserver_old_copy_memories_dropped", (), status.dropped_memory_count
    yield "nameserver_restarts", (), service.restart_count
    for reason, count in service.report_judge.refused_counts.items():
        yield "nameserver_refused_reports", (reason,), count
    watch = service.watch
    yield "nameserver_new_groups", (), watch.new_group_count
    yield "nameserver_new_addresses", (), watch.new_address_count
    for group in watch.groups:
        yield "nameserver_group_problem", (group,), float(group in watch.problems)


def store_samples(stats: StoreStats) -> Iterator[Sample]:
    """Yield the samples of the store."""
    gauges, counters = stats.gauges, stats.counters
    yield "sync_running_seconds", (), gauges.sync_running_ms / 1000
    yield "unsynced_bytes", (), stats.bytes_to_flush
    yield "log_first_position", (), gauges.min_position
    yield "log_end_position", (), gauges.wrote_position
    yield "log_files", (), gauges.file_count
    yield "log_files_deleted", (), counters["deleted_file_count"]
    yield "log_files_deleted_for_room", (), counters["deleted_for_room_count"]
    yield "disk_used_ratio", (), gauges.disk_used_ratio
    yield "store_full", (), counters["store_full_count"]
    yield "inner_batch_records", (), counters["inner_batch_count"]
    yield "inner_batch_topics", (), gauges.inner_batch_topic_count
    yield "derived_damage", (), counters["derived_damage_count"]
    yield "derived_mended_units", (), counters["derived_mended_unit_count"]
    yield "derived_mended_keys", (), counters["derived_mended_key_count"]


def page() -> str:
    """Return docs/metrics.md: `python -m node.monitoring.metrics > docs/metrics.md`."""
    lines = [
        "# Metrics",
        "",
        "Generated by `python -m node.monitoring.metrics > docs/metrics.md`; do not edit. A node",
        "shows these at `/metrics` of `http_listen`. Values are those of the node that is asked.",
        "",
        "| name | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    for name, spec in METRICS.items():
        shown = PREFIX + name + ("_total" if spec.kind == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in spec.labels)
        lines.append(f"| `{shown}` | {spec.kind} | {labels} | {spec.text} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(page(), end="")
