"""`qlog produce`: messages from a file or a pipe into a topic, and the counts of their outcomes.

Owns the counting: a message is acked when its receipt came, failed when it is known not to be in
the log, and unknown otherwise. The counts claim no more than that. The reading is produce_input's.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from qlog import names
from qlog.broker_groups import QUEUE, QueueName
from qlog.connection import (
    StopSignals,
    call_timeout_ms,
    connected,
    propose,
    run,
    server_option,
    stop_on_signals,
    until,
)
from qlog.messages.produce_input import InputFormat, InputMessage, messages, opened
from qlog.messages.template import Template
from qlog.output import Format, counted, output_option, print_record
from qlog.parsed import Parsed, parse_duration, parse_time
from qlog.progress import Show, progress_bars, show_nothing
from quorumlog.command_errors import CliError, ExitCode, explain

if TYPE_CHECKING:
    from quorumlog.errors import QuorumlogError
    from quorumlog.produce.delivery import Delivery
    from quorumlog.produce.producer import Producer
    from quorumlog.records.receipt import AppendStages, Receipt


# Deadlines run while messages wait in the buffer: a small one is emptied in seconds.
_PENDING_SIZE_BYTES_MAX = 4 << 20
_BUFFER_SIZE_BYTES_MAX = 2 * _PENDING_SIZE_BYTES_MAX  # The count of what is pending comes first.
_MESSAGE_SIZE_BYTES = 128  # Of a message without its body, roughly.
_TIMEOUT_MS = 30_000
_DURABILITIES = {
    "quorum_disk": "synced on a quorum",
    "quorum_memory": "in memory on a quorum",
    "leader_disk": "synced on one node",
    "copies_disk": "synced on the copies of the group",
}
COMPRESSIONS = ("zlib", "lz4", "zstd")
"""The client's names, written out: importing the client is slow, and help needs only these."""


@dataclass(frozen=True, slots=True)
class Job:
    """The arguments of a run."""

    topic: str
    source: str
    input_format: InputFormat | Template
    key: str | None
    tag: str | None
    properties: dict[str, str]
    queue: QueueName | None
    delay: float | None
    level: int | None
    deliver_at: float | None
    compression: str | None

    @property
    def defaults(self) -> InputMessage:
        """The fields of a message that the input does not name."""
        names = ("delay", "level", "deliver_at")
        wish = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        place = {} if self.queue is None else self.queue._asdict()
        return InputMessage(
            b"", key=self.key, tag=self.tag, properties=self.properties, wish=wish, **place
        )


