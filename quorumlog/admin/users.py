"""Administration of users and roles (docs/users.md).

Owns the calls of UserService, and the merge of what several broker groups say: each has the users
of the cluster in its own state. Must not know how calls find the leader.
"""

from collections.abc import Sequence

from quorumlog.admin.calls import AdminCalls, Answers
from quorumlog.admin.types import AccessDecision, NewCredential, Role, Rule, User, UserRates, WhoAmI
from quorumlog.arguments import checked
from quorumlog.errors import ConflictError, InvalidRequestError, NotFoundError
from quorumlog.pb import users_pb2
from quorumlog.records.values import of_pb
from quorumlog.user_tokens import has_token


@checked
class UserAdmin(AdminCalls):
    """The part of `client.admin` that is about users. Raises ServerError `node.users_off` where
    users are off, and PermissionDeniedError for a caller that may not do it."""

    async def put_user(
        self,
        name: str,
        *,
        roles: Sequence[str] | None = None,
        is_disabled: bool | None = None,
        rates: UserRates | None = None,
        add: Sequence[NewCredential] = (),
        remove: Sequence[str] = (),
        must_be_new: bool = False,
        must_exist: bool = False,
    ) -> User:
        """Make a user, or change what is given; None: as it is. With `must_exist` none is made.

        A role is NAME, or NAME:PREFIX if its rules have a `{}`. `remove` has ids of credentials.
        Counts at once, also for streams and calls under way. Of a token its digest alone is sent; a
        secret is sealed by the node, with the key of its `users_key_file`. With several broker
        groups: raises the error of a group that cannot change it now; the others have changed it.
        Repeat the call then, without `must_be_new`: what a group has already, it leaves as it is.
        """
        if has_token(" ".join((name, *(one.id for one in add)))):
            raise InvalidRequestError("a token stands where a name belongs; it was not sent")
        request = users_pb2.PutUserRequest(
            name=name, must_be_new=must_be_new, is_disabled=is_disabled, remove_credentials=remove
        )
        if roles is not None:
            request.roles.roles.extend(roles)
            request.roles.SetInParent()
        if rates is not None:
            request.rates.CopyFrom(rates.to_pb())
        for one in add:
            request.add_credentials.append(one.to_pb())
            if one.secret:
                request.secrets.append(one.secret.encode())
        request.must_exist = must_exist and self._groups.is_single
        deadline = self._deadline()
        requests: dict[str, users_pb2.PutUserRequest] = {}
        if (must_be_new or must_exist or remove) and not self._groups.is_single:
            # One group may have it; the others would make it.
            there, _ = await self._each(users_pb2.ListUsersRequest(), deadline=deadline)
            found = _by_name(there, name)
            if must_be_new and any(found.values()):
                raise ConflictError(
                    f"there is a user {name!r} already; use another name, or change that one",
                    code="node.user_exists",
                )
            if must_exist and not any(found.values()):
                raise NotFoundError(
                    f"there is no user {name!r}; run 'qlog user list'", code="node.unknown_user"
                )
            requests = _without_removed(request, found)
        answers, _ = await self._each(
            request,
            requests=requests,
            is_repeatable=not (must_be_new or add or remove),
            is_read=False,
            may_be_away=False,
            deadline=deadline,
        )
        return User.of(answers)

    async def delete_user(self, name: str) -> None:
        """Delete a user; its calls under way end."""
        request = users_pb2.DeleteUserRequest(name=name)
        await self._each(request, is_repeatable=False, is_read=False, may_be_away=False)

    async def users(self) -> tuple[User, ...]:
        """Return all users by name, without what is secret."""
        answers, away = await self._each(users_pb2.ListUsersRequest())
        names = sorted({user.name for answer in answers.values() for user in answer.users})
        return tuple(User.of(_by_name(answers, name), away) for name in names)

    async def put_role(self, name: str, rules: Sequence[Rule]) -> Role:
        """Make a role, or give it other rules, which count at once."""
        request = users_pb2.PutRoleRequest(name=name, rules=[rule.to_pb() for rule in rules])
        answers, _ = await self._each(request, is_read=False, may_be_away=False)
        return Role.of(answers)

    async def delete_role(self, name: str) -> None:
        """Delete a role that no user has."""
        request = users_pb2.DeleteRoleRequest(name=name)
        await self._each(request, is_repeatable=False, is_read=False, may_be_away=False)

    async def roles(self) -> tuple[Role, ...]:
        """Return the four ready-made roles, then those that were made, by name."""
        answers, _ = await self._each(users_pb2.ListUsersRequest())
        groups = {group: {r.name: r for r in answer.roles} for group, answer in answers.items()}
        roles = [
            Role.of({group: rows.get(name) for group, rows in groups.items()})
            for name in set().union(*groups.values())
        ]
        return tuple(sorted(roles, key=lambda role: (not role.is_ready_made, role.name)))

    async def explain_access(self, user: str, action: str, resource: str) -> AccessDecision:
        """Return whether a user may do something ("Pub", "Topic:orders"), and which rule says so.

        With several broker groups the first one answers."""
        request = users_pb2.ExplainRequest(user=user, action=action, resource=resource)
        answer = await self._lead(self._groups.get(""), request, is_read=True)
        return AccessDecision.of(answer)

    async def who_am_i(self) -> WhoAmI:
        """Return the user that the client's credential belongs to."""
        request = users_pb2.WhoAmIRequest()
        return of_pb(WhoAmI, await self._lead(self._groups.get(""), request, is_read=True))


def _by_name(answers: Answers, name: str) -> dict[str, users_pb2.User | None]:
    """Return the user of each group; None: it has none of this name."""
    return {
        group: next((user for user in answer.users if user.name == name), None)
        for group, answer in answers.items()
    }


def _without_removed(
    request: users_pb2.PutUserRequest, by_group: dict[str, users_pb2.User | None]
) -> dict[str, users_pb2.PutUserRequest]:
    """Return the requests of groups from which credentials were removed before; one that no group
    has is an error of each."""
    has = {group: {one.id for one in user.credentials} for group, user in by_group.items() if user}
    known, requests = set[str]().union(*has.values()), {}
    for group, ids in has.items():
        requests[group] = own = users_pb2.PutUserRequest()
        own.CopyFrom(request)
        own.remove_credentials[:] = [
            one for one in request.remove_credentials if one in ids or one not in known
        ]
    return requests
