"""The alerts: the one table behind deploy/prometheus/alerts.yml and docs/alerts.md.

Owns the conditions and their meaning; must not know how a node counts. A condition names metrics of
`node.monitoring.metrics` and the labels `job` and `instance` that Prometheus adds; tests/deploy
compares them. Each rule must be silent on a healthy cluster, however young or idle; must cover
nodes that are down, whose own metrics are gone; and must end with the trouble.

    python -m deploy.alerts rules > deploy/prometheus/alerts.yml
    python -m deploy.alerts page > docs/alerts.md
"""

import json
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Final, NamedTuple

from deploy.alert_conditions import (
    BEHIND,
    NO_LEADER,
    NOT_SCRUBBED,
    STRANGERS,
    TERM_JUMPS,
    TERMS,
    TOO_FEW_COPIES,
    TWO_LEADERS,
)


class Alert(NamedTuple):
    """One rule. `hold` is how long the condition has to last, in Prometheus' words."""

    name: str
    severity: str
    """`page`: needs a person now. `ticket`: needs a person today."""
    condition: str
    hold: str
    means: str
    do: str


RULES_FILE: Final = "deploy/prometheus/alerts.yml"
PAGE_FILE: Final = "docs/alerts.md"
_OPERATIONS: Final = "operations.md"
_SECTION: Final = re.compile(rf'{_OPERATIONS}, "([^"]+)"')

