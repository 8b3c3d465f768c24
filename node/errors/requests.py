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

    def __init__(self, waited_ms: int, reason: str) -> None:
        super().__init__(waited_ms, reason)
        self.waited_ms, self.reason = waited_ms, reason

    def __str__(self) -> str:
        return (
            f"the request had not arrived after {self.waited_ms} ms: {self.reason}; send it again"
        )


class StreamSilentError(NodeError):
    """The client has sent nothing on its stream for too long, or for longest of too many streams.
    Earlier requests are answered; a new stream goes on where this one ends."""

    code, retryable, status = "node.stream_silent", True, "UNAVAILABLE"

    def __init__(self, silent_ms: int, reason: str) -> None:
        super().__init__(silent_ms, reason)
        self.silent_ms, self.reason = silent_ms, reason

    def __str__(self) -> str:
        return f"nothing came for {self.silent_ms} ms: {self.reason}; open the stream again"


class ResponsesWaitError(NodeError):
    """The call was carried out, but its response was dropped: too many bytes wait for clients that
    do not take them. A call that only reads can be repeated."""

    code, retryable, status = "node.responses_wait", True, "RESOURCE_EXHAUSTED"
    outcome = Outcome.UNKNOWN
    retry_after_ms = RETRY_BUSY_MS

    def __init__(self, waiting_size_bytes: int, size_bytes: int, limit: int) -> None:
        super().__init__(waiting_size_bytes, size_bytes, limit)
        self.waiting_size_bytes, self.size_bytes = waiting_size_bytes, size_bytes
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"a response of {self.size_bytes} bytes was dropped: {self.waiting_size_bytes} bytes "
            f"wait that clients have not taken, the limit is {self.limit}; ask again"
        )


class RocketMqOffError(NodeError):
    """RocketMQ's protocols are off at this port, as they are beyond loopback without access keys or
    certificates of clients. The call had no effect."""

    code, status = "node.rocketmq_off", "UNIMPLEMENTED"

    def __str__(self) -> str:
        return (
            "RocketMQ's protocols are off at this port; beyond loopback they need "
            "rocketmq_keys_file, tls_client_auth or rocketmq = on in the settings of the node"
        )


class UnimplementedError(NodeError):
    """The node knows no such method of framed calls: it is older than the client. The call had no
    effect; the same call over gRPC may exist."""

    code, status = "node.unimplemented", "UNIMPLEMENTED"

    def __init__(self, method: int) -> None:
        super().__init__(method)
        self.method = method

    def __str__(self) -> str:
        return f"this node has no framed method {self.method}; use gRPC for it, or a newer node"
