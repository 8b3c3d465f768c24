"""The input of `qlog produce`: files and pipes cut into messages.

Owns the formats of the input (lines, by a template or not, jsonl, raw) and the reading of a
descriptor without blocking the event loop. Must not know how messages are sent. Memory is bounded:
one chunk and one message are held.
"""

import asyncio
import base64
import binascii
import codecs
import enum
import errno
import os
import re
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from qlog.messages.template import Template
from quorumlog.command_errors import CliError, nearest
from quorumlog.foreign_json import read_json

CHUNK_SIZE_BYTES = 1 << 20
MESSAGE_SIZE_BYTES_MAX = 16 << 20  # Of input; above every limit of a node, which reports its own.
_QUEUE_ID_MAX = (1 << 31) - 1
_JSON_KEYS = ("body", "body_encoding", "key", "properties", "queue_id", "tag")
_OF_OLD_COPY = {
    *("topic", "queue_offset", "message_id", "born_unix_ms", "store_unix_ms", "log_position"),
    *("body_size_bytes", "broker_group", "origin_topic", "reconsume_times", "is_resent"),
}
"""Keys of consumed messages and dead letters that a new message has no use for."""


class InputFormat(enum.StrEnum):
    """The values of `--format` beside templates."""

    LINES = "lines"
    JSONL = "jsonl"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class InputMessage:
    """One message of the input."""

    body: bytes
    key: str | None = None
    tag: str | None = None
    queue_id: int | None = None
    properties: dict[str, str] = field(default_factory=dict)
    group: str = ""
    """The broker group of the queue. Never from the input: the target may have other groups."""
    wish: dict[str, Any] = field(default_factory=dict)
    """Delivery time, as `producer.send` takes it. Never from the input either."""


class LineSplitter:
    """Cuts chunks into lines without their newline; the rest of a chunk waits for the next one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rest: list[bytes] = []  # Pieces of a line that has not ended yet.
        self._rest_size_bytes = 0
        self.line_count = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add a chunk and return the lines that it completes. Raises CliError for a huge one."""
        lines = chunk.split(b"\n")
        if len(lines) > 1:
            self._rest.append(lines[0])
            lines[0] = b"".join(self._rest)
            self._rest, self._rest_size_bytes = [], 0
        self._rest.append(lines.pop())
        self._rest_size_bytes += len(self._rest[-1])
        self.line_count += len(lines)
        if self._rest_size_bytes > MESSAGE_SIZE_BYTES_MAX:
            raise _too_big(f"line {self.line_count + 1} of {self._name}")
        return lines

    def finish(self) -> list[bytes]:
        """Return the last line if it has no newline; nothing after a final newline."""
        last = b"".join(self._rest)
        self._rest, self._rest_size_bytes = [], 0
        self.line_count += bool(last)
        return [last] if last else []


def parse_lines(
    lines: list[bytes], *, first_line: int, name: str, template: Template | None
) -> Iterator[InputMessage]:
    """Turn lines into messages, each of which is a body, or has the form of the template. A key or
    tag that is empty is none.

    Raises CliError for a line of another form: guessing would put it into a wrong queue.
    """
    if template is None:
        yield from map(InputMessage, lines)
        return
    for number, line in enumerate(lines, first_line):
        parts = template.split(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line)
        where = f"line {number} of {name}"
        if parts is None:
            raise CliError(
                f"{where} has not the form {template.text!r}",
                "every line must have what is between the parts, in this order",
                "correct the line, or choose another --format",
            )
        queue_id = parts.get("p")
        if queue_id is not None and re.fullmatch(b"[0-9]{1,9}", queue_id) is None:
            raise CliError(
                f"{where} names the queue {queue_id.decode('utf-8', 'backslashreplace')!r}",
                "%p is the number of a queue, from 0 on",
                "correct the line, or choose another --format",
            )
        yield InputMessage(
            parts["s"],
            key=_utf8(parts.get("k", b""), "key", where) or None,
            tag=_utf8(parts.get("g", b""), "tag", where) or None,
            queue_id=None if queue_id is None else int(queue_id),
        )


def parse_json_lines(lines: list[bytes], *, first_line: int, name: str) -> Iterator[InputMessage]:
    """Turn lines of JSON, as `qlog consume -o jsonl` writes them, into messages.

    `body` is needed; `body_encoding` (utf-8 or base64), `key`, `tag`, `queue_id` and `properties`
    are taken. Other keys of consumed messages are left out: they belong to the old copy. Raises
    CliError for a key that neither has: what was meant by it would be lost.
    """
    for number, line in enumerate(lines, first_line):
        if not line.strip():
            continue
        try:
            yield _from_json(read_json(line, is_unique=True))
        except (ValueError, TypeError, KeyError) as error:
            raise CliError(
                f"line {number} of {name} is no message: {error}",
                "each line must be a JSON object with a text as body; its keys are "
                + ", ".join(_JSON_KEYS),
                'for example {"body": "hello", "key": "k", "tag": "t", "properties": {"a": "b"}}',
            ) from error


