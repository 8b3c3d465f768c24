"""Log lines of a node: for people on a terminal, one JSON object a line elsewhere.

Owns the format, and the values that must never be in a line. Other code logs through
`structlog.get_logger(component=...)` with an event and values by name; lines of libraries that use
`logging`, and raw lines on stderr (`raw_lines`), get the same form. Lines go to stderr at once,
from any thread: the parent process of the node must read it or send it to a file.
"""

import io
import logging
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any, Final, Literal, TextIO

import structlog

from node.runtime.logs.events import EVENTS, OF_OTHERS
from node.runtime.logs.line_budget import LIBRARY_LINES
from node.runtime.logs.rate_limited_log import RateLimitedLog
from node.runtime.logs.raw_lines import take_over
from quorumlog.foreign_text import shown, shown_lines
from quorumlog.tls_words import reason_of

SECRET_WORDS: Final = frozenset(
    {"secret", "password", "token", "auth", "credential", "private_key"}
)
HIDDEN: Final = "(hidden)"
OWN_PACKAGES: Final = ("node", "raft", "store")
PYTHON_LINES: Final = "stderr"
NATIVE_LINES: Final = "native"
"""Components of lines that were written to stderr past the log."""
_TLS_LINES: Final = RateLimitedLog(logging.getLogger("node.grpc"))
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
    """Set up logging for the process; `bound` is in every line (the node's number).

    If lines are JSON, the log takes stderr over: from then on each of its lines is a log line.
    `stream` is for tests.
    """
    is_own = stream is not None
    stream = stream or sys.stderr
    is_console = form == "console" or (form == "auto" and stream.isatty())
    if not is_console and not is_own:
        with suppress(OSError):  # There is no stderr, or no descriptor is left.
            stream = take_over(_log_python_line, _log_native_line)
    processors: list[Any] = [
        _bound(dict(bound or {})),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        hide_secrets,
        EVENTS,
    ]
    if is_console:
        processors.append(show_texts)
        processors.append(
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty(), timestamp_key="time", exception_formatter=_write_traceback
            )
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
    logging.captureWarnings(True)
    root.setLevel(max(_LIBRARY_LEVEL, _LEVELS[level]))
    for package in OWN_PACKAGES:
        logging.getLogger(package).setLevel(_LEVELS[level])


def _bound(values: Mapping[str, object]) -> Any:
    def add(_logger: object, _method: str, line: MutableMapping[str, Any]) -> Mapping[str, Any]:
        for name, value in values.items():
            line.setdefault(name, value)
        return line

    return add


def hide_secrets(
    _logger: object, _method: str, line: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Replace every value with the name of a secret; names that end in `_file` are paths."""
    for name in line:
        lower = name.lower()
        if not lower.endswith("_file") and any(word in lower for word in SECRET_WORDS):
            line[name] = HIDDEN
    return line


def show_texts(
    _logger: object, _method: str, line: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Escape texts, which may quote what a client sent; JSON has escapes of its own."""
    for name, value in line.items():
        if isinstance(value, str):
            line[name] = shown(value)
    return line


def _write_traceback(stream: TextIO, error: Any) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, error)
    stream.write(shown_lines(text.getvalue()))


class _ToStructlog(logging.Handler):
    """Brings lines of libraries into our form, within the budget of each library."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        extra: dict[str, Any] = {"exc_info": error} if error is not None else {}
        if record.name.partition(".")[0] not in OWN_PACKAGES:
            gone = LIBRARY_LINES.take(record.name)
            if gone is None:
                return
            extra |= _of_others(gone)
        log = structlog.get_logger()
        log.log(record.levelno, record.getMessage(), component=record.name, **extra)


def _of_others(gone: int) -> dict[str, Any]:
    return {OF_OTHERS: True} | ({"lines_left_out": gone} if gone else {})


def _log_python_line(line: str) -> None:
    structlog.get_logger().error(line, component=PYTHON_LINES, **_of_others(0))


def _log_native_line(line: str) -> None:
    reason = reason_of(line) if "Handshake failed" in line else None
    if reason is not None:
        _TLS_LINES.warn(f"gRPC connection refused, {reason.what}", reason.do)
        return
    gone = LIBRARY_LINES.take(NATIVE_LINES)
    if gone is not None:
        structlog.get_logger().warning(line, component=NATIVE_LINES, **_of_others(gone))
