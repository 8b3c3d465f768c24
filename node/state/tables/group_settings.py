"""Settings of whole consumer groups: how often and when to retry, and the right to read.

Owns the settings and the command that changes them; must not know where they are applied. A group
without settings has the defaults, which are RocketMQ's, and is not held here. Settings are written
into `subscriptionGroup.json`, beside the names of the groups (`checkpoint_tables`).
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from node.config.limits import Limits
from node.errors.common import BadRequestError, LimitReachedError, NodeError
from node.state.tables.table import Core, Table, TableContent, TableImage
from quorumlog.pb import common_pb2
from quorumlog.pb.state_pb2 import Command


class SubscriptionSettings(NamedTuple):
    """The settings of one group."""

    retry_count_max: int = 16
    """Deliveries after the first one; then a message is a dead letter."""
    retry_delays_ms: tuple[int, ...] = ()
    """Delay before each of these, the last one for all later ones. Empty: delay levels 3 to 18."""
    is_consume_enabled: bool = True
    is_broadcast_enabled: bool = True
    is_orderly: bool = False
    """Whether messages are tried again in place, and never on the retry topic."""
    forbidden_topics: frozenset[str] = frozenset()
    """Topics that the group may not read."""


DEFAULT: Final = SubscriptionSettings()


class GroupSettingsTable(Table):
    """Group name to settings, where these are not the defaults."""

    name, commands = "group_settings", frozenset({"put_group"})

    def __init__(self, limits: Limits, image: TableImage) -> None:
        super().__init__(limits, image)
        self._groups: dict[str, SubscriptionSettings] = {
            name: from_json(row) for name, row in image.content.items()
        }

    def of(self, group: str) -> SubscriptionSettings:
        """Return the settings of a group, whether it exists or not."""
        return self._groups.get(group, DEFAULT)

    def apply(self, state: Core, command: Command, _position: int) -> NodeError | None:
        """Change the given settings; the group is created if there is none."""
        put = command.put_group
        settings = merged(self.of(put.group), put.settings)
        refusal = self._check(settings) or state.make_group(put.group)
        if refusal is None:
            self._put(put.group, settings)
        return refusal

    def _put(self, group: str, settings: SubscriptionSettings) -> None:
        self._groups[group] = settings
        if settings == DEFAULT:
            del self._groups[group]
        self._changed()

    def _check(self, settings: SubscriptionSettings) -> NodeError | None:
        limits, delays = self._limits, settings.retry_delays_ms
        if settings.retry_count_max > limits.retry_count_max:
            expected, actual = f"at most {limits.retry_count_max}", settings.retry_count_max
            return BadRequestError("retry_count_max", expected, str(actual))
        if len(delays) > limits.retry_delay_count_max:
            limit = limits.retry_delay_count_max
            return LimitReachedError("retry delays of a group", len(delays), limit)
        if any(not 0 < delay <= limits.retry_delay_ms_max for delay in delays):
            expected = f"1 to {limits.retry_delay_ms_max} ms each"
            return BadRequestError("retry_delays", expected, str(list(delays)))
        count, limit = len(settings.forbidden_topics), limits.forbidden_topic_count_max
        if count > limit:
            return LimitReachedError("forbidden topics of a group", count, limit)
        return None

    def forget_topic(self, name: str) -> None:
        """Drop bans on a topic: they do not hold for one that gets its name later."""
        for group, settings in list(self._groups.items()):
            if name in settings.forbidden_topics:
                left = settings.forbidden_topics - {name}
                self._put(group, settings._replace(forbidden_topics=left))

    def forget_group(self, name: str) -> None:
        """Drop the settings: a group that gets the name later begins with the defaults."""
        if self._groups.pop(name, None) is not None:
            self._changed()

    def _copy(self) -> TableContent:
        return {name: to_json(settings) for name, settings in self._groups.items()}


def merged(old: SubscriptionSettings, changes: common_pb2.GroupSettings) -> SubscriptionSettings:
    """Return settings with the changes of a request."""
    new: dict[str, Any] = {field.name: value for field, value in changes.ListFields()}
    if "retry_delays" in new:
        new["retry_delays_ms"] = tuple(new.pop("retry_delays").delay_ms)
    if "forbidden_topics" in new:
        new["forbidden_topics"] = frozenset(new["forbidden_topics"].topics)
    return old._replace(**new)


def to_pb(settings: SubscriptionSettings) -> common_pb2.GroupSettings:
    """Return all settings in wire form."""
    fields = settings._asdict()
    delays = common_pb2.Delays(delay_ms=fields.pop("retry_delays_ms"))
    topics = common_pb2.TopicNames(topics=sorted(fields.pop("forbidden_topics")))
    return common_pb2.GroupSettings(retry_delays=delays, forbidden_topics=topics, **fields)


def to_json(settings: SubscriptionSettings) -> dict[str, Any]:
    """Return the fields that differ from the defaults."""
    plain = settings._replace(forbidden_topics=frozenset())._asdict()
    fields: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in plain.items()
        if value != getattr(DEFAULT, name)
    }
    if settings.forbidden_topics:
        fields["forbidden_topics"] = sorted(settings.forbidden_topics)
    return fields


def from_json(row: Any) -> SubscriptionSettings:
    """Read the result of `to_json`. Raises TypeError or ValueError for another shape."""
    if not isinstance(row, Mapping):
        raise TypeError(f"not the settings of a group: {row!r}")
    fields: dict[str, Any] = dict(row)
    delays = tuple(fields.pop("retry_delays_ms", ()))
    topics = frozenset(fields.pop("forbidden_topics", ()))
    return SubscriptionSettings(**fields)._replace(retry_delays_ms=delays, forbidden_topics=topics)
