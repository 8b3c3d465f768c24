"""Metrics of resources that strangers can use up: requests, responses, HTTP connections, log lines.

Owns the source of each value; names and texts are in `node.monitoring.metrics`.
"""

from collections.abc import Iterator

from node.monitoring.http_connections import CONNECTION_COUNT_MAX, HttpConnections
from node.replication.contract import Sample
from node.runtime.logs.line_budget import left_out
from node.services.bounds.request_watch import (
    HALF_SIZE_BYTES_MAX,
    SLOW_COUNT_MAX,
    STREAM_COUNT_MAX,
    RequestWatch,
)
from node.services.bounds.response_watch import WAITING_SIZE_BYTES_MAX, ResponseWatch


def call_bounds(watch: RequestWatch, responses: ResponseWatch) -> Iterator[Sample]:
    """Yield the samples of requests and responses in transit."""
    yield "responses_waiting_bytes", (), responses.size_bytes
    yield "responses_waiting_limit_bytes", (), WAITING_SIZE_BYTES_MAX
    yield "responses_cut", (), responses.cut_count
    yield "responses_dropped", (), responses.dropped_count
    yield "requests_slow", (), watch.slow_count
    yield "requests_slow_limit", (), SLOW_COUNT_MAX
    yield "request_streams", (), watch.stream_count
    yield "request_streams_limit", (), STREAM_COUNT_MAX
    yield "request_half_bytes", (), watch.half_size_bytes
    yield "request_half_limit_bytes", (), HALF_SIZE_BYTES_MAX
    for reason, count in watch.given_up.items():
        yield "requests_given_up", (reason,), count


def log_bounds() -> Iterator[Sample]:
    """Yield the samples of log lines that were left out."""
    for component, count in tuple(left_out.items()):  # Other threads count, too.
        yield "log_lines_left_out", (component,), count


def http_bounds(connections: HttpConnections) -> Iterator[Sample]:
    """Yield the samples of the HTTP port itself."""
    yield "http_connections", (), connections.count
    yield "http_connections_limit", (), CONNECTION_COUNT_MAX
    for reason, count in connections.closed.items():
        yield "http_closed", (reason,), count