ALERTS: Final = (
    Alert(
        "NoLeader", "page", NO_LEADER, "30s",
        "no node leads this group, or none of its nodes is up: appends wait, nothing is lost",
        "`qlog cluster status`: bring a majority back; of a master-slave group `qlog ha promote "
        "NODE`",
    ),
    Alert(
        "TwoLeaders", "page", TWO_LEADERS, "30s",
        "two nodes of a group believe that they lead it. The older one is cut off from the others; "
        "an `async_master` still acks what the others will not have",
        "stop the one with the lower `quorumlog_term`",
    ),
    Alert(
        "NodeDown", "ticket", 'up{job="quorumlog"} == 0', "1m",
        "a node does not answer: its process has ended, its event loop is held, or the network",
        "its exit code and last log line (operations.md, \"At 3 a.m.\"); start it again",
    ),
    Alert(
        "NothingScraped", "ticket", 'absent(up{job="quorumlog"})', "5m",
        "Prometheus has no target of this job, so none of these alerts can be true",
        "correct `scrape_configs`",
    ),
    Alert(
        "NodeRestarts", "ticket", "resets(quorumlog_uptime_seconds[30m]) > 2", "0s",
        "a process ends again and again",
        "the supervisor's record of exit codes; the log",
    ),
    Alert(
        "NotReady", "ticket", "quorumlog_ready == 0", "2m",
        "a node is up and does not serve",
        "`/ready` says why; `draining`: `qlog cluster drain NODE --undo`",
    ),
    Alert(
        "DoesNotCount", "ticket", 'quorumlog_standing{standing="full"} == 0', "15m",
        "a node counts for no quorum, so the group stands one failure closer to a stop",
        "a new learner or replica: wait until it has caught up; a voter: `qlog cluster status`",
    ),
    Alert(
        "TwoHistories", "page", "quorumlog_divergent_peers > 0", "0s",
        "nodes have acked different messages: what one has committed contradicts another. Nothing "
        "is cut, and mostly no node can lead",
        'delete nothing and restart nothing; operations.md, "Two histories"',
    ),
    Alert(
        "StateDiverged", "page", "quorumlog_state_fenced > 0", "0s",
        "the replicated state of a node differs from that of a majority: it serves nothing and "
        "leads no more. The log is not concerned",
        'restart that node once; operations.md, "A state that differs"',
    ),
    Alert(
        "StatesUndecided", "page", "increase(quorumlog_state_checks_undecided_total[1h]) > 0", "0s",
        "replicas differ in their state, and no majority says which is right: all go on",
        'operations.md, "A state that differs"; bring all nodes up, so that a majority decides',
    ),
    Alert(
        "OldCopy", "ticket", "quorumlog_old_copies > 0", "0s",
        "a node began with an old copy of its disk, and does not know it yet: it is refused",
        'operations.md, "A node came back with an old copy of its disk"',
    ),
    Alert(
        "PeerDisconnected", "ticket", "quorumlog_peer_connected == 0", "2m",
        "the link between two nodes is down, in both directions",
        "is that node down? Else the network, or `quorumlog_peer_closed_total` of both by `code`",
    ),
    Alert(
        "PeersRefused", "ticket", STRANGERS, "0s",
        "peers are refused again and again: another cluster, secret, version or certificate",
        "the log lines `connection ... ended` of that node say who and why",
    ),
    Alert(
        "TermForged", "ticket", TERM_JUMPS, "0s",
        "somebody sent a node a term or an epoch that no elections explain, and was refused: a "
        "stranger at the peer port, or a node that is defective",
        'operations.md, "A forged term"; the log lines `too far ahead` of that node say who',
    ),
    Alert(
        "Elections", "ticket", TERMS, "0s",
        "leaders change again and again: overload, pauses, or a flaky network",
        "take load off, or raise `election_min_ms` on all nodes",
    ),
    Alert(
        "FollowerBehind", "ticket", BEHIND, "5m",
        "a follower, `node_id`, does not keep up",
        "its disk and its network; it gets a snapshot when it falls behind "
        "`follower_lag_count_max`",
    ),
    Alert(
        "AppendsStuck", "page",
        "quorumlog_waiting_appends > 0 and on (job, instance) "
        "rate(quorumlog_acked_records_total[2m]) == 0", "1m",
        "appends wait and none is acked: no quorum, too few copies, or a disk that hangs",
        "`qlog cluster status`, `qlog ha status`, `quorumlog_sync_running_seconds`",
    ),
    Alert(
        "AppendsRefused", "ticket",
        "increase(quorumlog_append_busy_total[5m]) > 0 "
        "or increase(quorumlog_append_timeouts_total[5m]) > 0", "5m",
        "clients are refused with `node.busy`, or get no decision in time",
        "a slow disk, a slow follower, or too many writers",
    ),
    Alert(
        "SyncSlow", "ticket",
        "histogram_quantile(0.99, rate(quorumlog_sync_seconds_bucket[5m])) > 0.1", "5m",
        "one sync of a hundred takes more than 100 ms",
        "the disk, and who else uses it",
    ),
    Alert(
        "SyncHangs", "page", "quorumlog_sync_running_seconds > 5", "0s",
        "a sync has been running for 5 s",
        "the disk and the kernel log of that node; the others go on without it",
    ),
    Alert(
        "DiskFilling", "ticket", "quorumlog_disk_used_ratio > 0.8", "5m",
        "from `disk_full_ratio` (0.9) on this node takes nothing any more",
        'operations.md, "A full disk"',
    ),
    Alert(
        "StoreFull", "page", "increase(quorumlog_store_full_total[5m]) > 0", "0s",
        "a node refuses what it is to write, because its disk is full",
        'operations.md, "A full disk"',
    ),
    Alert(
        "DeletedForRoom", "page", "increase(quorumlog_log_files_deleted_for_room_total[1h]) > 0",
        "0s",
        "messages that had not expired were deleted to make room (`delete_when_full`)",
        'operations.md, "A full disk"',
    ),
    Alert(
        "Damage", "ticket",
        "increase(quorumlog_repaired_entries_total[1d]) > 0 "
        "or increase(quorumlog_scrub_damage_total[1d]) > 0 or quorumlog_repairs_waiting > 0", "0s",
        "a disk has changed what lay on it; in a Raft group it is repaired from the peers",
        'operations.md, "Damage and repair"; replace the disk if it repeats',
    ),
    Alert(
        "ReplicasDiffer", "page", "quorumlog_scrub_differing_total > 0", "0s",
        "two nodes hold different committed entries",
        'operations.md, "How sure it is that nothing has changed"',
    ),
    Alert(
        "NotScrubbed", "ticket", NOT_SCRUBBED, "0s",
        "for two weeks old files were not compared with their checksums",
        "the log of that node; is its disk overloaded?",
    ),
    Alert(
        "StoreWarning", "ticket", "delta(quorumlog_store_warnings[1h]) > 0", "0s",
        "something an operator should look at came up within the last hour",
        "`warnings` of `/status` names it",
    ),
    Alert(
        "CertificateEnds", "ticket",
        "quorumlog_tls_expiry_timestamp_seconds - time() < 14 * 86400", "1h",
        "a certificate that this node uses, or trusts (`file`), ends within two weeks. Connections "
        "that are open then stay; no new one is made",
        'operations.md, "Certificates and secrets"',
    ),
    Alert(
        "AckedLost", "page", "delta(quorumlog_ha_losses[1d]) > 0", "0s",
        "a failover of a master-slave group cut off the end of a log: acked messages of an async "
        "master, or unacked ones of a sync master",
        "`qlog ha status` has how much and where it is kept",
    ),
    Alert(
        "TooFewCopies", "page", TOO_FEW_COPIES, "1m",
        "fewer replicas than `copies` have everything: a sync master waits, and what an async one "
        "acks is in danger",
        "`qlog ha status`: start or look at the slaves",
    ),
    Alert(
        "SlaveBehind", "ticket", "quorumlog_ha_slave_lag_bytes > 64 * 1024 * 1024", "5m",
        "a slave, `node_id`, is 64 MiB behind: what would be lost if an async master died now",
        "its disk and its network",
    ),
    Alert(
        "NameServerDown", "ticket",
        "quorumlog_nameserver_up == 0 "
        'or quorumlog_nameserver_state{state="no_leader"} == 1', "1m",
        "a replica of the name server is off, or a majority of them is: then no master is replaced",
        "`qlog nameserver status`; appends do not need it",
    ),
    Alert(
        "NameServerOldCopy", "ticket",
        'quorumlog_nameserver_state{state="joining"} == 1 '
        "or quorumlog_nameserver_old_copies > 0", "1m",
        "a replica of the name server has a new directory, or an old copy of the one it had. It "
        "counts for nothing until a majority of the others has brought it up to date, which takes "
        "seconds",
        'operations.md, "A replica of the name server without memory"',
    ),
    Alert(
        "NotRegistered", "ticket", "quorumlog_nameserver_registered == 0", "2m",
        "the routes do not know this node as it is",
        "`problem` in `qlog nameserver status`",
    ),
    Alert(
        "GroupWithoutMaster", "page", "quorumlog_nameserver_group_problem == 1", "15s",
        "the name server can give a group, `group`, no other master, or has seen none of it for "
        "15 s: who is there answers, and takes no appends",
        "`qlog nameserver status` says why; of a master-slave group `qlog ha promote NODE`",
    ),
    Alert(
        "ReportsRefused", "ticket", "increase(quorumlog_nameserver_refused_reports_total[10m]) > 0",
        "0s",
        "somebody told the name server of brokers, and was not believed: a stranger at the client "
        "port, or a node without the secret of the others",
        "the log lines `a report was refused` of that node; `NotRegistered` names a node of ours",
    ),
    Alert(
        "NewGroups", "ticket",
        "increase(quorumlog_nameserver_new_groups_total[10m]) > 0 "
        "or increase(quorumlog_nameserver_new_addresses_total[10m]) > 0", "0s",
        "clients are sent to a broker group, or to an address, that was not there before",
        "was it you? The log line `broker group` or `broker ... is at` names it; else change "
        "`secret_file`",
    ),
    Alert(
        "NameServerFull", "ticket",
        "quorumlog_nameserver_directory_bytes > 0.8 * quorumlog_nameserver_directory_limit_bytes",
        "5m",
        "new topics will be missing in routes",
        "remove topics and values that are not needed",
    ),
    Alert(
        "NameServerStrangers", "ticket",
        "increase(quorumlog_nameserver_refused_connections_total[10m]) > 0", "0s",
        "strangers at the name server's port, or a replica with another password",
        "close the port to others; compare `nameserver_secret_file` of all replicas",
    ),
    Alert(
        "DelayedNearLimit", "ticket",
        "quorumlog_delayed_messages > 0.8 * quorumlog_delayed_messages_limit", "5m",
        "soon delayed messages are refused; those that are held keep the log from being deleted",
        "`qlog delay status`",
    ),
    Alert(
        "DelayedLate", "ticket",
        "rate(quorumlog_delayed_lateness_seconds_total[5m]) "
        "/ rate(quorumlog_delayed_delivered_total[5m]) > 1", "5m",
        "delayed messages come more than a second late: the leader does not keep up, or its clock "
        "jumped",
        "load of the leader; compare the clocks of the nodes",
    ),
    Alert(
        "DelayedLost", "ticket",
        "increase(quorumlog_undeliverable_messages_total[1h]) > 0 "
        "or quorumlog_delayed_missing_total > 0", "0s",
        "topics of delayed messages are gone, or a disk has lost some of them",
        'operations.md, "Groups and dead letters"',
    ),
    Alert(
        "DeadLetters", "ticket",
        "increase(quorumlog_dead_letters_total[10m]) > 0 "
        "or increase(quorumlog_pop_dead_letters_total[10m]) > 0", "0s",
        "consumers give up on messages",
        "`qlog dlq list GROUP`",
    ),
    Alert(
        "PopNearLimit", "ticket",
        "quorumlog_pop_in_flight > 0.8 * quorumlog_pop_in_flight_limit "
        "or increase(quorumlog_pop_full_queues_total[5m]) > 0", "5m",
        "consumers by pop do not acknowledge: soon nothing new is handed out",
        "`qlog group pop GROUP`: `is_full`",
    ),
    Alert(
        "PopHeld", "ticket", "quorumlog_pop_held_queues > 0", "1m",
        "what a queue has next is damaged and not repaired yet; nothing of it is handed out",
        'operations.md, "Damage and repair"',
    ),
    Alert(
        "PopTooSlow", "ticket", "increase(quorumlog_pop_stale_handles_total[10m]) > 0", "10m",
        "consumers by pop need longer than their invisible time, and get messages again",
        "a longer invisible time, or less work for each message",
    ),
    Alert(
        "TransactionsNearLimit", "ticket",
        "quorumlog_open_transactions > 0.8 * quorumlog_open_transactions_limit", "5m",
        "soon new transactions are refused with `node.limit_reached`",
        "`qlog transaction list`",
    ),
    Alert(
        "TransactionsGivenUp", "ticket",
        "increase(quorumlog_transactions_given_up_total[1h]) > 0", "0s",
        "a transaction ended without an answer of its producer",
        'operations.md, "Transactions that stay open"',
    ),
    Alert(
        "QuestionsWait", "ticket",
        "quorumlog_transaction_question_bytes >= quorumlog_transaction_question_limit_bytes "
        "or quorumlog_rocketmq_question_bytes >= quorumlog_rocketmq_question_limit_bytes", "1m",
        "producers do not take questions about their transactions, and no more are asked",
        "see which producer hangs",
    ),
)  # fmt: skip


