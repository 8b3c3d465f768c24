"""The choice between gRPC's two network engines for our processes, and what gRPC does not survive.

Owns two variables of the environment, and that one is set before grpc is imported. gRPC's newer
engine polls sockets on threads of its own; the older one polls on the thread that waits for the
result, so a call costs two switches of threads less: 9 % of all processor time of a produced
message, and 8 % of the latency of a single append (docs/decisions/0023). The switch is called an
experiment and belongs to one version of grpcio, so other versions are left alone.
"""

import os
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from quorumlog.errors import InvalidRequestError, UnavailableError

VARIABLE: Final = "GRPC_EXPERIMENTS"
OLDER_ENGINE: Final = "-event_engine_client,-event_engine_listener"
KNOWN_VERSIONS: Final = '"""1.85.'
POLLING_VARIABLE: Final = "GRPC_POLL_STRATEGY"
KNOWN_POLLING: Final = frozenset({"all", "epoll1", "poll", "none"})
"""Of several gRPC takes the first that it knows."""
BLIND: Final = frozenset({"none", ""})
DESCRIPTORS_MIN: Final = 24  # With 15 gRPC aborts a command at the first node.


def check_polling() -> None:
    """Raise InvalidRequestError (`client.bad_polling`) if gRPC would take no way of polling that
    can wait for an answer: it would abort the process."""
    given = os.environ.get(POLLING_VARIABLE)
    if (
        given is not None
        and next(filter(KNOWN_POLLING.__contains__, given.split(",")), "") in BLIND
    ):
        raise InvalidRequestError(
            f"{POLLING_VARIABLE} is {given!r}, with which gRPC would abort the process; unset it, "
            f"or name one of {', '.join(sorted(KNOWN_POLLING - BLIND))} first",
            code="client.bad_polling",
        )


def check_descriptors() -> None:
    """Raise UnavailableError (`client.no_descriptors`) if too few are free: gRPC
    would abort the process, and a loop would break."""
    try:
        with ExitStack() as held:
            for _ in range(DESCRIPTORS_MIN // 2):
                for one in os.pipe():
                    held.callback(os.close, one)
    except OSError as error:
        raise UnavailableError(
            f"fewer than {DESCRIPTORS_MIN} descriptors are free ({error.strerror}), with which "
            f"gRPC would abort the process; close some, or raise the limit of open files "
            f"('ulimit -n')",
            code="client.no_descriptors",
        ) from error


def choose_engine() -> None:
    """Choose the older engine for this process and its children, unless the variable is set."""
    spec = find_spec("grpc")  # Without importing it, which would be too late.
    if VARIABLE in os.environ or spec is None or spec.origin is None:
        return
    version = Path(spec.origin).with_name("_grpcio_metadata.py")
    if version.exists() and KNOWN_VERSIONS in version.read_text("utf-8"):
        os.environ[VARIABLE] = OLDER_ENGINE
