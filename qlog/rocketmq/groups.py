"""Consumer groups: made with their settings, and set to where they are in the source.

Owns which groups, and the rule that no group moves back: a second run stores an offset only where
it is larger, so a group that already reads here keeps its place. Settings of a group that is there
stay. Must not know how messages were copied.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from node.rocketmq.remoting.protocol.fields import INT32_MAX
from node.state.checkpoint_tables import is_system_group, settings_in
from qlog.rocketmq.shapes import GROUP_COUNT_MAX, SourceError
from qlog.rocketmq.source import RocketSource
from qlog.rocketmq.target import TargetQueue
from qlog.rocketmq.topics import FORESEEN, Copies, all_of
from quorumlog.consume.reads import QUEUES_OF_CALL_MAX
from quorumlog.errors import NotFoundError
from quorumlog.records.queues import Queue

if TYPE_CHECKING:
    from quorumlog.client import Client

_SWITCHES: Final = ("is_consume_enabled", "is_broadcast_enabled", "is_orderly")


@dataclass(frozen=True, slots=True)
class GroupCopy:
    """A group. `offset_count`: queues in which it has an offset in the source; `stored_count`:
    those in which it was moved on here."""

    group: str
    is_new: bool
    offset_count: int
    stored_count: int


async def copy_groups(
    source: RocketSource, client: "Client", wanted: frozenset[str], copies: Copies, *, only_of: bool
) -> list[GroupCopy]:
    """Copy the groups that are named, or all but RocketMQ's own.

    With `only_of` those without an offset in a topic of the copy are left out, unless named.
    Refusals go to `copies`.
    """
    masters, _, _ = await source.brokers()
    addresses = [address for _, address in sorted(masters.items())]
    seen: set[str] = set()
    done: list[GroupCopy] = []
    for address in addresses:
        async for page in source.group_pages(address):
            for group in sorted(page.keys() - seen):  # The first broker's settings hold.
                seen.add(group)
                if len(seen) > GROUP_COUNT_MAX:
                    why = f"more than {GROUP_COUNT_MAX} groups"
                    raise SourceError.foreign(f"groups of {address}", why)
                if group not in wanted if wanted else is_system_group(group):
                    continue
                try:
                    offsets = await _offsets(source, group, addresses, copies)
                    if offsets or group in wanted or not only_of:
                        done.append(await _store(client, group, page[group], offsets))
                except FORESEEN as error:
                    copies.refuse(group, error)
    for group in sorted(wanted - seen):
        unknown = SourceError(f"group {group} is unknown", "no broker has it", "correct --group")
        copies.refuse(group, unknown)
    return sorted(done, key=lambda copy: copy.group)


async def _offsets(
    source: RocketSource, group: str, addresses: list[str], copies: Copies
) -> dict[Queue, int]:
    """Return the offsets of a group in the queues of the target."""
    copied, topics = {copy.topic for copy in copies.topics}, set[str]()
    for address in addresses:
        names = await source.topics_of_group(group, address)
        if names is None:
            topics = copied
            break
        topics |= copied.intersection(names)
    queues = (queue for copy in copies.topics if copy.topic in topics for queue in copy.queues)

    async def offset(target: TargetQueue) -> tuple[Queue, int | None]:
        offset_there = await source.group_offset(group, target.source)
        return target.queue, None if offset_there is None else target.offset_of(offset_there)

    return {queue: found for queue, found in await all_of(map(offset, queues)) if found is not None}


async def _store(
    client: "Client", group: str, settings: Mapping[str, Any], offsets: Mapping[Queue, int]
) -> GroupCopy:
    is_new = False
    try:
        await client.admin.group_settings(group)
    except NotFoundError:
        is_new = True
        await client.admin.set_group_settings(group, **_settings(group, settings))
    there = await client.admin.fetch_offsets(group, list(offsets)) if offsets else {}
    ahead = {queue: offset for queue, offset in offsets.items() if offset > there.get(queue, -1)}
    rows = list(ahead.items())
    for at in range(0, len(rows), QUEUES_OF_CALL_MAX):
        await client.admin.commit_offsets(group, dict(rows[at : at + QUEUES_OF_CALL_MAX]))
    return GroupCopy(group, is_new, len(offsets), len(ahead))


def _settings(group: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that have a counterpart here. Raises SourceError."""
    try:
        settings = settings_in(dict(row), {})
        counts = [settings.retry_count_max, *settings.retry_delays_ms]
        is_sound = all(type(count) is int and abs(count) <= INT32_MAX for count in counts)
    except (AttributeError, TypeError, ValueError) as error:
        raise SourceError.foreign(f"settings of group {group}", str(error)) from None
    switches = {name: getattr(settings, name) for name in _SWITCHES}
    if not is_sound or not all(type(value) is bool for value in switches.values()):
        raise SourceError.foreign(f"settings of group {group}", "a value of another type or range")
    if settings.retry_count_max >= 0:  # -1 is RocketMQ's default, 16, as here.
        switches["retry_count_max"] = settings.retry_count_max
    return switches | {"retry_delays_ms": settings.retry_delays_ms}
