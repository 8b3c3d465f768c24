"""Errors of users and rights: who calls, what is allowed, and how much.

Owns the names, codes and texts, as `node.errors.common` does for the rest of the node.
"""

from node.errors.common import NodeError


class UnauthenticatedError(NodeError):
    """The caller shows no credential of a user: there is none, it is unknown or has ended, or its
    user is disabled. The call had no effect."""

    code, status = "node.unauthenticated", "UNAUTHENTICATED"
    text = "{reason}; {why}; {do}"
    reason: str
    why: str
    do: str


class ForbiddenError(NodeError):
    """The caller is a user, and no rule of its roles allows the call, or one denies it. The call
    had no effect."""

    code, status = "node.forbidden", "PERMISSION_DENIED"
    text = "user {user!r} lacks {need}; {why}; {do}"
    user: str
    need: str
    action: str
    resource: str
    why: str = "no rule of its roles allows it, or one denies it"
    do: str = "ask an admin for a role that allows it"


class RateLimitedError(NodeError):
    """The user or the topic has had what its rate allows. The call had no effect; it may be
    repeated after `retry_after_ms`."""

    code, retryable, status = "node.rate_limited", True, "RESOURCE_EXHAUSTED"
    text = "{what} of {whose} are over the limit, {limit}; try again in {retry_after_ms} ms"
    what: str
    whose: str
    limit: int
    retry_after_ms: int


class BadAccessError(NodeError, ValueError):
    """A user, a role, a rule, a credential or a rate cannot be as the call has it. Nothing was
    changed."""

    code, status = "node.bad_access", "INVALID_ARGUMENT"
    text = "{what}; {why}; {do}"
    what: str
    why: str
    do: str


class UsersOffError(NodeError):
    """The node has `users = off`, so there are no users to look at or to change. The call had no
    effect."""

    code, status = "node.users_off", "FAILED_PRECONDITION"
    text = "users are off at this node; set users = prepare and users_file there, see docs/users.md"


class UsersNotPreparedError(NodeError):
    """The node knows no user, and its leader has `users = off`, so it makes none. The call had no
    effect; the setting at the leader has to change first."""

    code, status = "node.users_not_prepared", "FAILED_PRECONDITION"
    text = (
        "users = {mode} here, and off at the leader, node {leader_id}: no user is known; set "
        "users = prepare at all nodes first"
    )
    mode: str
    leader_id: int


class UnknownUserError(NodeError):
    """The cluster has no user of this name. The state is unchanged."""

    code, status = "node.unknown_user", "NOT_FOUND"
    text = "there is no user {name!r}; run 'qlog user list'"
    name: str


class UserExistsError(NodeError):
    """The cluster has a user of this name already. The state is unchanged."""

    code, status = "node.user_exists", "ALREADY_EXISTS"
    text = "there is a user {name!r} already; use another name, or 'qlog user set {name}'"
    name: str


class UnknownRoleError(NodeError):
    """The cluster has no role of this name. The state is unchanged."""

    code, status = "node.unknown_role", "NOT_FOUND"
    text = "there is no role {name!r}; run 'qlog role list'"
    name: str


class RoleInUseError(NodeError):
    """Users have the role, so it cannot be deleted. The state is unchanged."""

    code, status = "node.role_in_use", "FAILED_PRECONDITION"
    text = "user {user!r} has role {name!r}, so it stays; give the user other roles first"
    name: str
    user: str


class ReadyMadeRoleError(NodeError):
    """The role is one of the four that each cluster has. The state is unchanged."""

    code, status = "node.ready_made_role", "FAILED_PRECONDITION"
    text = (
        "role {name!r} is ready-made: it cannot be changed or deleted; make a role of another name "
        "with 'qlog role create'"
    )
    name: str


class UserChangedError(NodeError):
    """Another operator changed the user at the same time. The state is unchanged by this call."""

    code, retryable, status = "node.user_changed", True, "ABORTED"
    text = "user {name!r} was changed meanwhile; look at it and try again"
    name: str


class LastAdminError(NodeError):
    """The change would leave no user that may list, get and update users and has a credential that
    does not end. The state is unchanged."""

    code, status = "node.last_admin", "FAILED_PRECONDITION"
    text = (
        "no user could look at users and change them then, {name!r} neither; give one the role "
        "admin, and a token (with tls_client_auth also a certificate) that does not end, first"
    )
    name: str


class CredentialTakenError(NodeError):
    """Another user has this access key, token or certificate name. The state is unchanged."""

    code, status = "node.credential_taken", "ALREADY_EXISTS"
    text = "credential {credential!r} belongs to user {user!r}; use another one"
    credential: str
    user: str
