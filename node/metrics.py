"""The metrics of a node for Prometheus: one table for each part of it.

Owns names, types, texts and readers of all metrics but those of a way to replicate, which has its
own tables (`node.replication.raft.metrics`); docs/metrics.md is generated from all of them.
A scrape reads the values from the parts, so no value is counted twice and a metric costs nothing
between two scrapes. Must not know HTTP.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from node.broker import Broker
from node.broker.series.series import GroupSeries, TopicSeries
from node.broker.users.audit import Audit
from node.contract import ReplicaStatus
from node.framed.server import FramedServer
from node.monitoring.http_connections import CONNECTION_COUNT_MAX, HttpConnections
from node.monitoring.metric import PREFIX, Spec, Table, counter, gauge, histogram
from node.nameserver.replica.status import STATES, NameServerStatus
from node.nameserver.service import NameServerService
from node.peers.handshake import CloseCode
from node.peers.types import LinkStats
from node.replication.derived_scrub import CareStats
from node.replication.ha import metrics as ha
from node.replication.lives import NodeLives
from node.replication.raft import metrics as raft
from node.replication.scrub import ScrubStats
from node.rocketmq.clients import QUESTION_SIZE_BYTES_MAX
from node.rocketmq.remoting.service import Remoting
from node.rocketmq.service import RocketMq
from node.runtime.accounts import ANY, Accounts, Kind
from node.runtime.renewal import Renewals
from node.services.bounds.request_watch import SLOW_COUNT_MAX, STREAM_COUNT_MAX
from node.services.calls import CallCounters
from node.services.server import GrpcServer
from node.state.append_times import AppendTimes
from node.state.held import held_counts
from node.state.tables.delay import DelayTable
from node.users.guard import Guard
from store.stats import StoreStats


class NodeFacts(NamedTuple):
    """What a node says of its process."""

    identity: tuple[str, ...]
    """Values of the labels of the metric `node`."""
    is_ready: bool
    uptime_s: float
    tls_ends_unix_s: Mapping[str, int]
    scrub_interval_s: float


class Passes(NamedTuple):
    """Both kinds of passes. The pass over derived files reads the log as well, and the pass that
    finds damage first has it repaired before the other sees it."""

    log: ScrubStats
    derived: CareStats


class NameServerFacts(NamedTuple):
    """A name server with a replica in this process."""

    service: NameServerService
    status: NameServerStatus


NODE: Final[Table[NodeFacts]] = {
    "node": gauge("1, with what the node is.",
        lambda n: {n.identity: 1}, "node_id", "cluster_id", "broker_group", "version"),
    "ready": gauge("1 when the node serves: see /ready.", lambda n: n.is_ready),
    "uptime_seconds": gauge("Since the process started.", lambda n: n.uptime_s),
    "tls_expiry_timestamp_seconds": gauge("When the first certificate of a file ends.",
        lambda n: n.tls_ends_unix_s, "file"),
    "scrub_interval_seconds": gauge("Within it all full files are read again; 0: never.",
        lambda n: n.scrub_interval_s),
}  # fmt: skip
"""Of the process, from its start on."""
REPLICA: Final[Table[ReplicaStatus]] = {
    "role": gauge("1 for the role the node has, 0 for the others.",
        lambda r: {x.name.lower(): x is r.role for x in r.roles}, "role"),
    "standing": gauge("1 for the standing the node has, 0 for others: counts only if full.",
        lambda r: {x.name.lower(): x is r.standing for x in type(r.standing)}, "standing"),
    "term": gauge("Newest Raft term this node knows.", lambda r: r.term),
    "leader_id": gauge("Node that leads, 0 when unknown.", lambda r: r.leader_id),
    "first_index": gauge("First entry that is kept.", lambda r: r.first_index),
    "last_index": gauge("Last entry in the log, committed or not.", lambda r: r.last_index),
    "durable_index": gauge("Last entry that counts as durable here.", lambda r: r.durable_index),
    "commit_index": gauge("Last entry known to be committed.", lambda r: r.commit_index),
    "applied_index": gauge("Last entry that readers here see.", lambda r: r.applied_index),
}  # fmt: skip
"""The place of the replica in its group, in both modes."""
LIVES: Final[Table[NodeLives]] = {
    "old_copies": gauge("Nodes that began with an old copy of their disk, as seen here.",
        lambda v: len(v.refused)),
    "old_copy_refusals": counter("Connections refused to such nodes.", lambda v: v.refused_count),
    "old_copy_memories_dropped": counter("Times that a peer told of one more life of a node than "
                                         "are kept apart (8): it is not compared here.",
        lambda v: v.dropped_memory_count),
}  # fmt: skip
"""Old copies of disks."""
LINK: Final[Table[LinkStats]] = {
    "peer_connected": gauge("1 when the link to a peer is up.",
        lambda k: {str(p.node): p.is_connected for p in k.peers}, "node_id"),
    "peer_sent_bytes": counter("Bytes of frames sent to a peer.",
        lambda k: {str(p.node): p.sent_size_bytes for p in k.peers}, "node_id"),
    "peer_received_bytes": counter("Bytes of frames received of a peer.",
        lambda k: {str(p.node): p.received_size_bytes for p in k.peers}, "node_id"),
    "peer_queued_bytes": gauge("Bytes that wait for a peer's socket.",
        lambda k: {str(p.node): p.queued_size_bytes for p in k.peers}, "node_id"),
    "peer_dropped_frames": counter("Frames dropped: link down, or full.",
        lambda k: {
            str(p.node): p.dropped_full_count + p.dropped_unconnected_count for p in k.peers
        }, "node_id"),
    # The counter of an alert exists from the start, or the alert would miss the first increase.
    "peer_closed": counter("Peer connections that ended, by reason.",
        lambda k: {str(CloseCode.TERM_JUMP): 0, **k.closed_counts}, "code"),
}  # fmt: skip
"""The connections to the other nodes."""
CALLS: Final[Table[CallCounters]] = {
    "calls": counter("Calls that began, over gRPC and in frames.", lambda c: c.begun, "method"),
    "calls_failed": counter("Calls, and appends of a stream, that failed.",
        lambda c: c.failed, "method", "code"),
    "calls_open": gauge("Calls that are being served.", lambda c: c.open_count),
}  # fmt: skip
"""The calls of clients, over gRPC and in frames."""
FRAMED: Final[Table[FramedServer]] = {
    "framed_connections": gauge("Connections to the framed port.", lambda f: f.connections.count),
    "framed_accept_failures": counter("Connections to it that could not be accepted.",
        lambda f: f.accept_failure_count),
    "framed_answers_dropped": counter("Framed answers dropped: too many bytes waited.",
        lambda f: f.connections.dropped_count),
    "framed_closed": counter("Framed connections that the node closed.",
        lambda f: f.connections.closed, "reason"),
}  # fmt: skip
"""The framed port."""
ACCOUNTS: Final[Table[Accounts]] = {
    "held": gauge("What is held for callers, by kind.",
        lambda a: {kind.name.lower(): a.held(kind)[0] for kind in Kind}, "kind"),
    "held_limit": gauge("Limit of it for all; one address may have a half or less.",
        lambda a: {
            kind.name.lower(): a.limits[kind].count_max
            for kind in Kind if a.limits[kind].count_max < ANY
        }, "kind"),
    "held_bytes": gauge("Bytes that are held for callers, by kind.",
        lambda a: {kind.name.lower(): a.held(kind)[1] for kind in Kind}, "kind"),
    "held_limit_bytes": gauge("Limit of these for all; one address may have a half or less.",
        lambda a: {
            kind.name.lower(): a.limits[kind].size_bytes_max
            for kind in Kind if a.limits[kind].size_bytes_max < ANY
        }, "kind"),
    "held_refused": counter("Refusals of more, by kind.", lambda a: a.refused, "kind"),
    "held_addresses": gauge("Addresses that are connected, or for which something is held.",
        lambda a: len(a.addresses)),
}  # fmt: skip
"""The accounts of callers."""
GRPC: Final[Table[GrpcServer]] = {
    "requests_slow": gauge("Requests of clients that take over a second to arrive.",
        lambda g: g.requests.slow_count),
    "requests_slow_limit": gauge("Limit of these; above it the oldest is refused.",
        lambda _: SLOW_COUNT_MAX),
    "request_streams": gauge("Streams on which clients send.", lambda g: g.requests.stream_count),
    "request_streams_limit": gauge("Limit of these; above it the most idle stream ends.",
        lambda _: STREAM_COUNT_MAX),
    "requests_given_up": counter("Calls ended for what did not come.",
        lambda g: g.requests.given_up, "reason"),
    "responses_cut": counter("Connections closed for a response that was not read.",
        lambda g: g.responses.cut_count),
    "responses_dropped": counter("Responses dropped, since too many bytes waited.",
        lambda g: g.responses.dropped_count),
}  # fmt: skip
"""What strangers can use up at the gRPC port."""
LOG_LINES: Final[Table[Mapping[str, int]]] = {
    "log_lines_left_out": counter("Log lines of others above 50 in 10 s.",
        lambda left_out: dict(tuple(left_out.items())), "component"),
}  # fmt: skip
"""The lines that the log leaves out; other threads count, too."""
RENEWALS: Final[Table[Renewals]] = {
    "files_renewed": counter("New certificates, keys and secrets that the node took into use.",
        lambda r: r.renewed_total),
    "files_refused": counter("Those that it could not use: it continues with the old ones.",
        lambda r: r.refused_total),
}  # fmt: skip
"""The files that are read again."""
HTTP: Final[Table[HttpConnections]] = {
    "http_connections": gauge("Connections to this port.", lambda h: h.count),
    "http_connections_limit": gauge("Limit of these; above it the oldest is closed.",
        lambda _: CONNECTION_COUNT_MAX),
    "http_closed": counter("Connections to this port that the node closed.",
        lambda h: h.closed, "reason"),
}  # fmt: skip
"""The HTTP port itself."""
ROCKETMQ: Final[Table[RocketMq]] = {
    "rocketmq_clients": gauge("Clients of the RocketMQ protocol that spoke lately.",
        lambda r: len(r.clients)),
    "rocketmq_streams": gauge("Of these: those that can be told something.",
        lambda r: r.clients.stream_count),
    "rocketmq_forwarded": counter("Calls of that protocol sent on to a leader.",
        lambda r: r.forwarder.forwarded_total),
    "rocketmq_renewed": gauge("Messages of push consumers kept invisible.",
        lambda r: len(r.renewals)),
    "rocketmq_not_renewed": counter("Messages that could not be kept invisible.",
        lambda r: r.renewals.dropped_total),
    "rocketmq_question_bytes": gauge("Of such questions that wait for clients.",
        lambda r: r.clients.question_size_bytes),
    "rocketmq_question_limit_bytes": gauge("Limit of these; above it the gateway asks none.",
        lambda _: QUESTION_SIZE_BYTES_MAX),
    "rocketmq_checks_asked": counter("Producers asked what became of a transaction.",
        lambda r: r.end_calls.asked_total),
}  # fmt: skip
"""The gateway for RocketMQ clients."""

REMOTING: Final[Table[Remoting]] = {
    "remoting_memberships": gauge("Memberships of classic clients in groups, at this node.",
        lambda r: r.groups.clients.count),
    "remoting_memberships_limit": gauge("Limit of these: new ones are refused.",
        lambda r: r.accounts.limits[Kind.MEMBERS].count_max),
    "remoting_locks": gauge("Queues that consumers locked to read them in order.",
        lambda r: r.locks.count),
    "remoting_locks_limit": gauge("Limit of these: no more are given.",
        lambda r: r.accounts.limits[Kind.LOCKS].count_max),
    "remoting_forwarded": counter("Commands of classic clients forwarded to the leader.",
        lambda r: r.forwarder.forwarded_total),
    "remoting_repeated": counter("Sends with a unique key that came again, stored once.",
        lambda r: r.unique_keys.repeated_total),
    "remoting_checks_asked": counter("Classic producers asked what became of a transaction.",
        lambda r: r.transactions.asked_total),
    "remoting_cut_off": counter("Connections of classic clients closed while cut off.",
        lambda r: r.isolation.closed_total),
}  # fmt: skip
"""The gateway for clients of RocketMQ's remoting protocol."""
BROKER: Final[Table[Broker]] = {
    "acked_records": counter("Records acknowledged to clients by this node.",
        lambda b: b.produce.records_total),
    "acked_bytes": counter("Bytes of these records.", lambda b: b.produce.size_bytes_total),
    "append_queued_seconds": histogram("Appends that waited for room before they were written.",
        lambda b: b.produce.queued.snapshot()),
    "append_duplicates": counter("Appends that were in the log already.",
        lambda b: b.produce.duplicates_total),
    "topic_rate_refusals": counter("Appends over a rate of a topic, by what was over it.",
        lambda b: b.produce.topic_rates.refused, "rate"),
    "append_busy": counter("Appends refused because too many are under way.",
        lambda b: b.produce.busy_total),
    "append_timeouts": counter("Appends not decided in time: outcome unknown.",
        lambda b: b.produce.timeouts_total),
    "in_flight_bytes": gauge("Of appends taken in and not yet decided.",
        lambda b: b.produce.in_flight_size_bytes),
    "in_flight_limit_bytes": gauge("Limit of these; above it callers wait.",
        lambda b: b.context.limits.in_flight_size_bytes_max),
    "parked_append_bytes": gauge("Of appends that wait for room.",
        lambda b: b.produce.parked_bytes.used),
    "record_bytes": histogram("Sizes of acked records, by the mean of their batch.",
        lambda b: b.produce.sizes.total),
    "retried_messages": counter("Messages given back that go to their group again.",
        lambda b: b.retry.retried_total),
    "dead_letters": counter("Messages that became dead letters.", lambda b: b.retry.dead_total),
    "resent_dead_letters": counter("Dead letters sent again to their topics.",
        lambda b: b.dead_letters.resent_total),
    "pulls": counter("Pulls answered by this node.", lambda b: b.pulls.pulls_total),
    "pulled_records": counter("Records given to clients.", lambda b: b.pulls.records_total),
    "pulled_bytes": counter("Bytes of these records.", lambda b: b.pulls.size_bytes_total),
    "waiting_readers": gauge("Pulls and tails that wait for a message.",
        lambda b: b.parked.readers.used),
    "topics": gauge("Topics of the cluster.", lambda b: len(b.context.state.topics)),
    "groups": gauge("Consumer groups of the cluster.", lambda b: len(b.context.state.groups)),
    "open_transactions": gauge("Neither committed nor rolled back, of the cluster.",
        lambda b: len(b.transactions.ends.table.open)),
    "open_transactions_limit": gauge("Limit of these; above it more are refused.",
        lambda b: b.context.limits.open_transaction_count_max),
    "transaction_producers": gauge("Leader only: producers that wait to be asked.",
        lambda b: b.transactions.checks.producers.room.used),
    "transaction_question_bytes": gauge("Leader only: of questions not taken yet.",
        lambda b: b.transactions.checks.producers.size_bytes),
    "transaction_question_limit_bytes": gauge("Limit of these; above it the leader asks none.",
        lambda b: b.context.limits.transaction_question_size_bytes_max),
    "transaction_checks": counter("Questions to producers what became of one.",
        lambda b: b.transactions.checks.checks_total),
    "transactions_given_up": counter("Ended without an answer, or too old.",
        lambda b: b.transactions.ends.given_up_total),
    "delayed_messages_limit": gauge("Limit of these; above it more are refused.",
        lambda b: b.context.limits.delayed_count_max),
    "pop_in_flight_limit": gauge("Limit of these; above it nothing new is handed out.",
        lambda b: b.context.limits.pop_in_flight_count_max),
    "delayed_messages": gauge("Held until they are due, of the cluster.",
        lambda b: sum(held_counts(b.context.store, b.context.state))),
    "undeliverable_messages": counter("Delayed ones whose topic was gone, of the cluster.",
        lambda b: b.context.state.table(DelayTable).undeliverable_count),
    "delayed_delivered": counter("Delayed messages that this leader delivered.",
        lambda b: b.delay.delivery_task.delivered_total),
    "delayed_lateness_seconds": counter("Of these: time since each was due, added up.",
        lambda b: b.delay.delivery_task.lateness_ms_total / 1000),
    "delayed_cancelled": counter("Delayed messages that were cancelled here.",
        lambda b: b.delay.delivery_task.cancelled_total),
    "delayed_failed": counter("Deliveries that were written again, for want of room.",
        lambda b: b.delay.delivery_task.failed_total),
    "delayed_missing": counter("Held messages that the log has lost: damage.",
        lambda b: b.delay.delivery_task.missing_total),
    "pop_receives": counter("Calls for messages by pop.", lambda b: b.pop.receives.receives_total),
    "pop_delivered": counter("Messages handed out by pop.",
        lambda b: b.pop.receives.delivered_total),
    "pop_redelivered": counter("Of these: those that were handed out before.",
        lambda b: b.pop.receives.redelivered_total),
    "pop_acked": counter("Messages acknowledged by pop.", lambda b: b.pop.settlement.acked_total),
    "pop_stale_handles": counter("Receipt handles that came too late.",
        lambda b: b.pop.settlement.stale_total),
    "pop_dead_letters": counter("Messages handed out too often, or given up.",
        lambda b: b.pop.shared.dead_total),
    "pop_full_queues": counter("Looks at a queue with too much in flight.",
        lambda b: b.pop.receives.full_total),
    "pop_held_queues": gauge("Leader only: passed over, as what they have is damaged.",
        lambda b: len(b.pop.shared.held.reasons)),
    "pop_held": counter("How often a queue was held for a second for that.",
        lambda b: b.pop.shared.held.held_total),
    "pop_in_flight": gauge("Handed out and not acknowledged, of the cluster.",
        lambda b: b.pop.shared.table.in_flight_count),
    "pop_waiting_receives": gauge("Leader only: receives that wait for a message.",
        lambda b: b.pop.shared.lines.room.used),
}  # fmt: skip
"""All parts of the broker."""
APPENDS: Final[Table[AppendTimes]] = {
    "append_sent_seconds": histogram("Leader only: of an append, until it was written to the log "
                                     "of this node and all that came with it sent to the others.",
        lambda a: a.stages().sent),
    "append_quorum_seconds": histogram("From there until enough nodes had it.",
        lambda a: a.stages().quorum),
    "append_applied_seconds": histogram("From there until readers saw it and callers were told.",
        lambda a: a.stages().applied),
    "append_answered_seconds": histogram("These three together.",
        lambda a: a.stages().answered),
    "appends_slow": counter("Appends that took `slow_append_ms` or longer.",
        lambda a: a.slow_count),
}  # fmt: skip
"""Where the time of appends went, by what left in one turn, after they were queued."""
TOPICS: Final[Table[TopicSeries]] = {
    "topic_in_messages": counter("Messages of a topic acknowledged by this node.",
        lambda t: t.column(0), "topic"),
    "topic_in_bytes": counter("Bytes of these records.", lambda t: t.column(1), "topic"),
    "topic_out_messages": counter("Messages of a topic that this node gave to clients.",
        lambda t: t.column(2), "topic"),
    "topic_out_bytes": counter("Bytes of these records.", lambda t: t.column(3), "topic"),
    "queue_first_offset": gauge("Leader only: first message of a queue that is kept.",
        lambda t: t.first_offsets, "topic", "queue_id"),
    "queue_end_offset": gauge("Leader only: offset that the next message of a queue gets.",
        lambda t: t.end_offsets, "topic", "queue_id"),
}  # fmt: skip
"""Of the `metrics_topics_max` busiest topics; the topic `(other)` is all others together."""
GROUPS: Final[Table[GroupSeries]] = {
    "group_lag_messages": gauge("Leader only: messages that a group has not consumed.",
        lambda g: g.lag_counts, "group", "topic"),
    "group_lag_seconds": gauge("Leader only: age of the oldest of these; 0: none.",
        lambda g: g.lag_s, "group", "topic"),
    "group_members": gauge("Leader only: consumers that said they are alive.",
        lambda g: g.member_counts, "group"),
    "group_retries": gauge("Leader only: messages that wait to come again.",
        lambda g: g.retry_counts, "group"),
    "group_dead_letters": gauge("Leader only: dead letters that are kept.",
        lambda g: g.dead_letter_counts, "group"),
    "group_in_flight": gauge("Leader only: handed out by pop and not acknowledged.",
        lambda g: g.in_flight_counts, "group"),
    "producer_group_open_transactions": gauge("Leader only: neither committed nor rolled back.",
        lambda g: g.transaction_counts, "producer_group"),
}  # fmt: skip
"""Of the groups with the most to do, as many as topics; the group `(other)` is all others."""
STORE: Final[Table[StoreStats]] = {
    "append_seconds": histogram("From the call of the store to bytes in the page cache.",
        lambda s: s.put_latency),
    "sync_seconds": histogram("Duration of a sync of the log.", lambda s: s.sync_latency),
    "sync_running_seconds": gauge("How long the sync that runs has been running.",
        lambda s: s.gauges.sync_running_ms / 1000),
    "unsynced_bytes": gauge("Bytes written and not yet synced.", lambda s: s.bytes_to_flush),
    "log_first_position": gauge("First byte of the log that is kept.",
        lambda s: s.gauges.min_position),
    "log_end_position": gauge("Where the next entry goes.", lambda s: s.gauges.wrote_position),
    "log_files": gauge("Files of the log.", lambda s: s.gauges.file_count),
    "log_files_deleted": counter("Files deleted by retention.",
        lambda s: s.counters["deleted_file_count"]),
    "log_files_deleted_for_room": counter("Of these: not expired (delete_when_full).",
        lambda s: s.counters["deleted_for_room_count"]),
    "disk_used_ratio": gauge("Use of the disk of the log, 0 to 1, as `df` counts it.",
        lambda s: s.gauges.disk_used_ratio),
    "store_full": counter("Appends refused because the disk is full.",
        lambda s: s.counters["store_full_count"]),
    "inner_batch_records": counter("Records of RocketMQ's topics of inner batches.",
        lambda s: s.counters["inner_batch_count"]),
    "inner_batch_topics": gauge("Such topics: kept, and not readable here.",
        lambda s: s.gauges.inner_batch_topic_count),
    "derived_damage": counter("Blocks of queues and key index that were damaged.",
        lambda s: s.counters["derived_damage_count"]),
    "derived_mended_units": counter("Units of queues that were repaired from the log.",
        lambda s: s.counters["derived_mended_unit_count"]),
    "derived_mended_keys": counter("Entries and slots of the key index, likewise.",
        lambda s: s.counters["derived_mended_key_count"]),
}  # fmt: skip
"""The store."""
PASSES: Final[Table[Passes]] = {
    "scrub_read_bytes": counter("Bytes of full files that were read and checked again.",
        lambda p: p.log.read_size_bytes),
    "scrub_passes": counter("Times that this came from the first file to the last.",
        lambda p: p.log.pass_count),
    "scrub_damage": counter("Damaged places of the log that passes found, of any kind.",
        lambda p: p.log.damage_count + p.derived.log_damage_count),
    "scrub_index_mended": counter("Places where the log's index was repaired.",
        lambda p: p.log.mended_unit_runs),
    "scrub_compared": counter("Ends of files that are the same on another node.",
        lambda p: p.log.compared_count),
    "scrub_differing": counter("Ends of files that are not: replicas have come apart.",
        lambda p: p.log.differing_count),
    "derived_read_bytes": counter("Bytes compared with queues and key index in passes.",
        lambda p: p.derived.read_size_bytes),
    "derived_passes": counter("Times that all of them were compared with the log.",
        lambda p: p.derived.pass_count),
    "derived_waiting": gauge("Damaged places in them that are being repaired.",
        lambda p: p.derived.waiting_count),
    "derived_given_up": counter("Damaged places that could not be repaired for now.",
        lambda p: p.derived.given_up_count),
}  # fmt: skip
"""The passes that look for damage in the log, queues and key index."""
WARNINGS: Final[Table[tuple[str, ...]]] = {
    "store_warnings": gauge("Things an operator should look at: see /status.", len),
}  # fmt: skip
"""The warnings of the node."""
NAMESERVER: Final[Table[NameServerService]] = {
    "nameserver_registered": gauge("1 when the directory knows this node as it is.",
        lambda n: None if n.registration is None else not n.registration.problem),
}  # fmt: skip
"""The registration of this node."""
NAMESERVER_REPLICA: Final[Table[NameServerFacts]] = {
    "nameserver_up": gauge("1 when this node's replica of the name server runs.",
        lambda n: n.status.state not in ("stopped", "failed")),
    "nameserver_state": gauge("1 for the state of that replica, 0 for the others.",
        lambda n: {state: state == n.status.state for state in STATES}, "state"),
    "nameserver_commit_index": gauge("Last entry committed, as far as it knows.",
        lambda n: n.status.commit_index),
    "nameserver_journal_bytes": gauge("Of its journal; compacted at 8 MiB.",
        lambda n: n.status.journal_size_bytes),
    "nameserver_directory_bytes": gauge("Topics and values, as its limit counts them.",
        lambda n: n.status.directory_size_bytes),
    "nameserver_directory_limit_bytes": gauge("Limit of these; above it more are refused.",
        lambda n: n.status.directory_size_bytes_max),
    "nameserver_in_flight": gauge("Commands that wait for an answer, at most 256.",
        lambda n: n.status.in_flight_count),
    "nameserver_refused_connections": counter("Closed because of what they sent.",
        lambda n: n.status.refused_count),
    "nameserver_old_copies": gauge("Replicas that are connected and began with an old copy of "
                                   "their directory: they count for nothing.",
        lambda n: n.status.old_copy_count),
    "nameserver_old_copy_memories_dropped": counter("The same of replicas as "
                                                    "old_copy_memories_dropped of nodes.",
        lambda n: n.status.dropped_memory_count),
    "nameserver_restarts": counter("Times that replica was started again after a fault.",
        lambda n: n.service.restart_count),
    "nameserver_refused_reports": counter("Reports about brokers that were not believed.",
        lambda n: n.service.report_judge.refused_counts, "reason"),
    "nameserver_new_groups": counter("Broker groups that came to the directory.",
        lambda n: n.service.watch.new_group_count),
    "nameserver_new_addresses": counter("Brokers in it at an address that was new.",
        lambda n: n.service.watch.new_address_count),
    "nameserver_group_problem": gauge("1 when a group can elect no master, or has had no master "
                                      "for 15 s: qlog nameserver status.",
        lambda n: {g: g in n.service.watch.problems for g in n.service.watch.groups},
        "broker_group"),
}  # fmt: skip
"""The replica of the name server in this process."""

