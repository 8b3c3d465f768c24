"""Options of every gRPC channel that a node dials, whatever it asks for over it.

Owns how a channel finds its other end again. Sizes of messages are those of the caller.
"""

from typing import Final

CHANNEL_OPTIONS: Final = (
    # Else the other end is dialled only minutes after it is back, if it was away for minutes.
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Else one that is at another address now is dialled at its old one for half a minute.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.enable_retries", 0),  # The caller retries; a hidden retry would falsify `outcome`.
    ("grpc.enable_http_proxy", 0),  # Nodes reach each other directly, whatever `http_proxy` says.
)
"""Pairs of a name and a value, as `grpc.aio` takes them; the client library has its own."""
