"""The table of targets: every parser that reads bytes of strangers, peers, nodes, users or disks.

A module a subject. What libraries parse is not here:
HTTP/2 and protobuf itself (gRPC), HTTP (uvicorn), TLS, and TOML.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Final

from tests.fuzz.target import FuzzTarget
from tests.fuzz.targets import (
    client,
    files,
    filters,
    framed,
    ha,
    ledger,
    nameserver,
    peers,
    raft,
    records,
    rocketmq,
    settings,
)

_MODULES: Final = (
    peers,
    framed,
    raft,
    ha,
    records,
    ledger,
    filters,
    nameserver,
    rocketmq,
    client,
    files,
    settings,
)

TARGETS: Final[Mapping[str, FuzzTarget]] = {
    target.name: target for target in chain.from_iterable(module.TARGETS for module in _MODULES)
}
"""By name."""
