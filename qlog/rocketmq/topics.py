"""Topics: copied pass by pass, until a pass finds nothing new in the source.

Owns the order of the work, and the count of what was done. A topic that cannot be copied is refused
alone; the others go on.
"""

import asyncio
import time
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from qlog.progress import Show
from qlog.rocketmq.shapes import QUEUE_TOTAL_MAX, SourceError, is_system_topic
from qlog.rocketmq.source import RocketSource
from qlog.rocketmq.target import BATCH_SIZE_BYTES, TargetQueue, queues_of_topic
from quorumlog.command_errors import CliError, explain
from quorumlog.errors import QuorumlogError
from store.format import DEAD_LETTER_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, SCHEDULE_TOPIC
from store.record.message import Message

if TYPE_CHECKING:
    from quorumlog.client import Client

AT_ONCE: Final = 8
"""Queues under way at a time; each holds a batch and a pull, of about 1 MiB each."""
REFUSED_COUNT_MAX: Final = 10_000
"""Topics and groups that are refused before the run ends."""
_PROPERTY_SIZE_BYTES: Final = 64
"""What a property counts beside its bytes: the memory that a small one takes."""
_COUNTED: Final = (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX, SCHEDULE_TOPIC)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Refused:
    """A topic or group that was not copied entirely, as the three lines of an error."""

    name: str
    what: str
    why: str
    do: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A topic of RocketMQ's own. `message_count`: what is in a topic of retries, dead letters or
    delayed messages, those that were delivered from it included; None: that was not asked."""

    topic: str
    message_count: int | None


@dataclass(slots=True)
class TopicCopy:
    """A topic under way."""

    topic: str
    queues: list[TargetQueue]
    message_count: int = 0
    size_bytes: int = 0
    """Of the bodies."""
    duration_s: float = 0.0
    gap_count: int = 0
    """Offsets that expired in the source between two runs or passes."""
    due_count: int = 0
    """Offsets that were there when they were looked for, copied or not."""

    @property
    def queue_count(self) -> int:
        """Count of the source's read queues."""
        return len(self.queues)


@dataclass(slots=True)
class Copies:
    """What became of the topics."""

    topics: list[TopicCopy] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    def refuse(self, name: str, error: Exception) -> None:
        """Note a topic or group. Raises SourceError when there are too many of them."""
        known = explain(error)
        self.refused.append(Refused(name, known.what, known.why, known.do))
        if len(self.refused) > REFUSED_COUNT_MAX:
            first = self.refused[0]
            raise SourceError(
                f"more than {REFUSED_COUNT_MAX} topics and groups are refused",
                f"the first: {first.what}: {first.why}",
                "correct that, or choose topics with --topic and groups with --group",
            )


FORESEEN: Final = (CliError, QuorumlogError)
"""Errors that refuse one topic or group; any other is a bug and ends the command."""


