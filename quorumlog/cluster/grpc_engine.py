"""The choice between gRPC's two network engines for our processes.

Owns two variables of the environment, and that one is set before grpc is imported. gRPC's newer
engine polls sockets on threads of its own; the older one polls on the thread that waits for the
result, so a call costs two switches of threads less: 9 % of all processor time of a produced
message, and 8 % of the latency of a single append (docs/decisions/0023). The switch is called an
experiment and belongs to one version of grpcio, so other versions are left alone.
"""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from quorumlog.command_errors import CliError

VARIABLE: Final = "GRPC_EXPERIMENTS"
OLDER_ENGINE: Final = "-event_engine_client,-event_engine_listener"
KNOWN_VERSIONS: Final = '"""1.85.'
POLLING_VARIABLE: Final = "GRPC_POLL_STRATEGY"
POLLING: Final = frozenset({"all", "epoll1", "poll", "none"})


def check_polling() -> None:
    """Raise CliError for a way of polling that gRPC does not have: it would abort the process."""
    given = os.environ.get(POLLING_VARIABLE)
    if given is not None and POLLING.isdisjoint(given.split(",")):
        raise CliError(
            f"{POLLING_VARIABLE} is {given!r}, and gRPC knows {', '.join(sorted(POLLING))}",
            "gRPC reads this variable, and would abort the process",
            "unset it, or name one of these",
        )


def choose_engine() -> None:
    """Choose the older engine for this process and its children, unless the variable is set."""
    spec = find_spec("grpc")  # Without importing it, which would be too late.
    if VARIABLE in os.environ or spec is None or spec.origin is None:
        return
    version = Path(spec.origin).with_name("_grpcio_metadata.py")
    if version.exists() and KNOWN_VERSIONS in version.read_text("utf-8"):
        os.environ[VARIABLE] = OLDER_ENGINE
