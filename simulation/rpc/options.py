"""The options of channels and servers: which of them the simulation heeds.

An option that it does not know is an error, so that no reader takes for simulated what is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

MESSAGE_SIZE_BYTES_MAX: Final = 4 << 20
UNLIMITED: Final = -1

_DEFAULTS: Final[dict[str, int]] = {
    "grpc.initial_reconnect_backoff_ms": 1_000,
    "grpc.max_reconnect_backoff_ms": 120_000,
    "grpc.min_reconnect_backoff_ms": 20_000,
    "grpc.max_receive_message_length": MESSAGE_SIZE_BYTES_MAX,
    "grpc.max_send_message_length": UNLIMITED,
    "grpc.max_concurrent_streams": 1 << 31,
    "grpc.max_metadata_size": 8 << 10,
    "grpc.max_allowed_incoming_connections": 1 << 31,
    "grpc.server_handshake_timeout_ms": 120_000,
    "grpc.max_connection_idle_ms": 1 << 31,
    "grpc.keepalive_time_ms": 1 << 31,
    "grpc.keepalive_timeout_ms": 20_000,
}
_WITHOUT_EFFECT: Final = frozenset(
    (
        "grpc.primary_user_agent",
        "grpc.enable_retries",  # Calls are never made again.
        "grpc.enable_http_proxy",  # There are none.
        "grpc.use_local_subchannel_pool",  # Channels never share a connection.
        "grpc.so_reuseport",  # Ports are never shared.
        "grpc.compression_enabled_algorithms_bitset",  # Nothing is compressed.
        "grpc.dns_min_time_between_resolutions_ms",  # Each dial looks its name up.
        "grpc.keepalive_permit_without_calls",
        "grpc.http2.min_ping_interval_without_data_ms",
        "grpc.http2.max_pings_without_data",
        "grpc.http2.bdp_probe",  # Windows do not depend on measured delays.
    )
)


class Options:
    """The options of one channel or server."""

    def __init__(self, given: Iterable[tuple[str, Any]]) -> None:
        """Raises NotImplementedError for an option that is not known here."""
        self._values = dict(_DEFAULTS)
        for name, value in given:
            if name in _DEFAULTS:
                self._values[name] = int(value)
            elif name not in _WITHOUT_EFFECT:
                raise NotImplementedError(f"the option {name} is not simulated")

    def of(self, name: str) -> int:
        """Return the value of an option, without its prefix `grpc.`."""
        return self._values[f"grpc.{name}"]

    def seconds(self, name: str) -> float:
        """Return a time in seconds; the option is one in milliseconds."""
        return self._values[f"grpc.{name}"] / 1_000

    def receive_size_bytes_max(self) -> int:
        """Return the limit of received messages; -1: none."""
        return self._values["grpc.max_receive_message_length"]

    def check_metadata(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Raise NotImplementedError for received metadata above the limit: what gRPC refuses
        between a soft limit and a hard one is drawn, and nothing of it is simulated."""
        size_bytes = sum(32 + len(name) + len(value) for name, value in metadata)
        size_bytes_max = self._values["grpc.max_metadata_size"]
        if size_bytes > size_bytes_max:
            raise NotImplementedError(
                f"metadata of {size_bytes} bytes, above grpc.max_metadata_size of "
                f"{size_bytes_max}, are not simulated"
            )

    def send_size_bytes_max(self) -> int:
        """Return the limit of sent messages; -1: none."""
        return self._values["grpc.max_send_message_length"]


def is_above(size_bytes: int, size_bytes_max: int) -> bool:
    """Whether a message is above a limit, -1 being none."""
    return 0 <= size_bytes_max < size_bytes
