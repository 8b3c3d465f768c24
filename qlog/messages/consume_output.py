"""The output of `qlog consume`: messages in five forms, as they come.

Owns the forms and the writing to stdout. A write waits for the reader of a pipe on a thread: a slow
reader must not delay the heartbeats of a group, and one that reads no more not the end.
"""

import asyncio
import enum
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from qlog.connection import Reader
from qlog.message_rows import body_text, message_row, plain_body, time_text
from qlog.messages.template import Template
from qlog.output import cell, line_width, to_json, width_of, wrapped
from quorumlog.foreign_text import shown_lines
from quorumlog.standard_output import encoded

if TYPE_CHECKING:
    from quorumlog.records.message import Message

_WIDTHS = {
    "broker_group": 12, "queue_id": 8, "queue_offset": 12, "store_time": 24, "tag": 6, "key": 8,
    "body": 0,
}  # fmt: skip


class OutputFormat(enum.StrEnum):
    """The values of `-o` of a stream of messages."""

    LINES = "lines"
    RAW = "raw"
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


class MessageWriter:
    """Writes batches to stdout. When a write returns, the system has the bytes."""

    def __init__(
        self, output: OutputFormat, *, template: Template | None = None, with_groups: bool = False
    ) -> None:
        self._output, self._template = output, template
        self._with_groups = with_groups
        self._is_first, self.reader = True, Reader()
        self.is_stuck = False
        """Whether a write was given up: the end of the output is missing."""

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, output: OutputFormat, *, template: Template | None = None, with_groups: bool = False
    ) -> "AsyncIterator[MessageWriter]":
        """Yield a writer, with the lines before and after all messages.

        `template` is the form of each message, in the place of lines. `with_groups`: a table has a
        column for the broker group.
        """
        writer = cls(output, template=template, with_groups=with_groups)
        if output is OutputFormat.TABLE:
            heads = {name: name for name in _WIDTHS if with_groups or name != "broker_group"}
            await writer._put(encoded(_table_line(heads)))
        yield writer
        if output is OutputFormat.JSON and not writer.is_stuck:
            await writer._put(b"[]\n" if writer._is_first else b"\n]\n")

    async def write(self, messages: "Sequence[Message]") -> None:
        """Write messages. Raises BrokenPipeError when the reader is gone."""
        if messages:
            await self._put(self._encoded(messages))
            self._is_first = False

    def _encoded(self, messages: "Sequence[Message]") -> bytes:
        bodies = (plain_body(one)[0] for one in messages)
        if self._template is not None:
            data = b"".join(map(self._template.render, messages, bodies))
            text = data.decode("utf-8", "backslashreplace") if sys.stdout.isatty() else None
            return data if text is None else encoded(shown_lines(text))
        match self._output:
            case OutputFormat.LINES if sys.stdout.isatty():
                texts = (body.decode("utf-8", "backslashreplace") for body in bodies)
                return encoded("".join(f"{shown_lines(text)}\n" for text in texts))
            case OutputFormat.LINES:
                return b"\n".join([*bodies, b""])
            case OutputFormat.RAW:
                return b"".join(bodies)
            case OutputFormat.TABLE:
                lines = (_table_line(_columns(one, self._with_groups)) for one in messages)
                return encoded("".join(lines))
            case OutputFormat.JSONL:
                return encoded("".join(f"{to_json(message_row(one))}\n" for one in messages))
            case OutputFormat.JSON:
                rows = ",\n".join(f"  {to_json(message_row(one))}" for one in messages)
                return encoded(("[\n" if self._is_first else ",\n") + rows)

    async def _put(self, data: bytes) -> None:
        done = Future[None]()
        done.set_running_or_notify_cancel()
        # The program does not end before threads of an executor do.
        threading.Thread(target=_write, args=(data, done), daemon=True).start()
        self.is_stuck = True
        await asyncio.wrap_future(done)
        self.is_stuck = False


def _write(data: bytes, done: Future[None]) -> None:
    """Write past the buffer of stdout, whose lock the end of the program takes."""
    try:
        sys.stdout.flush()
        stream, left = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer), memoryview(data)
        while left:
            left = left[stream.write(left) :]
        done.set_result(None)
    except BaseException as error:  # noqa: BLE001 - the waiter raises it.
        done.set_exception(error)


def _columns(message: "Message", with_group: bool) -> dict[str, str]:
    body, _ = body_text(plain_body(message)[0])
    return {
        **({"broker_group": message.broker_group} if with_group else {}),
        "queue_id": str(message.queue_id),
        "queue_offset": str(message.queue_offset),
        "store_time": time_text(message.store_unix_ms),
        "tag": cell(message.tag),
        "key": cell(message.key),
        "body": cell(body),
    }


def _table_line(columns: dict[str, str]) -> str:
    """Return a line of fixed widths: later values are unknown. Longer values push the rest; what is
    wider than a terminal has its body below."""
    texts = [
        text.rjust(_WIDTHS[name]) if name.startswith("queue") else text.ljust(_WIDTHS[name])
        for name, text in columns.items()
    ]
    line, width = "  ".join(texts).rstrip(), line_width()
    if width is None or width_of(line) <= width:
        return line + "\n"
    lines = wrapped("  ".join(texts[:-1]).rstrip(), width)
    return "".join(
        f"{one}\n" for one in [*lines, *(f"  {b}" for b in wrapped(texts[-1], width - 2))]
    )
