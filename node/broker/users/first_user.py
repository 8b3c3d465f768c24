"""Users of files: the first one of a cluster, and the admin of a reset.

Owns when the leader makes them. Until there is a first one no caller is a user, so nothing is
allowed to any. The admin is reset once a majority of the voters has the same file, so that the disk
of one node does not open the cluster; the leader need not be one of them. A file that is still
there later changes nothing.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

import structlog

from node.broker.append.own_appends import OwnAppends
from node.broker.core.context import Context
from node.config.users import reset_id_of
from node.errors.common import NodeError
from node.errors.users import UserExistsError
from node.state.tables.users import UsersTable
from quorumlog.pb import users_pb2
from quorumlog.pb.state_pb2 import Command
from raft.messages import NodeId

_AGAIN_S: Final = 1.0
_log: Final = logging.getLogger(__name__)
_events: Final = structlog.get_logger(component="users")


class FirstUser:
    """Work of the leader; see `Broker.add_leader_work`."""

    what: ClassVar[str] = "the first user"

    def __init__(self, context: Context, own_appends: OwnAppends, user: users_pb2.User) -> None:
        """`user` is what the file says, with its first revision."""
        self._context, self._own_appends, self._user = context, own_appends, user
        self._task: asyncio.Task[None] | None = None
        self.on_made: Callable[[str, Command.PutUser], None] = lambda _work, _put: None
        """Called with this work's name, and what made the user."""

    def begin(self) -> None:
        """Make the user, unless it was made."""
        if not self._is_made():
            self._task = asyncio.get_running_loop().create_task(self._make())

    def on_ready(self, is_ready: bool) -> None:
        """Warn of a file whose token the cluster does not know: it has no effect."""
        digest, table = self._user.credentials[0].token_sha256, self._table
        made = table.users.users.get(self._user.name)
        # Later changes, as a token renewed or the admin reset, are no fault of the file.
        has_changed = bool(table.reset_ids) or (made is not None and made.revision > 1)
        is_known = has_changed or digest in table.users.by_token
        if is_ready and self._is_made() and not is_known:
            _log.warning(
                "users_file has no effect: the cluster has users, and no token of its user %r is "
                "the one of the file; give the token of another admin, or see 'qlog store "
                "reset-admin'",
                self._user.name,
            )

    def end(self) -> None:
        """Stop trying."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _make(self) -> None:
        while not self._is_made():
            put = self._due()
            if put is None:
                await asyncio.sleep(_AGAIN_S)
                continue
            try:
                await self._own_appends.submit(Command(put_user=put), is_administration=True)
                _log.warning("%s is %r, of its file", self.what, put.user.name)
                self.on_made(type(self).__name__, put)
            except UserExistsError:
                return
            except NodeError as error:
                _log.warning("%s cannot be made yet: %s", self.what, error)
                await asyncio.sleep(_AGAIN_S)

    @property
    def _table(self) -> UsersTable:
        return self._context.state.table(UsersTable)

    def _is_made(self) -> bool:
        return self._table.has_begun

    def _due(self) -> Command.PutUser | None:
        """Return what makes the user; None: not now."""
        return Command.PutUser(user=self._user, must_be_first=True)


class AdminReset(FirstUser):
    """The resets of the admin that voters show, while this node leads; and the end of the file of
    its own."""

    what = "the admin of a reset"

    def __init__(
        self,
        context: Context,
        own_appends: OwnAppends,
        path: Path,
        own: bytes,
        voters: Callable[[], Collection[NodeId]],
        shown_by: Callable[[NodeId], bytes],
    ) -> None:
        """`own` is the user, encoded, of the file `path`; empty: there is none. `shown_by` returns
        that of a voter: this node or a connected one."""
        super().__init__(context, own_appends, users_pb2.User())
        self._path, self._own = path, own
        self._voters, self._shown_by = voters, shown_by
        if own:
            context.driver.add_listener(self._look)
            self._look()

    def _is_made(self) -> bool:
        return False  # Another one may come.

    def _due(self) -> Command.PutUser | None:
        voters = self._voters()
        for user, count in Counter(map(self._shown_by, voters)).items():
            reset_id = reset_id_of(user)
            if user and 2 * count > len(voters) and reset_id not in self._table.reset_ids:
                return Command.PutUser(user=users_pb2.User.FromString(user), reset_id=reset_id)
        return None

    def _look(self) -> None:
        """Remove the file once the state has its reset. A crash may bring it back: the next start
        removes it."""
        reset_id, made = reset_id_of(self._own) if self._own else b"", self._table.reset_ids
        if reset_id not in made:
            return
        user, self._own = users_pb2.User.FromString(self._own).name, b""
        with suppress(OSError):
            self._path.unlink()
        what, row = "the admin was reset", {"user": user, "reset_id": reset_id.hex()}
        if reset_id != made[-1]:
            what = "the admin stays: this file reset it before; write another one, qlog user init"
        _events.warning(what, **row, file="removed")
