"""Settings of consumer groups: read and changed, and what they permit to readers.

Owns the two calls and the checks of group members; what a change does, and whether it is refused,
is decided where it is applied (`tables/group_settings`).
"""

from typing import Final

from node.broker.append.own_appends import OwnAppends
from node.broker.core.context import Context
from node.errors.common import ReservedTopicError, UnknownGroupError
from node.errors.groups import GroupDisabledError, TopicForbiddenError
from node.state.state import INTERNAL_TOPICS
from node.state.tables.group_settings import GroupSettingsTable, SubscriptionSettings, to_pb
from quorumlog.pb import common_pb2
from quorumlog.pb.retry_pb2 import GetGroupSettingsRequest, SetGroupSettingsRequest
from quorumlog.pb.state_pb2 import Command
from store.record.message import check_topic


class GroupSettingsCalls:
    """The two calls about settings. One per broker."""

    def __init__(self, context: Context, own_appends: OwnAppends) -> None:
        self._context: Final = context
        self._own_appends = own_appends

    async def get_group_settings(
        self, request: GetGroupSettingsRequest
    ) -> common_pb2.GroupSettings:
        """Return all settings of an existing group. Raises UnknownGroupError."""
        self._context.check_leads()
        if request.group not in self._context.state.groups:
            raise UnknownGroupError(request.group)
        return to_pb(settings_of(self._context, request.group))

    async def set_group_settings(
        self, request: SetGroupSettingsRequest
    ) -> common_pb2.GroupSettings:
        """Change the given settings, and return all. The group is created if there is none.

        Raises BadRequestError, TopicNameError for a forbidden topic with an impossible name,
        LimitReachedError and the errors of `OwnAppends.submit`.
        """
        self._context.check_name("group", request.group)
        for topic in request.settings.forbidden_topics.topics:
            check_topic(topic.encode())
        put = Command.PutGroup(group=request.group, settings=request.settings)
        await self._own_appends.submit(Command(put_group=put), is_administration=True)
        return to_pb(settings_of(self._context, request.group))


def settings_of(context: Context, group: str) -> SubscriptionSettings:
    """Return the settings of a group, whether it exists or not."""
    return context.state.table(GroupSettingsTable).of(group)


def check_reader(context: Context, group: str, topic: str) -> None:
    """Raise unless a group may read a topic: GroupDisabledError, TopicForbiddenError,
    ReservedTopicError."""
    if topic in INTERNAL_TOPICS:
        raise ReservedTopicError(topic)
    settings = settings_of(context, group)
    if not settings.is_consume_enabled:
        raise GroupDisabledError(group, "consuming")
    if topic in settings.forbidden_topics:
        raise TopicForbiddenError(group, topic)


def check_member(context: Context, group: str, *, is_broadcasting: bool) -> None:
    """Raise GroupDisabledError unless a group may have such a member."""
    settings = settings_of(context, group)
    if not settings.is_consume_enabled:
        raise GroupDisabledError(group, "consuming")
    if is_broadcasting and not settings.is_broadcast_enabled:
        raise GroupDisabledError(group, "broadcasting")
