"""Metrics of the framed port.

Owns the source of each value; `node.monitoring.metrics` has names and texts.
"""

from collections.abc import Iterator

from node.framed.server import FramedServer
from node.replication.contract import Sample


def samples(server: FramedServer) -> Iterator[Sample]:
    """Yield the value of each metric of the port."""
    connections, calls = server.connections, server.calls
    limits = connections.limits
    yield "framed_connections", (), connections.count
    yield "framed_connections_limit", (), limits.connection_count_max
    yield "framed_accept_failures", (), server.accept_failure_count
    yield "framed_calls", (), calls.count
    yield "framed_calls_limit", (), calls.call_count_max
    yield "framed_half_bytes", (), connections.half_size_bytes
    yield "framed_half_limit_bytes", (), limits.half_size_bytes_max
    yield "framed_waiting_bytes", (), connections.waiting_size_bytes
    yield "framed_waiting_limit_bytes", (), limits.waiting_total_size_bytes_max
    yield "framed_answers_dropped", (), connections.dropped_count
    for reason, count in connections.closed.items():
        yield "framed_closed", (reason,), count
