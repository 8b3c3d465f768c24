"""`qlog consume`: messages of a topic to stdout, with or without a group.

Owns the beginning and the end, and the time of commits and acknowledgements: after the bytes were
handed to the reader of stdout, so that a broken pipe or a kill repeats messages and loses none. The
form of a message is consume_output's.
"""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from qlog import names
from qlog.broker_groups import QUEUE, QueueName
from qlog.connection import (
    beside,
    connected,
    run,
    server_option,
    stop_on_signals,
    until,
)
from qlog.messages.consume_output import MessageWriter, OutputFormat
from qlog.messages.template import Template
from qlog.parsed import Parsed, parse_time
from qlog.progress import Show, progress_bars
from quorumlog.command_errors import ExitCode
from quorumlog.standard_output import styled

if TYPE_CHECKING:
    from quorumlog.client import Client
    from quorumlog.consume.consumer import Consumption
    from quorumlog.consume.group import GroupConsumer
    from quorumlog.consume.pop import Start
    from quorumlog.records.message import Message, MessageBatch
    from quorumlog.records.queues import Queue

_COMMIT_INTERVAL_S = 1.0
_SILENT_S = 1.0
_END_POLL_S = 0.1
_LAST_WRITE_S = 1.0
_POP_WAIT_S = 20.0
_OTHER_NAMES = {"earliest": "first", "latest": "end"}  # As Kafka has them.


def _position(text: str) -> int | str:
    if text in ("first", "end"):
        return text
    if text.startswith("@"):
        return f"@{parse_time(text[1:])}"
    if re.fullmatch("[0-9]{1,18}", text):  # `isdigit` takes digits that `int` refuses.
        return int(text)
    if re.fullmatch("-[1-9][0-9]{0,17}", text):
        return text
    if text in _OTHER_NAMES:
        raise ValueError(f"{text!r} is called {_OTHER_NAMES[text]!r} here")
    raise ValueError(f"{text!r} is none of first, end, an offset, @TIME, -COUNT")


def _until(text: str) -> int | str:
    if text == "first" or text.startswith("-"):
        raise ValueError(f"{text!r} is none of end, an offset, @TIME")
    return _position(text)


@dataclass(slots=True)
class Job:
    """The arguments of a run, and its progress."""

    topic: str
    position: int | str
    until: int | str | None
    queues: tuple[QueueName, ...]
    max_count: int | None
    tags: tuple[str, ...]
    sql: str
    node_id: int | None
    template: Template | None
    done_count: int = 0
    is_busy: bool = False  # A batch is on its way to stdout.
    done_offsets: "dict[Queue, int]" = field(default_factory=dict)
    """Next offset of each queue; everything before it was handed over."""

    @property
    def is_full(self) -> bool:
        """Whether the wanted count of messages was handed over."""
        return self.max_count is not None and self.done_count >= self.max_count

    async def hand_over(self, batch: "MessageBatch", writer: MessageWriter) -> None:
        """Write a batch, or the part of it that is still wanted."""
        messages: list[Message] | MessageBatch = batch
        next_offset = batch.next_offset
        if self.max_count is not None and self.done_count + len(batch) > self.max_count:
            messages = [batch[n] for n in range(self.max_count - self.done_count)]
            next_offset = messages[-1].queue_offset + 1
        self.is_busy = True
        writing = asyncio.ensure_future(writer.write(messages))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # A write cannot be undone: written messages are counted also after a cancel.
            await asyncio.wait({writing}, timeout=_LAST_WRITE_S)
            if not writing.done() or writing.exception() is not None:
                raise
            self._count(messages, batch, next_offset)
            raise
        self.is_busy = False
        self._count(messages, batch, next_offset)

    def _count(
        self, messages: "Sequence[Message]", batch: "MessageBatch", next_offset: int
    ) -> None:
        self.done_count += len(messages)
        self.done_offsets[batch.queue] = next_offset


