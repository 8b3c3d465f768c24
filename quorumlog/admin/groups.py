"""Administration of consumer groups: members, offsets, settings, dead letters, RocketMQ's files.

Owns these calls and the values of RetryService; must not know how calls find the leader. Each of
several broker groups has its own settings of a consumer group, its own dead letters and files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quorumlog.admin.calls import AdminCalls
from quorumlog.admin.types import GroupDescription, GroupInfo
from quorumlog.arguments import checked
from quorumlog.cluster.calls import Steps
from quorumlog.cluster.retry import Deadline
from quorumlog.consume.reads import QUEUES_OF_CALL_MAX, ReadCalls, ReadFreshness, Reading
from quorumlog.errors import InternalError, InvalidRequestError
from quorumlog.pb import admin_pb2, common_pb2, consumer_pb2, retry_pb2
from quorumlog.records.batch import decode_records
from quorumlog.records.message import Message
from quorumlog.records.options import Position
from quorumlog.records.queues import Offsets, Pair, Queue, queue_of
from quorumlog.records.values import of_pb

RESEND_COUNT_MAX = 256
"""Most dead letters of one call."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of the consumption of a group.

    A message is delivered `retry_count_max` times after the first; before each of them there is a
    pause of `retry_delays_ms` (the last one for all later ones; empty: 10 s, 30 s, 1 min ... 2 h).
    """

    group: str
    retry_count_max: int
    retry_delays_ms: tuple[int, ...]
    is_consume_enabled: bool
    is_broadcast_enabled: bool
    is_orderly: bool
    forbidden_topics: tuple[str, ...]

    @classmethod
    def of(cls, group: str, pb: common_pb2.GroupSettings) -> "GroupSettings":
        """Decode the settings from the wire."""
        return of_pb(
            cls,
            pb,
            group=group,
            retry_delays_ms=tuple(pb.retry_delays.delay_ms),
            forbidden_topics=tuple(pb.forbidden_topics.topics),
        )


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that failed too often in a group. `offset` is its number among the group's."""

    message: Message
    is_resent: bool

    @property
    def offset(self) -> int:
        """Offset in the queue of dead letters."""
        return self.message.queue_offset