@dataclass(slots=True)
class Tally:
    """Counts of the outcomes of the messages that were read."""

    taken_count: int = 0
    acked_count: int = 0
    failed_count: int = 0
    unknown_count: int = 0
    duplicate_count: int = 0
    acked_size_bytes: int = 0
    in_order_count: int = 0
    """Count of messages from the first on that are acked without a gap: a new run may skip them."""
    durability: dict[str, int] = field(default_factory=dict)
    took_us: dict[str, list[int]] = field(default_factory=dict)
    """By stage: the sum and the maximum of the times of acked messages."""
    first_error: "QuorumlogError | None" = None
    pending: "deque[tuple[Delivery | QuorumlogError, int]]" = field(default_factory=deque)
    """Messages that are not counted yet, in the order of the input, with the size of the body."""

    pending_size_bytes: int = 0
    is_closed: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    failed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, delivery: "Delivery | QuorumlogError", size_bytes: int) -> None:
        """Add a message that the producer took, or refused at once."""
        from quorumlog.errors import QuorumlogError

        self.taken_count += 1
        if isinstance(delivery, QuorumlogError):
            self.failed.set()
        self.pending.append((delivery, size_bytes))
        self.pending_size_bytes += size_bytes + _MESSAGE_SIZE_BYTES
        self.arrived.set()

    async def wait_for_room(self) -> None:
        """Wait until half of the room is free, so that messages come in runs, or until one failed.

        A wait in the producer would end before the failure is counted, and the rest would have a
        time-out of its own."""
        while self.pending_size_bytes > _PENDING_SIZE_BYTES_MAX // 2 and not self.failed.is_set():
            self.settled.clear()
            await self.settled.wait()

    def close(self) -> None:
        """Note that no more messages will be added."""
        self.is_closed = True
        self.arrived.set()

    async def settle(self) -> None:
        """Count the outcomes as answers come, until closed and all are counted."""
        while True:
            while self.pending:
                await self._settle_first()
            if self.is_closed:
                return
            self.arrived.clear()
            await self.arrived.wait()

    async def _settle_first(self) -> None:
        """Wait for the answer to the oldest message and count it. If cancelled, it stays."""
        from quorumlog.errors import Outcome, QuorumlogError

        delivery, size_bytes = self.pending[0]
        try:
            if isinstance(delivery, QuorumlogError):
                raise delivery
            receipt = await delivery
        except QuorumlogError as error:
            self.first_error = self.first_error or error
            self.failed.set()
            if error.outcome is Outcome.NOT_APPLIED:
                self.failed_count += 1
            else:
                self.unknown_count += 1
        else:
            self.acked_count += 1
            self.acked_size_bytes += size_bytes
            self.duplicate_count += receipt.is_duplicate
            level = receipt.durability.value
            self.durability[level] = self.durability.get(level, 0) + 1
            if receipt.stages is not None:
                self._add_times(receipt, receipt.stages)
            if self.first_error is None:
                self.in_order_count += 1
        self.pending.popleft()
        self.pending_size_bytes -= size_bytes + _MESSAGE_SIZE_BYTES
        self.settled.set()

    def _add_times(self, receipt: "Receipt", stages: "AppendStages") -> None:
        times = {"total": int(receipt.duration_ms * 1000), "leader": receipt.commit_us}
        times |= {
            name: getattr(stages, f"{name}_us") for name in ("queued", "sent", "quorum", "applied")
        }
        for name, time_us in times.items():
            sums = self.took_us.setdefault(name, [0, 0])
            sums[0] += time_us
            sums[1] = max(sums[1], time_us)

    async def give_up(self, producer: "Producer") -> None:
        """Stop waiting: messages that were sent become unknown, others fail; neither is a new
        error."""
        error = self.first_error
        await producer.abort()
        await self.settle()
        self.first_error = error

    def row(self, *, topic: str, source: str, seconds: float, is_complete: bool) -> dict[str, Any]:
        """Return the stable JSON of a run."""
        assert self.taken_count == self.acked_count + self.failed_count + self.unknown_count
        return {
            "topic": topic,
            "source": source,
            "complete": is_complete,
            "taken_count": self.taken_count,
            "acked_count": self.acked_count,
            "failed_count": self.failed_count,
            "unknown_count": self.unknown_count,
            "acked_in_order_count": self.in_order_count,
            "duplicate_count": self.duplicate_count,
            "durability": dict(sorted(self.durability.items())),
            "acked_size_bytes": self.acked_size_bytes,
            "seconds": round(seconds, 3),
            "acked_msgs_per_s": round(self.acked_count / seconds, 1),
            "acked_mb_per_s": round(self.acked_size_bytes / seconds / 1e6, 3),
            "times": [
                {
                    "stage": stage,
                    "mean_ms": round(total_us / (self.acked_count * 1000), 3),
                    "max_ms": round(max_us / 1000, 3),
                }
                for stage, (total_us, max_us) in self.took_us.items()
            ],
        }


def _format(text: str) -> InputFormat | Template:
    if "%" in text:
        return Template.parse_input(text)
    if text not in [one.value for one in InputFormat]:
        raise ValueError(f"{text!r} is none of lines, jsonl, raw, and no template such as '%k:%s'")
    return InputFormat(text)