@click.command()
@click.argument("topic", metavar="TOPIC", shell_complete=names.topics)
@click.option(
    "--group",
    shell_complete=names.groups,
    help="Share the topic with the members of this group; commit offsets.",
)
@click.option(
    "--pop",
    "by_pop",
    is_flag=True,
    help="With --group: take single messages out of any queue, and acknowledge each.",
)
@click.option(
    "--from",
    "position",
    default="first",
    show_default=True,
    metavar="first|end|OFFSET|-COUNT|@TIME",
    type=Parsed("position", _position),
    help="Where to begin in each queue; -100: at its newest hundred. With --group only queues "
    "without a stored offset begin there.",
)
@click.option(
    "--until",
    metavar="end|OFFSET|@TIME",
    type=Parsed("position", _until),
    help="Stop before this place of each queue, or where the queue ended when the command began, "
    "whichever comes first.",
)
@click.option(
    "--queue",
    "queues",
    type=QUEUE,
    metavar="[GROUP/]NUMBER",
    multiple=True,
    help="Only this queue, of the first broker group unless one is named.",
)
@click.option("--max-count", type=click.IntRange(min=1), help="Stop after this number of messages.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    help="Only messages with this tag; may be given again for further tags.",
)
@click.option(
    "--sql", default="", metavar="FILTER", help="Only messages whose properties make it true."
)
@click.option(
    "--node",
    "node_id",
    type=click.IntRange(min=1),
    shell_complete=names.nodes,
    help="Read this replica, whatever its role.",
)
@click.option(
    "--format",
    "template",
    metavar="TEMPLATE",
    type=Parsed("template", Template.parse),
    help="Write each message in this form, as '%o %k %s\\n'; see above.",
)
@server_option
@click.option(
    "-o",
    "--output",
    type=click.Choice([f.value for f in OutputFormat]),
    default=OutputFormat.LINES.value,
    show_default=True,
    callback=lambda _context, _parameter, value: OutputFormat(value),
    help="lines: bodies, each with a newline; a terminal shows escapes for what is not printable. "
    "raw: bodies alone, as they are.",
)
def consume(
    group: str | None, by_pop: bool, server: str | None, output: OutputFormat, **options: Any
) -> int:
    """Write the messages of a topic to stdout, and wait for more.

    In a queue, messages come in their order; queues are mixed. With --group each message goes to
    one member, and offsets are committed after it was written: a crash may repeat a message. With
    --pop any number of consumers share any number of queues, and a message that was not written
    comes again after 30 s; with --until end it ends when other consumers have all that is left.
    TIME is 2026-01-31T12:00:00Z, a Unix time in seconds or milliseconds, or an age as -15m. Ctrl-C
    ends it and commits what was written. It ends with 0 then, and with 130 before the end that
    --until or --max-count name, or when the reader of the output has stopped.

    \b
    --format, as of kcat and rpk; no newline is added:
      %s %v  body         %S %V  its bytes    %t  topic       %p  queue
      %k     key          %K     its bytes    %g  tag         %o  offset
      %h     properties   %T %d  store time   %m  message id  %%  percent sign
      \\n \\t \\r \\\\ \\xNN  bytes; properties are a=b,c=d, a time is Unix milliseconds

    \b
    Keys of -o json:
      topic, queue_id, queue_offset, message_id, key, tag, properties,
      born_unix_ms, store_unix_ms, log_position, body_size_bytes, body_encoding
      (utf-8 or base64, then ", compressed" for a body that cannot be unpacked),
      body, broker_group

    Bytes of keys and properties that are no UTF-8 are written as \\udcXX, which is an escape of
    JSON: Python has the bytes back by .encode("utf-8", "surrogateescape"). All output of qlog is
    UTF-8, whatever the locale says.

    \b
    Examples:
      qlog consume orders
      qlog consume orders --from end -o jsonl | jq .body
      qlog consume orders --from @-15m --until end
      qlog consume orders --from -100 --until end
      qlog consume orders --from @2026-01-31T12:00Z --until @2026-01-31T13:00Z
      qlog consume orders --sql "amount > 100 AND country IN ('DE', 'FR')"
      qlog consume orders --group billing --max-count 100
      qlog consume orders --group workers --pop
      qlog consume orders --queue 0 --from 1000 --max-count 1 -o json
      qlog consume orders --node 2 --until end | sha256sum
      qlog consume orders --until end --format '%p/%o %k: %s\\n'
    """
    job = Job(**options)
    if job.template is not None and output is not OutputFormat.LINES:
        raise click.UsageError("--format goes without -o")
    if group is not None and (job.queues or job.node_id is not None):
        raise click.UsageError("--group shares all queues of the leader: no --queue, no --node")
    if by_pop and (group is None or job.position not in ("first", "end")):
        raise click.UsageError("--pop needs --group, and begins at first or end")
    if group is not None and job.until not in (None, "end"):
        raise click.UsageError("with --group only --until end: members share what is there")
    if job.position == "end" and job.until is not None:
        raise click.UsageError("--from end with --until is nothing")
    if job.sql and job.tags and by_pop:
        raise click.UsageError("--pop filters by --tag or by --sql")
    return run(_consume(job, group, by_pop, server, output))


async def _consume(
    job: Job, group: str | None, by_pop: bool, server: str | None, output: OutputFormat
) -> int:
    with stop_on_signals() as stop, progress_bars(beside_output=True) as show:
        async with connected(server) as client, _waiting_said(job):
            with_groups = len(client.broker_groups) > 1
            async with MessageWriter.opened(
                output, template=job.template, with_groups=with_groups
            ) as writer:
                if group is None:
                    work = _pull(client, job, writer, show)
                elif by_pop:
                    work = _pop(client, job, group, writer, show)
                else:
                    work = _share(client, job, group, writer, show)
                await until(stop.requested, work)
        is_cut_short = stop.requested.is_set() and (
            job.until is not None or job.max_count is not None or writer.is_stuck
        )
    return ExitCode.INTERRUPTED if is_cut_short else ExitCode.OK


