"""Administration of consumer groups: settings, dead letters, resets of offsets, RocketMQ's files.

Owns the administrative calls of RetryService, and their values; must not know how calls find the
leader. `Admin` inherits these calls. Each of several broker groups has its own settings of a
consumer group, its own dead letters and its own files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quorumlog.arguments import checked
from quorumlog.cluster.broker_groups import BrokerGroup, BrokerGroups
from quorumlog.cluster.calls import Service, Steps
from quorumlog.cluster.retry import Deadline
from quorumlog.consume.reads import Freshness, Reads
from quorumlog.errors import InvalidRequestError
from quorumlog.pb import common_pb2, consumer_pb2, retry_pb2
from quorumlog.records.batch import decode_records
from quorumlog.records.message import Message
from quorumlog.records.options import Position
from quorumlog.records.queues import Queue

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
        return cls(
            group,
            pb.retry_count_max,
            tuple(pb.retry_delays.delay_ms),
            pb.is_consume_enabled,
            pb.is_broadcast_enabled,
            pb.is_orderly,
            tuple(pb.forbidden_topics.topics),
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
class Resent:
    """Offsets of dead letters: those sent again now, and those that had been sent before."""

    resent: tuple[int, ...]
    already_resent: tuple[int, ...]


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
class GroupAdmin:
    """The part of `client.admin` that is about consumer groups and their files."""

    _groups: BrokerGroups

    def _deadline(self) -> Deadline:
        raise NotImplementedError

    async def _each(
        self,
        method: str,
        request: Any,
        *,
        service: Service = "admin",
        is_repeatable: bool = True,
        is_read: bool = True,
        may_be_away: bool = True,
    ) -> tuple[dict[str, Any], list[str]]:
        raise NotImplementedError

    # Settings.

    async def group_settings(self, group: str) -> GroupSettings:
        """Return the settings of a group. Raises NotFoundError."""
        request = retry_pb2.GetGroupSettingsRequest(group=group)
        answers, _ = await self._each("GetGroupSettings", request, service="retry")
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
        answers, _ = await self._each(
            "SetGroupSettings", request, service="retry", may_be_away=False, is_read=False
        )
        return GroupSettings.of(group, next(iter(answers.values())))

    # Dead letters.

    async def dead_letters(
        self, group: str, *, offset: int = 0, max_count: int = 64, broker_group: str = ""
    ) -> list[DeadLetter]:
        """Return dead letters of a group from an offset on, oldest first. Raises NotFoundError."""
        request = retry_pb2.ListDeadLettersRequest(group=group, offset=offset, max_count=max_count)
        at = self._groups.get(broker_group)
        response = await self._retry(at, "ListDeadLetters", request)
        resent = set(response.resent)
        messages = decode_records(response.records, group=at.name) if response.records else []
        return [DeadLetter(message, message.queue_offset in resent) for message in messages]

    async def resend_dead_letters(
        self, group: str, offsets: Sequence[int], *, broker_group: str = ""
    ) -> Resent:
        """Send dead letters again to the topics they came from, each at most once.

        All of them or none, except for those that were sent before. Raises NotFoundError, and
        UnknownTopicError or PermissionDeniedError when a topic does not take its message back.
        """
        if not 0 < len(set(offsets)) <= RESEND_COUNT_MAX:
            text = f"{len(set(offsets))} dead letters; give 1 to {RESEND_COUNT_MAX}"
            raise InvalidRequestError(text)
        request = retry_pb2.ResendDeadLettersRequest(
            group=group, offsets=offsets, cluster_id=self._groups.cluster_id
        )
        response = await self._retry(self._groups.get(broker_group), "ResendDeadLetters", request)
        return Resent(tuple(response.resent), tuple(response.already_resent))

    # Offsets.

    async def reset_offsets(
        self, group: str, topic: str, position: Position, *, force: bool = False
    ) -> dict[Queue, int]:
        """Have a group continue at a position of a topic: "first", "end", "@TIME" or an offset.

        Return the offsets that are stored now. Running members would continue where they are and
        overwrite them: with members it raises ServerError `node.group_not_empty`, unless `force`
        says that this is known.
        """
        reads, freshness, deadline = Reads(self._groups), Freshness(), self._deadline()
        queues, failed = await reads.queues(topic, freshness, deadline)
        if failed:
            raise failed[0]
        offsets = await reads.positions(queues, position, freshness, deadline)
        by_group: dict[BrokerGroup, list[Queue]] = {}
        for queue in queues:
            by_group.setdefault(self._groups.get(queue.group), []).append(queue)
        steps = Steps()
        for at, mine in by_group.items():
            request = consumer_pb2.CommitOffsetsRequest(
                group=group, cluster_id=self._groups.cluster_id, must_be_empty=not force
            )
            for queue in mine:
                request.offsets.add(topic=topic, queue_id=queue.queue_id, offset=offsets[queue])
            stored = at.calls.leader(
                "consumer", "CommitOffsets", request, deadline, is_repeatable=True
            )
            await steps.take(stored)
        return offsets

    # Files.

    async def export_config_files(self, *, broker_group: str = "") -> dict[str, str]:
        """Return topics, groups and offsets as the files that RocketMQ keeps of them, by name."""
        request = retry_pb2.ExportConfigFilesRequest()
        response = await self._retry(self._groups.get(broker_group), "ExportConfigFiles", request)
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
        response = await self._retry(self._groups.get(broker_group), "ImportConfigFiles", request)
        return ConfigImport(
            tuple(response.refusals),
            tuple(response.skipped),
            response.topic_count,
            response.group_count,
            response.offset_count,
            tuple(response.warnings),
        )

    async def _retry(self, at: BrokerGroup, method: str, request: Any) -> Any:
        return await at.calls.leader("retry", method, request, self._deadline(), is_repeatable=True)