async def all_of(work: Iterable[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """Await coroutines, AT_ONCE at a time, all of them to their end; then raise the first error.

    Results are in the order in which they came.
    """
    left = iter(work)  # Nothing is made of it, and no error kept, before its turn.
    results: list[_Result] = []
    first: Exception | None = None

    async def take() -> None:
        nonlocal first
        for coroutine in left:
            try:
                results.append(await coroutine)
            except Exception as error:  # noqa: BLE001 - raised below, a bug before others.
                is_bug = not isinstance(error, FORESEEN)
                if first is None or (is_bug and isinstance(first, FORESEEN)):
                    first = error

    await asyncio.gather(*(take() for _ in range(AT_ONCE)))
    if first is not None:
        raise first
    return results


async def copy_topics(
    source: RocketSource, client: "Client", wanted: frozenset[str], show: Show
) -> Copies:
    """Copy the topics that are named, or all but RocketMQ's own, until nothing new is there."""
    copies, queue_count = Copies(), 0
    _, own_names, without_master = await source.brokers()
    for broker, no_master in without_master.items():
        copies.refuse(broker, no_master)
    there = await source.topics()
    for topic in sorted(wanted.difference(there)):
        why = "the name server has no route of it"
        error = SourceError(f"topic {topic} is unknown", why, "correct --topic")
        copies.refuse(topic, error)
    for topic in there:
        if is_system_topic(topic, own_names):
            if not wanted:
                copies.skipped.append(await _skipped(source, topic))
        elif not wanted or topic in wanted:
            try:
                copy = await _begin(source, client, topic, QUEUE_TOTAL_MAX - queue_count)
                copies.topics.append(copy)
                queue_count += copy.queue_count
            except FORESEEN as error:
                copies.refuse(topic, error)
    is_new = True
    while is_new:
        is_new = False
        for copy in list(copies.topics):
            before = copy.message_count
            try:
                is_new |= await _pass(source, copy, show)
            except FORESEEN as error:
                is_new |= copy.message_count > before
                copies.topics.remove(copy)
                copies.refuse(copy.topic, error)
    for copy in list(copies.topics):  # Offsets of groups follow from where the queues end.
        queues = [queue for queue in copy.queues if queue.left is not None]
        if queues:
            copies.refuse(copy.topic, _left_behind(queues))
        try:
            await all_of(target.look() for target in copy.queues)
        except FORESEEN as error:
            copies.topics.remove(copy)
            copies.refuse(copy.topic, error)
    return copies


async def _begin(source: RocketSource, client: "Client", topic: str, count_max: int) -> TopicCopy:
    queues = await source.queues(topic)
    if len(queues) > count_max:
        raise SourceError(
            f"topic {topic} has {len(queues)} queues, and {count_max} more can be copied now",
            f"a run copies at most {QUEUE_TOTAL_MAX} queues",
            "copy fewer topics at once, with --topic",
        )
    message_type = await source.message_type(topic, queues[0].address)
    return TopicCopy(topic, await queues_of_topic(client, topic, queues, message_type))


def _left_behind(queues: list[TargetQueue]) -> SourceError:
    left = [queue.left for queue in queues if queue.left is not None]
    count = sum(one.count for one in left)
    return SourceError(
        f"{count} messages of topic {queues[0].queue.topic} are left behind, "
        f"the first at offset {left[0].first_offset} of {queues[0].source}",
        left[0].why,
        "read these from the source and send them as this cluster takes them; all others are here",
    )


async def _skipped(source: RocketSource, topic: str) -> Skipped:
    if not topic.startswith(_COUNTED):
        return Skipped(topic, None)
    try:
        bounds = await all_of(source.bounds(queue) for queue in await source.queues(topic))
    except SourceError:
        return Skipped(topic, None)
    return Skipped(topic, sum(hi - lo for lo, hi in bounds))


async def _pass(source: RocketSource, copy: TopicCopy, show: Show) -> bool:
    """Copy what the queues of a topic have now; return whether there was anything."""
    began_s = time.monotonic()
    try:
        copied = await all_of(_copy_queue(source, copy, target, show) for target in copy.queues)
    finally:
        copy.duration_s += time.monotonic() - began_s
    return any(copied)


async def _copy_queue(
    source: RocketSource, copy: TopicCopy, target: TargetQueue, show: Show
) -> bool:
    lo, hi = await source.bounds(target.source)
    offset = target.source_offset
    if offset > hi:
        raise SourceError(
            f"{target.source} ends at {hi}, and offset {offset - 1} of it was copied",
            "it is another cluster, or one that lost messages",
            f"check the address; or qlog topic delete {copy.topic} and run it again",
        )
    if offset < lo:
        copy.gap_count += lo - offset if offset else 0
        offset = lo
    first_offset, before = offset, target.source_offset
    copy.due_count += hi - offset
    while offset < hi:
        messages, offset = await _read(source, target, offset, hi)
        if not messages:
            break
        left = await target.append(messages)
        sizes = [len(one.body) for one in messages if one.queue_offset not in left]
        copy.message_count += len(sizes)
        copy.size_bytes += sum(sizes)
        show(copy.topic, copy.message_count, copy.due_count)
    if first_offset == offset < hi:
        raise SourceError(
            f"{target.source} gives no message at offset {offset}, and ends at {hi}",
            "its broker is behind another one, or its queue is damaged",
            "check the broker and run it again: it goes on there",
        )
    return target.source_offset > before  # Not for a gap that is all there is.


async def _read(
    source: RocketSource, target: TargetQueue, offset: int, hi: int
) -> tuple[list[Message], int]:
    """Read about a batch from an offset on; return it, and where it ends."""
    messages: list[Message] = []
    size_bytes = 0
    while offset < hi and size_bytes < BATCH_SIZE_BYTES:
        pulled, next_offset = await source.pull(target.source, offset)
        # What lies behind the end that the source named waits until it names another one.
        kept, pulled = pulled, [message for message in pulled if message.queue_offset < hi]
        if kept and not pulled:
            got = f"a message at offset {kept[0].queue_offset}"
            raise SourceError.foreign(str(target.source), f"{got} of a queue that ends at {hi}")
        messages += pulled
        size_bytes += sum(
            message.size_bytes + len(message.properties) * _PROPERTY_SIZE_BYTES
            for message in pulled
        )
        if next_offset == offset:
            break
        offset = min(next_offset, hi)
    return messages, offset