@asynccontextmanager
async def _waiting_said(job: Job) -> AsyncIterator[None]:
    """Say on a terminal that messages are waited for, if none came within a second."""

    def say() -> None:
        if not job.done_count:
            click.echo("\r\033[Kwaiting for messages; Ctrl-C ends", file=styled(sys.stderr))

    is_said = job.until is None and sys.stderr.isatty()
    timer = asyncio.get_running_loop().call_later(_SILENT_S, say) if is_said else None
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


async def _pop(client: "Client", job: Job, group: str, writer: MessageWriter, show: Show) -> None:
    """Take, write and acknowledge messages until enough are written, or none is left."""
    from quorumlog.consume.pop import RECEIVE_COUNT_MAX

    start: Start = "end" if job.position == "end" else "first"
    consumer = client.pop_consumer(group, job.topic, tags=job.tags, sql=job.sql, start=start)
    async with consumer:
        while job.max_count is None or job.done_count < job.max_count:
            left = RECEIVE_COUNT_MAX if job.max_count is None else job.max_count - job.done_count
            wait_s = 0 if job.until else _POP_WAIT_S
            taken = consumer.receive(min(left, RECEIVE_COUNT_MAX), wait=wait_s)
            messages = await writer.reader.during(taken)
            if not messages and job.until:
                return
            await writer.write(messages)
            job.done_count += len(messages)
            if messages:
                await consumer.ack(messages)
            show("consumed", job.done_count, job.max_count)


async def _pull(client: "Client", job: Job, writer: MessageWriter, show: Show) -> None:
    from quorumlog.records.queues import Queue

    consumer = client.pull_consumer(
        job.topic,
        queues=[Queue(job.topic, q.queue_id, q.group) for q in sorted(set(job.queues))] or None,
        position=job.position,
        until=job.until,
        consistency="leader" if job.node_id is None else "local",
        node_id=job.node_id,
        tags=job.tags,
        sql=job.sql,
    )
    async with consumer:
        await _take(consumer, job, writer, show)


async def _share(client: "Client", job: Job, group: str, writer: MessageWriter, show: Show) -> None:
    from quorumlog.records.queues import Queue

    ends = None
    if job.until:
        ranges = await client.queue_offsets(job.topic, consistency="linearizable")
        ends = {Queue(row.topic, row.queue_id, row.broker_group): row.end_offset for row in ranges}
    consumer = client.group_consumer(
        group, job.topic, position=job.position, auto_commit=False, tags=job.tags, sql=job.sql
    )
    async with consumer:
        work = _take(consumer, job, writer, show)
        if ends is not None:
            at_end = asyncio.Event()
            work = beside(_watch(consumer, job, ends, at_end), until(at_end, work))
        try:
            await beside(_keep_committed(consumer, job), work)
        finally:
            await _commit(consumer, job)


async def _take(consumer: "Consumption", job: Job, writer: MessageWriter, show: Show) -> None:
    async def take() -> None:
        async for batch in consumer.batches():
            await job.hand_over(batch, writer)
            show("consumed", job.done_count, job.max_count)
            if job.is_full:
                return

    await writer.reader.during(take())


async def _keep_committed(consumer: "GroupConsumer", job: Job) -> None:
    from quorumlog.errors import QuorumlogError

    while True:
        await asyncio.sleep(_COMMIT_INTERVAL_S)
        try:
            await _commit(consumer, job)
        except QuorumlogError as error:
            if not error.retryable:
                raise
            click.echo(f"offsets are not stored yet: {error}", err=True)


async def _commit(consumer: "GroupConsumer", job: Job) -> None:
    """Store the offsets of the messages handed over, for the queues that are still assigned."""
    from quorumlog.errors import ConflictError

    ours = set(consumer.assignment())
    handed, job.done_offsets = job.done_offsets, {}
    offsets = {queue: offset for queue, offset in handed.items() if queue in ours}
    if offsets:
        try:
            await consumer.commit_offsets(offsets)
        except ConflictError as error:  # Reading goes on there.
            click.echo(f"offsets of others stay: {error}", err=True)
        except BaseException:
            job.done_offsets = {**offsets, **job.done_offsets}
            raise


async def _watch(
    consumer: "GroupConsumer",
    job: Job,
    ends: "Mapping[Queue, int]",
    at_end: asyncio.Event,
) -> None:
    """Set the event when each assigned queue has reached the end that it had at the start."""
    while not at_end.is_set():
        offsets, ours = consumer.offsets(), consumer.assignment()
        if not job.is_busy and all(offsets[queue] >= ends.get(queue, 0) for queue in ours):
            at_end.set()
        await asyncio.sleep(_END_POLL_S)
