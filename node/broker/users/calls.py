"""The calls of UserService: users and roles read and changed, and what a rule decides.

Owns the way from what a caller asks to the user that the state gets: changes are merged with the
user as it is, and refused if another operator was faster. Secrets of access keys are sealed here,
so that the log never has them. What the state refuses is decided in `tables/users`.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from node.broker.append.own_appends import OwnAppends
from node.broker.core.context import Context
from node.errors.users import BadAccessError, UnknownUserError, UserExistsError, UsersOffError
from node.state.tables.users import UsersTable, to_pb
from node.users.calling import calling
from node.users.credentials import SECRET_LENGTH_MAX, SecretBox
from node.users.guard import Mode
from node.users.rules import READY_MADE, Need, Role, action_of, resource_of
from node.users.rules import to_pb as rule_to_pb
from node.users.users import LOOK_AT_USERS, standing_for
from quorumlog.pb import users_pb2 as pb
from quorumlog.pb.state_pb2 import Command
from quorumlog.user_tokens import SECRET_SIZE_BYTES_MIN


class UserCalls:
    """The calls about users. One per broker."""

    def __init__(
        self,
        context: Context,
        own_appends: OwnAppends,
        mode: Mode,
        box: SecretBox | None,
        *,
        takes_certificates: bool,
    ) -> None:
        """`box` seals the secrets of access keys; None: there can be none. `takes_certificates`:
        those of clients prove a user."""
        self._context: Final = context
        self._own_appends = own_appends
        self._mode: Final[Mode] = mode
        self._box = box
        self._has_no_certificates = not takes_certificates

    @property
    def _table(self) -> UsersTable:
        return self._context.state.table(UsersTable)

    def _check(self, cluster_id: str = "") -> None:
        if self._mode == "off":
            raise UsersOffError
        self._context.check_cluster(cluster_id)
        self._context.check_leads()

    async def _submit(self, command: Command) -> None:
        command.has_no_certificates = self._has_no_certificates
        await self._own_appends.submit(command, is_administration=True)

    async def put_user(self, request: pb.PutUserRequest) -> pb.User:
        """Make or change a user. Raises the refusals of the state, and BadAccessError."""
        self._check(request.cluster_id)
        old = self._table.users.users.get(request.name)
        if old is not None and request.must_be_new:
            raise UserExistsError(request.name)
        if old is None and request.must_exist:
            raise UnknownUserError(request.name)
        user = pb.User(name=request.name) if old is None else to_pb(old)
        user.revision += 1
        if request.HasField("is_disabled"):
            user.is_disabled = request.is_disabled
        if request.HasField("roles"):
            user.roles[:] = request.roles.roles
        if request.HasField("rates"):
            user.rates.CopyFrom(request.rates)
        self._change_credentials(user, request)
        await self._submit(Command(put_user=Command.PutUser(user=user)))
        return shown(user)

    def _change_credentials(self, user: pb.User, request: pb.PutUserRequest) -> None:
        removed = set(request.remove_credentials)
        unknown = removed - {one.id for one in user.credentials}
        if unknown:
            has = ", ".join(one.id for one in user.credentials) or "none"
            what = f"user {user.name!r} has no credential {', '.join(sorted(unknown))[:255]}"
            do = "name one of them, 'qlog user describe' has all"
            raise BadAccessError(what, f"it has {has}", do)
        kept = [one for one in user.credentials if one.id not in removed]
        secrets: Iterator[bytes] = iter(request.secrets)
        for added in request.add_credentials:
            which = added.WhichOneof("proof")
            if which is None:
                added.sealed_secret = self._sealed(added.id, next(secrets, b""))
            elif which == "sealed_secret":
                what = f"the secret of {added.id[:80]!r} came sealed"
                do = "send it in secrets, and a credential without a proof"
                raise BadAccessError(what, "the node seals secrets itself", do)
            if not any(self._is_same(added, one) for one in kept):
                kept.append(added)
        if next(secrets, None) is not None:
            what, why = "the call has more secrets than access keys", "each secret is of one key"
            raise BadAccessError(what, why, "send one for each credential without a proof")
        del user.credentials[:]
        user.credentials.extend(kept)

    def _is_same(self, added: pb.Credential, old: pb.Credential) -> bool:
        """Whether a user has this one already: a change is repeated where a broker group was
        away."""
        if self._box is not None and added.id == old.id and old.sealed_secret:
            opened = (self._box.open(one.id, one.sealed_secret) for one in (added, old))
            return len({*opened}) == 1 and added.expires_unix_ms == old.expires_unix_ms
        return added == old

    def _sealed(self, access_key: str, secret: bytes) -> bytes:
        if self._box is None:
            why = "this node has no users_key_file, whose key seals secrets"
            do = "set users_key_file at each node, see docs/users.md"
            raise BadAccessError(f"access key {access_key[:80]!r} cannot be stored", why, do)
        if not SECRET_SIZE_BYTES_MIN <= len(secret) <= SECRET_LENGTH_MAX:
            what = f"the secret of {access_key[:80]!r} has {len(secret)} bytes"
            why = f"a secret has {SECRET_SIZE_BYTES_MIN} to {SECRET_LENGTH_MAX}"
            do = "use another one, or let --secret-file name a new file, which gets one"
            raise BadAccessError(what, why, do)
        return self._box.seal(access_key, secret)

    async def delete_user(self, request: pb.DeleteUserRequest) -> pb.DeleteUserResponse:
        """Delete a user; its calls under way end."""
        self._check(request.cluster_id)
        delete = Command.DeleteUser(name=request.name)
        await self._submit(Command(delete_user=delete))
        return pb.DeleteUserResponse()

    async def list_users(self, request: pb.ListUsersRequest) -> pb.ListUsersResponse:
        """Return all users without secrets, and all roles."""
        self._check(request.cluster_id)
        users = self._table.users
        roles = [*READY_MADE.items(), *sorted(users.roles.items())]
        return pb.ListUsersResponse(
            users=[shown(to_pb(user)) for _, user in sorted(users.users.items())],
            roles=[_role(name, role) for name, role in roles],
            mode=self._mode,
        )

    async def put_role(self, request: pb.PutRoleRequest) -> pb.Role:
        """Make a role, or give it other rules."""
        self._check(request.cluster_id)
        put = Command.PutRole(name=request.name, rules=request.rules)
        await self._submit(Command(put_role=put))
        return _role(request.name, self._table.users.roles.get(request.name, ()))

    async def delete_role(self, request: pb.DeleteRoleRequest) -> pb.DeleteRoleResponse:
        """Delete a role that no user has."""
        self._check(request.cluster_id)
        delete = Command.DeleteRole(name=request.name)
        await self._submit(Command(delete_role=delete))
        return pb.DeleteRoleResponse()

    async def explain(self, request: pb.ExplainRequest) -> pb.ExplainResponse:
        """Return whether a user may do something, and which rule says so; to others than this user
        only if they may look at users."""
        self._check()
        caller = calling()
        if caller is not None and caller.name != request.user:
            caller.require(LOOK_AT_USERS)
        action, resource = action_of(request.action), resource_of(request.resource)
        if request.user not in self._table.users.users:
            raise UnknownUserError(request.user)
        rights = self._table.users.get(request.user)
        if rights is None:  # It is disabled.
            return pb.ExplainResponse()
        asked = Need(action, *resource)
        decided, needed = rights.decide(asked), standing_for(asked)
        needs = "" if needed == asked else str(needed)
        answer = pb.ExplainResponse(is_allowed=decided.is_allowed, role=decided.role, needs=needs)
        if decided.rule is not None:
            answer.rule.CopyFrom(rule_to_pb(decided.rule))
        return answer

    async def who_am_i(self, _request: pb.WhoAmIRequest) -> pb.WhoAmIResponse:
        """Return the caller's own name and roles."""
        caller = calling()
        name = "" if caller is None else caller.name
        user = self._table.users.users.get(name)
        roles = () if user is None else user.roles
        return pb.WhoAmIResponse(name=name, roles=roles, mode=self._mode)


def shown(user: pb.User) -> pb.User:
    """Return a user without what is secret, or would help to guess it."""
    answer = pb.User()
    answer.CopyFrom(user)
    for one in answer.credentials:
        which = one.WhichOneof("proof")
        if which == "sealed_secret":
            one.sealed_secret = b""
        elif which == "token_sha256":
            one.token_sha256 = b""
    return answer


def _role(name: str, rules: Role) -> pb.Role:
    rows: Iterable[pb.Rule] = map(rule_to_pb, rules)
    return pb.Role(name=name, rules=rows, is_ready_made=name in READY_MADE)