def rules() -> str:
    """Return the rules as Prometheus reads them."""
    lines = [
        "# Generated by `python -m deploy.alerts rules > deploy/prometheus/alerts.yml`; do not",
        "# edit. What to do about each: docs/alerts.md.",
        "groups:",
        "  - name: quorumlog",
        "    rules:",
    ]
    for alert in ALERTS:
        lines += [
            f"      - alert: QuorumLog{alert.name}",
            "        expr: |-",
            *textwrap.indent(alert.condition, " " * 10).splitlines(),
            f"        for: {alert.hold}",
            f"        labels: {{severity: {alert.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(alert.means)}",
            f"          action: {json.dumps(alert.do)}",
        ]
    return "\n".join([*lines, ""])


def page() -> str:
    """Return the page for people."""
    lines = [
        "# Alerts",
        "",
        "Generated by `python -m deploy.alerts page > docs/alerts.md`; do not edit. The conditions",
        f"are in [alerts.yml](../{RULES_FILE}), where names begin with `QuorumLog`;",
        f"[operations]({_OPERATIONS}#what-to-watch) says how to load them. `page`: look now.",
        "`ticket`: look today.",
        "",
        "| alert | | it means | do |",
        "|---|---|---|---|",
        *_rows(),
    ]
    return "\n".join([*lines, ""])


def _rows() -> Iterator[str]:
    for alert in ALERTS:
        cells = (f"`{alert.name}`", alert.severity, alert.means, _SECTION.sub(_link, alert.do))
        yield f"| {' | '.join(cells)} |"


def _link(section: re.Match[str]) -> str:
    """Return the link to a section of operations.md, as GitHub names it."""
    anchor = re.sub(r"[^a-z0-9 -]", "", section[1].lower()).replace(" ", "-")
    return f"[{section[1]}]({_OPERATIONS}#{anchor})"


if __name__ == "__main__":
    print({"rules": rules, "page": page}[sys.argv[1]](), end="")
