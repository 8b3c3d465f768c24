"""The conditions of alerts that take more than a line, in Prometheus' language.

Owns what each counts and leaves out; `deploy.alerts` has the alert of each, and what to do.
`quorumlog_node` names the cluster and group of each instance; conditions about a group are counted
through it.
"""

from typing import Final

_OF_ITS_GROUP: Final = "* on (job, instance) group_left (cluster_id, group) quorumlog_node"

LEADERS: Final = f"""\
sum by (cluster_id, group) (
  quorumlog_role{{role="leader"}}
  {_OF_ITS_GROUP}
)"""

NO_LEADER: Final = f"""\
(
  {LEADERS.replace(chr(10), chr(10) + "  ")}
  or
  0 * group by (cluster_id, group) (
    last_over_time(quorumlog_node[1d]) and on (job, instance) up
  )
) == 0"""
"""The second part stands for groups without a node that is up: those that were seen within a day,
and are still scraped."""

TWO_LEADERS: Final = f"{LEADERS} > 1"

TERMS: Final = f"""\
min by (cluster_id, group) (
  delta(quorumlog_term[10m])
  {_OF_ITS_GROUP}
) > 3"""
"""The least of all nodes: one that joined, or was away, comes to the others' term at once."""

STRANGERS: Final = """\
increase(
  quorumlog_peer_closed_total{
    code=~"wrong_protocol|wrong_cluster|wrong_group|wrong_node|unknown_node|bad_auth\
|wrong_file_size|protocol_error|garbage|tls"
  }[10m]
) > 3"""

TERM_JUMPS: Final = """\
increase(quorumlog_peer_closed_total{code="term_jump"}[10m]) > 0
or increase(quorumlog_ha_epoch_jumps_total[10m]) > 0"""

BEHIND: Final = """\
quorumlog_last_index - on (job, instance) group_right () quorumlog_follower_match_index > 10000
unless on (job, instance) quorumlog_ha_copies"""
"""In a master-slave group these are bytes, and some are always under way."""

NOT_SCRUBBED: Final = """\
increase(quorumlog_scrub_read_bytes_total[15d]) == 0
and quorumlog_log_files > 1
and quorumlog_log_files offset 15d > 1
and quorumlog_scrub_interval_seconds > 0
and quorumlog_scrub_interval_seconds <= 604800"""
"""There were full files all the time, so the log has more than the one that is written; and passes
are on, and short enough."""

TOO_FEW_COPIES: Final = """\
quorumlog_ha_in_sync_replicas < quorumlog_ha_copies
and on (job, instance) quorumlog_role{role="leader"} == 1"""
