"""The first user: that of a file, made once by the leader of a cluster that never had a user.

Owns when it is made. Until then no caller is a user, so nothing is allowed to any. A file that is
still there later changes nothing.
"""

import asyncio
import logging
from typing import Final

from node.broker.append.own_appends import OwnAppends
from node.broker.core.context import Context
from node.errors.common import NodeError
from node.errors.users import UserExistsError
from node.state.tables.users import UsersTable
from quorumlog.pb import users_pb2
from quorumlog.pb.state_pb2 import Command

_AGAIN_S: Final = 1.0
_log: Final = logging.getLogger(__name__)


class FirstUser:
    """Work of the leader; see `Broker.add_leader_work`."""

    def __init__(self, context: Context, own_appends: OwnAppends, user: users_pb2.User) -> None:
        """`user` is what the file says, with its first revision."""
        self._context, self._own_appends, self._user = context, own_appends, user
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Make the user, if there never was one."""
        if not self._context.state.table(UsersTable).has_begun:
            self._task = asyncio.get_running_loop().create_task(self._make())

    def end(self) -> None:
        """Stop trying."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _make(self) -> None:
        put = Command.PutUser(user=self._user, must_be_first=True)
        while not self._context.state.table(UsersTable).has_begun:
            try:
                await self._own_appends.submit(Command(put_user=put), is_administration=True)
                _log.warning("the first user is %r, of users_file", self._user.name)
            except UserExistsError:
                return
            except NodeError as error:
                _log.warning("the first user cannot be made yet: %s", error)
                await asyncio.sleep(_AGAIN_S)
