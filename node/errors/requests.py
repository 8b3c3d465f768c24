"""Errors about requests and responses in transit.

Owns the names, codes and texts; see `node.errors.common`.
"""

from node.errors.common import RETRY_BUSY_MS, RETRY_SOON_MS, NodeError
from store.errors import Outcome


class RequestSlowError(NodeError):
    """The request did not arrive as a whole in time, or was the slowest of too many requests in
    transit. The call had no effect."""

    code, retryable, status = "node.request_slow", True, "DEADLINE_EXCEEDED"
    retry_after_ms = RETRY_SOON_MS
    text = "the request had not arrived after {waited_ms} ms: {reason}; send it again"
    waited_ms: int
    reason: str


class StreamSilentError(NodeError):
    """The client has sent nothing on its stream for too long, or for longest of too many streams.
    Earlier requests are answered; a new stream goes on where this one ends."""

    code, retryable, status = "node.stream_silent", True, "UNAVAILABLE"
    text = "nothing came for {silent_ms} ms: {reason}; open the stream again"
    silent_ms: int
    reason: str


class ResponsesWaitError(NodeError):
    """The call was carried out, but its response was dropped: too many bytes wait for clients that
    do not take them. A call that only reads can be repeated."""

    code, retryable, status = "node.responses_wait", True, "RESOURCE_EXHAUSTED"
    outcome = Outcome.UNKNOWN
    retry_after_ms = RETRY_BUSY_MS
    text = (
        "a response of {size_bytes} bytes was dropped: {waiting_size_bytes} bytes wait that "
        "clients have not taken, the limit is {limit}; ask again"
    )
    waiting_size_bytes: int
    size_bytes: int
    limit: int


class RocketMqOffError(NodeError):
    """RocketMQ's protocols are off at this port, as they are beyond loopback without users or
    certificates of clients. The call had no effect."""

    code, status = "node.rocketmq_off", "UNIMPLEMENTED"
    text = (
        "RocketMQ's protocols are off at this port; beyond loopback they need users = on, "
        "tls_client_auth or rocketmq = on in the settings of the node"
    )


class NotServedError(NodeError):
    """RocketMQ has this request, and a cluster here does not serve it: the message says why, and
    what to use instead. The request had no effect."""

    code, status = "node.not_served", "UNIMPLEMENTED"
    text = "{reason}"
    reason: str


class UnimplementedError(NodeError):
    """The node knows no such method of framed calls: it is older than the client. The call had no
    effect; the same call over gRPC may exist."""

    code, status = "node.unimplemented", "UNIMPLEMENTED"
    text = "this node has no framed method {method}; use gRPC for it, or a newer node"
    method: int
