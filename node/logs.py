"""Log lines of a node: for people on a terminal, one JSON object a line elsewhere.

Owns the format and what must never be in a line. Other code logs through
`structlog.get_logger(component=...)` with an event and values by name; libraries that use `logging`
are brought into the same form. Lines go to stderr at once, from whatever thread: who starts the
node must read it or send it to a file.
"""

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, Literal, TextIO

import structlog

SECRET_WORDS: Final = frozenset(
    {"secret", "password", "token", "auth", "credential", "private_key"}
)
HIDDEN: Final = "(hidden)"
OWN_PACKAGES: Final = ("node", "raft", "store")
_LIBRARY_LEVEL: Final = logging.WARNING
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure(
    level: str,
    form: Literal["auto", "console", "json"],
    *,
    stream: TextIO | None = None,
    bound: Mapping[str, object] | None = None,
) -> None:
    """Set up logging for the process; `bound` is in every line (the node's number)."""
    stream = stream or sys.stderr
    is_console = form == "console" or (form == "auto" and stream.isatty())
    processors: list[Any] = [
        _Bound(dict(bound or {})),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        hide_secrets,
    ]
    if is_console:
        processors.append(
            structlog.dev.ConsoleRenderer(colors=stream.isatty(), timestamp_key="time")
        )
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [_ToStructlog()]
    root.setLevel(max(_LIBRARY_LEVEL, _LEVELS[level]))
    for package in OWN_PACKAGES:
        logging.getLogger(package).setLevel(_LEVELS[level])


class _Bound:
    """Puts the same values into every line."""

    def __init__(self, values: dict[str, object]) -> None:
        self._values = values

    def __call__(
        self, _logger: object, _method: str, line: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        for name, value in self._values.items():
            line.setdefault(name, value)
        return line


def hide_secrets(
    _logger: object, _method: str, line: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Replace every value whose name says that it is a secret; paths of files are none."""
    for name in line:
        lower = name.lower()
        if not lower.endswith("_file") and any(word in lower for word in SECRET_WORDS):
            line[name] = HIDDEN
    return line


class _ToStructlog(logging.Handler):
    """Brings lines of libraries into our form."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger()
        error = record.exc_info[1] if record.exc_info else None
        extra = {"exc_info": error} if error is not None else {}
        log.log(record.levelno, record.getMessage(), component=record.name, **extra)