@dataclass(frozen=True, slots=True)
class KeptLetter:
    """A dead letter that cannot be sent again, and the refusal."""

    offset: int
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Resent:
    """Offsets of dead letters: those sent again now, and those that had been sent before; and those
    that stay."""

    resent: tuple[int, ...]
    already_resent: tuple[int, ...]
    kept: tuple[KeptLetter, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigImport:
    """Result of an import. With `refusals` nothing was changed; `skipped` is the cluster's own;
    `warnings` name settings of a topic or group that have no effect here."""

    refusals: tuple[str, ...]
    skipped: tuple[str, ...]
    topic_count: int
    group_count: int
    offset_count: int
    warnings: tuple[str, ...] = ()


@checked
class GroupAdmin(AdminCalls):
    """The part of `client.admin` that is about consumer groups and their files."""

    # Consumer groups.

    async def list_groups(self) -> list[GroupInfo]:
        """Return all consumer groups by name."""
        answers, _ = await self._each(admin_pb2.ListGroupsRequest())
        infos: dict[str, list[admin_pb2.GroupInfo]] = {}
        for response in answers.values():
            for group in response.groups:
                infos.setdefault(group.group, []).append(group)
        return [GroupInfo.of(infos[group]) for group in sorted(infos)]

    async def describe_group(self, group: str) -> GroupDescription:
        """Return a group, how far it has come, and its members. Raises NotFoundError."""
        return GroupDescription.of(*await self._each(admin_pb2.DescribeGroupRequest(group=group)))

    async def delete_group(self, group: str) -> None:
        """Delete a group and its offsets. Raises NotFoundError, GroupNotEmptyError."""
        request = admin_pb2.DeleteGroupRequest(group=group)
        await self._each(request, is_repeatable=False, is_read=False, may_be_away=False)

    async def fetch_offsets(self, group: str, queues: Sequence[Pair] = ()) -> dict[Queue, int]:
        """Return the offsets that a group has stored: all, or those of these (topic, queue id)."""
        deadline = self._deadline()
        answers: list[tuple[str, Any]] = []
        if not queues:
            request = consumer_pb2.FetchOffsetsRequest(group=group)
            by_group, _ = await self._each(request, may_be_away=False)
            answers += by_group.items()
        for at, mine in self._by_group(list(map(queue_of, queues))).items():
            ids = [common_pb2.QueueId(topic=topic, queue_id=queue_id) for topic, queue_id in mine]
            for lo in range(0, len(ids), QUEUES_OF_CALL_MAX):
                part = ids[lo : lo + QUEUES_OF_CALL_MAX]
                request = consumer_pb2.FetchOffsetsRequest(group=group, queues=part)
                response = await self._lead(at, request, is_read=True, deadline=deadline)
                answers.append((at.name, response))
        return {
            Queue(row.topic, row.queue_id, name): row.offset
            for name, response in answers
            for row in response.offsets
            if row.offset >= 0
        }

    async def commit_offsets(self, group: str, offsets: Offsets) -> int:
        """Store offsets for a group; a broker group stores its part entirely or not at all.

        Return the index of the log entry, of the last entry if there are several.
        """
        named = {queue_of(queue): offset for queue, offset in offsets.items()}
        return await self._store(group, named, self._deadline())

    async def _store(
        self,
        group: str,
        offsets: Mapping[Queue, int],
        deadline: Deadline,
        *,
        must_be_empty: bool = False,
    ) -> int:
        """Store offsets for a group that may have members, unless it `must_be_empty`."""
        index, steps = -1, Steps()
        for at, mine in self._by_group(list(offsets)).items():
            request = consumer_pb2.CommitOffsetsRequest(
                group=group,
                cluster_id=self._groups.cluster_id,
                must_be_empty=must_be_empty,
            )
            for queue in mine:
                topic, queue_id = queue
                request.offsets.add(topic=topic, queue_id=queue_id, offset=offsets[queue])
            stored = await steps.take(self._lead(at, request, deadline=deadline))
            index = int(stored.index)
        return index

    # Settings.

    async def group_settings(self, group: str) -> GroupSettings:
        """Return the settings of a group. Raises NotFoundError."""
        answers, _ = await self._each(retry_pb2.GetGroupSettingsRequest(group=group))
        return GroupSettings.of(group, next(iter(answers.values())))

    async def set_group_settings(
        self,
        group: str,
        *,
        retry_count_max: int | None = None,
        retry_delays_ms: Sequence[int] | None = None,
        is_consume_enabled: bool | None = None,
        is_broadcast_enabled: bool | None = None,
        is_orderly: bool | None = None,
        forbidden_topics: Sequence[str] | None = None,
    ) -> GroupSettings:
        """Change the given settings, and return all of them; the group is made if it is missing."""
        settings = common_pb2.GroupSettings(
            retry_count_max=retry_count_max,
            is_consume_enabled=is_consume_enabled,
            is_broadcast_enabled=is_broadcast_enabled,
            is_orderly=is_orderly,
        )
        if retry_delays_ms is not None:
            settings.retry_delays.SetInParent()
            settings.retry_delays.delay_ms.extend(retry_delays_ms)
        if forbidden_topics is not None:
            settings.forbidden_topics.SetInParent()
            settings.forbidden_topics.topics.extend(forbidden_topics)
        request = retry_pb2.SetGroupSettingsRequest(group=group, settings=settings)
        answers, _ = await self._each(request, may_be_away=False, is_read=False)
        return GroupSettings.of(group, next(iter(answers.values())))

    # Dead letters.

    async def dead_letters(
        self, group: str, *, offset: int = 0, max_count: int = 64, broker_group: str = ""
    ) -> list[DeadLetter]:
        """Return dead letters of a group from an offset on, oldest first. Raises NotFoundError.

        An answer of the node is limited in bytes, too, so this takes several; there are no others
        unless `max_count` came back. As 0 it asks for one answer of the node's size.
        """
        request = retry_pb2.ListDeadLettersRequest(group=group, offset=offset, max_count=max_count)
        at = self._groups.get(broker_group)
        letters: list[DeadLetter] = []
        while True:
            response = await self._lead(at, request)
            resent = set(response.resent)
            messages = decode_records(response.records, broker_group=at.name)
            letters += [DeadLetter(m, m.queue_offset in resent) for m in messages]
            is_end = not messages or response.next_offset >= response.max_offset
            if is_end or len(letters) >= max_count:
                return letters
            request.offset, request.max_count = response.next_offset, max_count - len(letters)

    async def resend_dead_letters(
        self, group: str, offsets: Sequence[int], *, broker_group: str = ""
    ) -> Resent:
        """Send dead letters again to the topics they came from, each at most once.

        One that cannot be sent, since it has expired or its topic does not take it back, is among
        `kept` and holds no other back. Takes as many requests as their bytes need: after an error
        the first ones may have been sent, and the same call sends none of them twice. Raises
        NotFoundError for a group that is unknown.
        """
        left = sorted(set(offsets))
        if not 0 < len(left) <= RESEND_COUNT_MAX:
            raise InvalidRequestError(f"{len(left)} dead letters; give 1 to {RESEND_COUNT_MAX}")
        at = self._groups.get(broker_group)
        resent, already, kept = list[int](), list[int](), list[KeptLetter]()
        while left:
            request = retry_pb2.ResendDeadLettersRequest(
                group=group,
                offsets=left,
                cluster_id=self._groups.cluster_id,
                in_pieces=True,
            )
            response = await self._lead(at, request)
            resent += response.resent
            already += response.already_resent
            kept += (of_pb(KeptLetter, letter) for letter in response.kept)
            done = {*resent, *already, *(letter.offset for letter in kept)}
            if done.isdisjoint(left):
                raise InternalError(f"{at.name} neither sent nor kept dead letter {left[0]}")
            left = [offset for offset in left if offset not in done]
        return Resent(tuple(resent), tuple(already), tuple(kept))

    # Offsets.

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        position: Position,
        *,
        force: bool = False,
        is_dry_run: bool = False,
    ) -> dict[Queue, int]:
        """Have a group continue at a position of a topic: "first", "end", "@TIME" or an offset.

        Return the offsets that are stored now; after a dry run they are as they were. With members
        it raises GroupNotEmptyError, unless `force` says that they are to go there, with their next
        heartbeat or pull, whatever they have in hand.
        """
        reads, deadline = ReadCalls(self._groups), self._deadline()
        reading = Reading(ReadFreshness(), deadline)
        queues, failed = await reads.queues(topic, reading)
        if failed:
            raise failed[0]
        offsets = await reads.positions(queues, position, reading)
        if is_dry_run:
            for queue, row in zip(queues, await reads.queue_offsets(queues, reading), strict=True):
                if offsets[queue] > row.end_offset:
                    place = f"{row.topic}/{row.queue_id}"
                    raise InvalidRequestError(
                        f"offset is {offsets[queue]}, expected 0 to {row.end_offset}, the end of "
                        f"{place}; correct the request"
                    )
            return offsets
        await self._store(group, offsets, deadline, must_be_empty=not force)
        return offsets

    # Files.

    async def export_config_files(self, *, broker_group: str = "") -> dict[str, str]:
        """Return topics, groups and offsets as the files that RocketMQ keeps of them, by name."""
        at = self._groups.get(broker_group)
        response = await self._lead(at, retry_pb2.ExportConfigFilesRequest())
        return {file.name: file.text for file in response.files}

    async def import_config_files(
        self, files: Mapping[str, str], *, is_dry_run: bool = False, broker_group: str = ""
    ) -> ConfigImport:
        """Make the topics, groups and offsets of such files; all of them or none.

        Existing ones stay as they are: repeating the call changes nothing.
        """
        request = retry_pb2.ImportConfigFilesRequest(
            is_dry_run=is_dry_run, cluster_id=self._groups.cluster_id
        )
        for name, text in files.items():
            request.files.add(name=name, text=text)
        answer = await self._lead(self._groups.get(broker_group), request)
        return of_pb(ConfigImport, answer)