def _properties(
    _context: click.Context, _option: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    pairs = [one.partition("=") for one in given]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise click.BadParameter(f"{name!r} is not NAME=VALUE")
    values: dict[str, str] = {}
    for name, _, value in pairs:
        if values.setdefault(name, value) != value:
            raise click.BadParameter(f"{name!r} is given twice, with different values")
    return values


_DURATION = Parsed("duration", lambda text: parse_duration(text) / 1000)
_TIME = Parsed("time", lambda text: parse_time(text) / 1000)


@click.command()
@click.argument("topic", metavar="TOPIC", shell_complete=names.topics)
@click.option(
    "-f", "--file", "source", default="-", show_default=True, help="Input file, or - for stdin."
)
@click.option(
    "--format",
    "input_format",
    metavar="lines|jsonl|raw|TEMPLATE",
    type=Parsed("format", _format),
    default=InputFormat.LINES.value,
    show_default=True,
    help="lines: each line a body. jsonl: each line a JSON object. raw: all one message. Or the "
    "form of each line, as '%k:%s': %k key, %s or %v body, %g tag, %p queue.",
)
@click.option("--key-separator", metavar="TEXT", help="The same as --format '%kTEXT%s'.")
@click.option("--key", help="Key of each message for which the input has none.")
@click.option("--tag", help="Tag of each message for which the input has none.")
@click.option(
    "--property",
    "properties",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_properties,
    help="Property of each message that has none of this name; may be given again.",
)
@click.option(
    "--queue",
    type=QUEUE,
    metavar="[GROUP/]NUMBER",
    help="Send to this queue only, of the first broker group unless one is named.",
)
@click.option(
    "--delay", metavar="DURATION", type=_DURATION, help="Deliver so much later: 10s, 5m, 2h."
)
@click.option(
    "--level",
    type=click.IntRange(1, 18),
    help="Deliver later, by RocketMQ's levels: 1 is 1 s, 18 is 2 h.",
)
@click.option(
    "--deliver-at", metavar="TIME", type=_TIME, help="Deliver then: 2026-01-31T12:00:00Z."
)
@click.option(
    "--compression",
    type=click.Choice(COMPRESSIONS),
    help="Send bodies of 4 KiB and more compressed, if that makes them smaller.",
)
@server_option
@output_option
def produce(server: str | None, output: Format, key_separator: str | None, **options: Any) -> int:
    """Send messages from a file or a pipe.

    Prints how many messages were acked: only those with a receipt count. An error before anything
    was sent is printed alone. After the first failure it reads no more; acked_in_order_count is the
    number of messages acked before it, which a new run may skip. Ctrl-C stops reading and waits for
    receipts; a second Ctrl-C does not wait, and counts messages without a receipt as unknown: they
    may be in the log. Consumers unpack compressed bodies; lz4 and zstd need the extra `compression`
    on both sides: pip install 'quorumlog[compression]'.

    \b
    JSON of --format jsonl, as `qlog consume -o jsonl` writes it:
      {"body": "text", "body_encoding": "utf-8|base64", "key": "k", "tag": "t",
       "queue_id": 0, "properties": {"a": "b"}}      only body is needed
    Each line is UTF-8. A line is refused that has a key twice, or a key that is
    not among these or those of `qlog consume -o jsonl`.

    \b
    Keys of -o json:
      topic, source, complete, taken_count, acked_count, failed_count,
      unknown_count, acked_in_order_count, duplicate_count, durability (receipts
      by level), acked_size_bytes, seconds, acked_msgs_per_s, acked_mb_per_s,
      times
      times: stage, mean_ms, max_ms

    \b
    times has the stages of a batch:
      total    from its first message in the producer to its receipt
      leader   of that, at the leader; the next four are its parts
      queued   until the leader has room
      sent     until it is written, and sent to the other nodes
      quorum   until enough nodes have it
      applied  until readers see it, and the receipt leaves

    \b
    Examples:
      qlog produce orders --file orders.txt
      seq 1000 | qlog produce orders -o json | jq .acked_count
      qlog produce orders --file orders.csv --key-separator ,
      qlog produce orders --file orders.tsv --format '%k\\t%g\\t%s'
      echo hello | qlog produce orders --key k1 --tag new --property source=shell
      qlog consume orders --until end -o jsonl | qlog produce copy --format jsonl
      qlog produce images --file cat.png --format raw
      echo 'wake up' | qlog produce alarms --delay 10m
      qlog produce reports --file report.json --format raw --compression zlib

    Ends with 0 when every message was acked, with 7 when one may be in the log or not,
    else with the code of the first failure (qlog --help has all), and with 130 after Ctrl-C.
    """
    job = Job(**options)
    if key_separator == "" or (key_separator and job.input_format != InputFormat.LINES):
        raise click.UsageError("--key-separator is a text, and goes with --format lines")
    if key_separator:
        job = replace(
            job, input_format=Template(f"%k{key_separator}%s", ("k", key_separator.encode(), "s"))
        )
    if len(job.defaults.wish) > 1:
        raise click.UsageError("give one of --delay, --level and --deliver-at")
    return run(_produce(job, server, output))


async def _produce(job: Job, server: str | None, output: Format) -> int:
    tally, reading_error, began = Tally(), None, time.perf_counter()
    with (
        opened(job.source) as fd,
        stop_on_signals() as stop,
        # A bar would be drawn over what is typed.
        nullcontext(show_nothing) if os.isatty(fd) else progress_bars() as show,
    ):
        async with connected(server) as client:
            is_complete = False
            if os.isatty(fd):
                click.echo("reading messages from the terminal; Ctrl-D ends", err=True)
            try:
                producer = client.producer(
                    buffer_size_bytes_max=_BUFFER_SIZE_BYTES_MAX,
                    compression=job.compression,
                    timeout_ms=call_timeout_ms(_TIMEOUT_MS),
                    with_stages=output is not Format.TABLE,
                )
                batches = messages(fd, name=job.source, input_format=job.input_format)
                is_complete = await _send(producer, tally, stop, show, job, batches)
                if is_complete and not tally.taken_count:
                    await client.admin.describe_topic(job.topic)  # No send has looked for it.
            except CliError as error:  # An error of the input; sent messages are counted first.
                reading_error = error
            if tally.first_error is not None:
                await propose(client, tally.first_error)
            seconds = time.perf_counter() - began
    is_complete = is_complete and tally.acked_count == tally.taken_count
    is_stopped = stop.requested.is_set() and not is_complete
    row = tally.row(topic=job.topic, source=job.source, seconds=seconds, is_complete=is_complete)
    if output is Format.TABLE:
        del row["times"]
        levels = row["durability"].items()
        texts = [f"{count} {_DURABILITIES.get(level, level)}" for level, count in levels]
        row |= {"durability": ", ".join(texts) or None}
    has_error = reading_error is not None or tally.first_error is not None
    if tally.acked_count or tally.unknown_count or not has_error:  # Else the error says it all.
        print_record(row, output)
    return _verdict(tally, reading_error, is_stopped=is_stopped)


async def _send(
    producer: "Producer",
    tally: Tally,
    stop: StopSignals,
    show: Show,
    job: Job,
    batches: AsyncIterator[list[InputMessage]],
) -> bool:
    """Send all messages and count each; return whether the input was read to its end."""
    settler = asyncio.ensure_future(tally.settle())

    async def read() -> bool:
        async for batch in batches:
            await _enqueue(producer, tally, batch, job)
            show("acked", tally.acked_count, None)
        return True

    async def finish() -> None:
        await settler
        await producer.close()

    try:
        return bool(await until(stop.requested, until(tally.failed, read())))
    finally:
        tally.close()
        if stop.requested.is_set() and tally.pending:
            click.echo(
                f"stopping; {counted(len(tally.pending), 'message')} without a receipt yet "
                "(again: do not wait)",
                err=True,
            )
        await until(stop.forced, finish())
        await tally.give_up(producer)


async def _enqueue(producer: "Producer", tally: Tally, batch: list[InputMessage], job: Job) -> None:
    """Hand messages to the producer, waiting for room; each is counted when it was taken."""
    from quorumlog.errors import QuorumlogError

    defaults = job.defaults
    for message in batch:
        if tally.pending_size_bytes >= _PENDING_SIZE_BYTES_MAX:
            await tally.wait_for_room()
        if tally.failed.is_set():
            return
        try:
            delivery = await producer.enqueue(
                job.topic,
                message.body,
                key=message.key if message.key is not None else defaults.key,
                tag=message.tag if message.tag is not None else defaults.tag,
                queue_id=message.queue_id if defaults.queue_id is None else defaults.queue_id,
                properties={**defaults.properties, **message.properties} or None,
                broker_group=defaults.group,
                **defaults.wish,
            )
        except QuorumlogError as error:
            tally.add(error, len(message.body))
            return
        tally.add(delivery, len(message.body))


def _verdict(tally: Tally, reading_error: CliError | None, *, is_stopped: bool) -> int:
    if reading_error is not None:
        raise reading_error
    if tally.first_error is not None:
        reason = explain(tally.first_error)
        first = "message" if tally.in_order_count == 1 else f"{tally.in_order_count} messages"
        skip = f"; to go on, skip the first {first}"
        counts = "nothing was sent"
        if tally.acked_count or tally.unknown_count:
            counts = (
                f"{counted(tally.failed_count, 'message')} failed, {tally.unknown_count} unknown, "
                f"{tally.acked_count} acked"
            )
        raise CliError(
            f"{counts}: {reason.what}",
            reason.why,
            reason.do + (skip if tally.in_order_count else ""),
            ExitCode.UNKNOWN if tally.unknown_count else reason.exit_code,
            reason.code,
        )
    if is_stopped:
        click.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    assert tally.acked_count == tally.taken_count, "counts of taken and acked messages disagree"
    return ExitCode.OK