USERS: Final[Table[Guard]] = {
    "user_refusals": counter("Calls without the right to them, by reason.",
        lambda g: g.refused, "reason"),
    "user_rate_refusals": counter("Calls over a rate of a user, by what was over it.",
        lambda g: g.rows.refused, "rate"),
}  # fmt: skip
"""What users may do."""
AUDIT: Final[Table[Audit]] = {
    "audit_rows": counter("Rows that this node wrote into the audit.", lambda a: a.written_total),
    "audit_rows_left_out": counter("Rows that were too many.", lambda a: a.left_out_total),
}  # fmt: skip
"""The audit."""

METRICS: Final[Mapping[str, Spec[Any]]] = {
    **NODE,
    **REPLICA,
    **LIVES,
    **raft.METRICS,
    **ha.METRICS,
    **LINK,
    **CALLS,
    **FRAMED,
    **ACCOUNTS,
    **GRPC,
    **LOG_LINES,
    **RENEWALS,
    **HTTP,
    **ROCKETMQ,
    **REMOTING,
    **BROKER,
    **APPENDS,
    **TOPICS,
    **GROUPS,
    **STORE,
    **PASSES,
    **WARNINGS,
    **NAMESERVER,
    **NAMESERVER_REPLICA,
    **USERS,
    **AUDIT,
}


def page() -> str:
    """Return docs/metrics.md: `python -m node.metrics > docs/metrics.md`."""
    lines = [
        "# Metrics",
        "",
        "Generated by `python -m node.metrics > docs/metrics.md`; do not edit. A node",
        "shows these at `/metrics` of `http_listen`. The values are those of that node.",
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
