"""The output of `qlog consume`: messages in five forms, as they come.

Owns the forms and the writing to stdout. A write waits for the reader of a pipe on a thread: a slow
reader must not delay the heartbeats of a group.
"""

import asyncio
import enum
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from qlog.message_rows import body_text, message_row, time_text
from qlog.output import cell, to_json
from quorumlog.foreign_text import shown_lines
from quorumlog.standard_output import encoded

if TYPE_CHECKING:
    from quorumlog.records.message import Message

_WIDTHS = {"group": 8, "queue": 5, "offset": 10, "stored": 24, "tag": 10, "key": 16, "body": 0}


class OutputFormat(enum.StrEnum):
    """The values of `-o` of a stream of messages."""

    LINES = "lines"
    RAW = "raw"
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


class MessageWriter:
    """Writes batches to stdout. When a write returns, the system has the bytes."""

    def __init__(self, output: OutputFormat, *, with_groups: bool = False) -> None:
        self._output = output
        self._with_groups = with_groups
        self._is_first = True

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, output: OutputFormat, *, with_groups: bool = False
    ) -> "AsyncIterator[MessageWriter]":
        """Yield a writer, with the lines before and after all messages.

        `with_groups`: a table has a column for the broker group.
        """
        writer = cls(output, with_groups=with_groups)
        if output is OutputFormat.TABLE:
            heads = {name: name for name in _WIDTHS if with_groups or name != "group"}
            await writer._put(encoded(_table_line(heads)))
        yield writer
        if output is OutputFormat.JSON:
            await writer._put(b"[]\n" if writer._is_first else b"\n]\n")

    async def write(self, messages: "Sequence[Message]") -> None:
        """Write messages. Raises BrokenPipeError when the reader is gone."""
        if messages:
            await self._put(self._encoded(messages))
            self._is_first = False

    def _encoded(self, messages: "Sequence[Message]") -> bytes:
        match self._output:
            case OutputFormat.LINES if sys.stdout.isatty():
                texts = (one.body.decode("utf-8", "backslashreplace") for one in messages)
                return encoded("".join(f"{shown_lines(text)}\n" for text in texts))
            case OutputFormat.LINES:
                return b"\n".join([*(one.body for one in messages), b""])
            case OutputFormat.RAW:
                return b"".join(one.body for one in messages)
            case OutputFormat.TABLE:
                lines = (_table_line(_columns(one, self._with_groups)) for one in messages)
                return encoded("".join(lines))
            case OutputFormat.JSONL:
                return encoded("".join(f"{to_json(message_row(one))}\n" for one in messages))
            case OutputFormat.JSON:
                rows = ",\n".join(f"  {to_json(message_row(one))}" for one in messages)
                return encoded(("[\n" if self._is_first else ",\n") + rows)

    async def _put(self, data: bytes) -> None:
        await asyncio.to_thread(_write, data)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _columns(message: "Message", with_group: bool) -> dict[str, str]:
    body, _ = body_text(message.body)
    return {
        **({"group": message.group} if with_group else {}),
        "queue": str(message.queue_id),
        "offset": str(message.queue_offset),
        "stored": time_text(message.store_unix_ms),
        "tag": cell(message.tag),
        "key": cell(message.key),
        "body": cell(body),
    }


def _table_line(columns: dict[str, str]) -> str:
    """Return a line of fixed widths: later values are unknown. Longer values push the rest."""
    texts = [
        text.rjust(_WIDTHS[name]) if name in ("queue", "offset") else text.ljust(_WIDTHS[name])
        for name, text in columns.items()
    ]
    return "  ".join(texts).rstrip() + "\n"