def _from_json(value: Any) -> InputMessage:
    if not isinstance(value, dict):
        raise TypeError(f"a JSON object is needed, not {type(value).__name__}")
    if strange := [name for name in value if name not in _OF_OLD_COPY.union(_JSON_KEYS)]:
        proposal = nearest(strange[0], _JSON_KEYS).removesuffix(" else ")
        raise ValueError(f"unknown key {strange[0][:60]!r}{proposal and '; ' + proposal}")
    if not isinstance(value.get("body"), str):
        raise TypeError("the body is missing or no text")
    encoding = value.get("body_encoding") or "utf-8"
    if encoding == "utf-8":
        body = value["body"].encode()
    elif encoding == "base64":
        try:
            body = base64.b64decode(value["body"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"the body is no base64 ({error})") from error
    else:
        raise ValueError(f"body_encoding is {encoding!r}, not utf-8 or base64")
    queue_id = value.get("queue_id")
    if queue_id is not None and (not isinstance(queue_id, int) or isinstance(queue_id, bool)):
        raise TypeError("queue_id is no whole number")
    if queue_id is not None and not 0 <= queue_id <= _QUEUE_ID_MAX:
        raise ValueError(f"queue_id is not from 0 to {_QUEUE_ID_MAX}")
    properties = value.get("properties") or {}
    if not isinstance(properties, dict) or not all(
        isinstance(text, str) for pair in properties.items() for text in pair
    ):
        raise TypeError("properties is no object of texts")
    return InputMessage(
        body,
        key=_text_or_none(value, "key"),
        tag=_text_or_none(value, "tag"),
        queue_id=queue_id,
        properties=properties,
    )


def _text_or_none(value: dict[str, Any], name: str) -> str | None:
    text = value.get(name)
    if text is not None and not isinstance(text, str):
        raise TypeError(f"{name} is no text")
    return text


def _utf8(part: bytes, what: str, where: str) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError as error:
        raise CliError(
            f"the {what} in {where} is no UTF-8: {error.reason}",
            f"a {what} is text",
            "re-encode the file, or choose another --format",
        ) from error


def _too_big(what: str) -> CliError:
    return CliError(
        f"{what} is larger than {MESSAGE_SIZE_BYTES_MAX} B",
        "a message must fit into one batch, and nothing was cut",
        "split the input, or choose another --format",
    )


@contextmanager
def opened(path: str) -> Iterator[int]:
    """Yield the descriptor of a file, or of stdin for `-`; stdin is left open."""
    if path == "-":
        yield 0
        return
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):  # The first read would not name it.
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        yield fd
    finally:
        os.close(fd)


async def read_chunks(fd: int) -> AsyncIterator[bytes]:
    """Read to the end, in chunks as received.

    A pipe or terminal is awaited on the loop, so that Ctrl-C works at once and no thread is left in
    a read. A regular file is always readable, and epoll refuses it: it is read directly.
    """
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(fd, readable.set)
    except (OSError, NotImplementedError, ValueError):
        while chunk := os.read(fd, CHUNK_SIZE_BYTES):
            yield chunk
            await asyncio.sleep(0)
        return
    try:
        while True:
            await readable.wait()
            readable.clear()
            chunk = os.read(fd, CHUNK_SIZE_BYTES)
            if not chunk:
                return
            yield chunk
            await asyncio.sleep(0)
    finally:
        loop.remove_reader(fd)


async def messages(
    fd: int, *, name: str, input_format: InputFormat | Template
) -> AsyncIterator[list[InputMessage]]:
    """Read a descriptor to its end, as lists of messages in their order."""
    if input_format is InputFormat.RAW:
        parts, size_bytes = [], 0
        async for chunk in read_chunks(fd):
            parts.append(chunk)
            size_bytes += len(chunk)
            if size_bytes > MESSAGE_SIZE_BYTES_MAX:
                raise _too_big(name)
        yield [InputMessage(b"".join(parts))]
        return
    splitter = LineSplitter(name)

    def parse(lines: list[bytes]) -> Iterator[InputMessage]:
        first_line = splitter.line_count - len(lines) + 1
        if input_format is InputFormat.JSONL:
            return parse_json_lines(lines, first_line=first_line, name=name)
        template = input_format if isinstance(input_format, Template) else None
        return parse_lines(lines, first_line=first_line, name=name, template=template)

    async for chunk in read_chunks(fd):
        for found in _until_fault(parse(splitter.feed(chunk))):
            yield found
    for found in _until_fault(parse(splitter.finish())):
        yield found


def _until_fault(parsed: Iterator[InputMessage]) -> Iterator[list[InputMessage]]:
    """Yield all as one list; for a faulty line, first the list of those before it, then raise."""
    messages: list[InputMessage] = []
    try:
        messages.extend(parsed)
    except CliError:
        yield messages  # `extend` keeps what it had taken.
        raise
    if messages:
        yield messages
