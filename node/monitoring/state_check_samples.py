"""Metrics of the comparison of the replicas' states.

Owns the source of each value; names and texts are in `node.monitoring.metrics`.
"""

from collections.abc import Iterator

from node.replication.contract import Sample
from node.replication.raft.digests.checks import DigestStats


def samples(stats: DigestStats) -> Iterator[Sample]:
    """Yield the samples of a node in Raft mode."""
    yield "state_fenced", (), float(stats.is_fenced)
    yield "state_checks_equal", (), stats.equal_count
    yield "state_checks_differing", (), stats.differing_count
    yield "state_checks_undecided", (), stats.undecided_count
    yield "state_checks_passed_over", (), stats.passed_over_count
    yield "state_digest_seconds", (), stats.duration_ms / 1000
