"""Users and roles of the replicated state.

Owns the commands that change them, and what no change may do: name a role that is not there, take
a credential of another user, or leave no user that may change users.
"""

import re
from dataclasses import replace
from typing import Any, Final

from node.config.limits import Limits
from node.errors.common import LimitReachedError, NodeError
from node.errors.users import (
    BadAccessError,
    CredentialTakenError,
    LastAdminError,
    ReadyMadeRoleError,
    RoleInUseError,
    UnknownRoleError,
    UnknownUserError,
    UserChangedError,
    UserExistsError,
)
from node.state.tables.table import Core, Table, TableContent, TableImage
from node.users.credentials import check_certificate_name
from node.users.rules import (
    PLACEHOLDER,
    READY_MADE,
    RULES_OF_A_ROLE_MAX,
    Action,
    ClusterPart,
    Need,
    ResourceKind,
    Role,
    check_argument,
    from_pb,
    given,
    rule_of,
)
from node.users.users import Credential, Rates, User, Users, check_rules, from_json, to_json
from quorumlog.pb import users_pb2
from quorumlog.pb.state_pb2 import Command

USERS_MAX: Final = 1_000
ROLES_MAX: Final = 200
ROLES_OF_A_USER_MAX: Final = 50
CREDENTIALS_OF_A_USER_MAX: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}\Z")
_NAME_IS: Final = "a name has 1 to 64 of letters, digits and . _ @ -, the first no sign"
RESETS_KEPT_MAX: Final = 64
"""A file that reset the admin before resets it no more."""
_OF_AN_ADMIN: Final = tuple(
    Need(action, ResourceKind.CLUSTER, ClusterPart.USERS)
    for action in (Action.LIST, Action.GET, Action.UPDATE)
)
"""Without List and Get, who may change users cannot see what to change."""


class UsersTable(Table):
    """Users by name, and the roles that operators made."""

    name, commands = "users", frozenset({"put_user", "delete_user", "put_role", "delete_role"})
    file_name = "users.json"

    def __init__(self, limits: Limits, image: TableImage) -> None:
        """Raises ValueError, KeyError or TypeError for an image of another form."""
        super().__init__(limits, image)
        users, roles, has_begun, reset_ids = self._parts(
            image, users={}, roles={}, has_begun=False, reset_ids=[]
        )
        self.has_begun: bool = has_begun
        """Whether there was a user ever: the first one comes from a file once only."""
        self.reset_ids = tuple(map(bytes.fromhex, reset_ids))
        """Of the newest resets of the admin, the last one at the end."""
        self.users = Users(
            {name: from_json(name, row) for name, row in users.items()},
            {name: _role_from_json(rows) for name, rows in roles.items()},
        )
        """Replaced by each change."""

    def apply(self, _state: Core, command: Command, _position: int) -> NodeError | None:
        """Change a user or a role, or return why not."""
        which = command.WhichOneof("command")
        reset_id, name = b"", ""
        if which == "put_user":
            put = command.put_user
            reset_id, name = put.reset_id, put.user.name
            if reset_id in self.reset_ids or (put.must_be_first and self.has_begun):
                return UserExistsError(name)
            after = self._with_user(put.user, is_reset=bool(reset_id))
        elif which == "delete_user":
            after = self._without_user(name := command.delete_user.name)
        elif which == "put_role":
            after = self._with_role(name := command.put_role.name, command.put_role.rules)
        else:
            after = self._without_role(command.delete_role.name)
        if isinstance(after, NodeError):
            return after
        by_certificate = not command.has_no_certificates
        has_users = self.has_begun or bool(after.users)
        if has_users and not _has_admin(after, by_certificate=by_certificate):
            return LastAdminError(name)
        self.users, self.has_begun = after, has_users
        if reset_id:
            self.reset_ids = (*self.reset_ids, reset_id)[-RESETS_KEPT_MAX:]
        self._changed()
        return None

    # --- Users ---

    def _with_user(self, put: users_pb2.User, *, is_reset: bool) -> Users | NodeError:
        try:
            user = user_of(put)
        except BadAccessError as error:
            return error
        old = self.users.users.get(user.name)
        revision = 1 if old is None else old.revision + 1
        if is_reset:
            user = replace(user, revision=revision)
        elif user.revision != revision:
            if old is not None and user.revision == 1:
                return UserExistsError(user.name)
            return UserChangedError(user.name) if old else UnknownUserError(user.name)
        refusal = self._refusal(user, is_reset=is_reset)
        return refusal or Users({**self.users.users, user.name: user}, self.users.roles)

    def _refusal(self, user: User, *, is_reset: bool) -> NodeError | None:
        count = len(self.users.users.keys() | {user.name})
        if count > USERS_MAX and not is_reset:  # It is the way back when none can delete one.
            return LimitReachedError("users", count, USERS_MAX)
        for role_name in user.roles:
            name, colon, argument = role_name.partition(":")
            role = READY_MADE.get(name) or self.users.roles.get(name)
            if role is None:
                return UnknownRoleError(name)
            has_place = any(PLACEHOLDER in rule.resource.name for rule in role)
            if has_place and not argument:
                why = f"a rule of role {name} has {PLACEHOLDER}, where the prefix goes"
                do = f"use {name}:PREFIX"
                return BadAccessError(f"role {role_name!r} lacks a prefix", why, do)
            if colon and not has_place:
                why = f"no rule of role {name} has {PLACEHOLDER}, where a prefix would go"
                return BadAccessError(f"role {role_name!r} has a prefix", why, f"use {name}")
            try:
                if argument:
                    check_argument(argument)
                    check_rules(given(role, argument))
            except BadAccessError as error:
                return error
        for identity, credential in user.credentials.items():
            owner = self._owner(identity, credential)
            if owner not in ("", user.name):
                return CredentialTakenError(credential.certificate or identity, owner)
        return None

    def _owner(self, identity: str, credential: Credential) -> str:
        """Return the user that has such a credential; empty: none has."""
        users = self.users
        if credential.token_sha256:
            owned = users.by_token.get(credential.token_sha256)
        elif credential.sealed_secret:
            owned = users.by_key.get(identity)
        else:
            owned = users.by_certificate.get(credential.certificate)
        return "" if owned is None else owned.user

    def _without_user(self, name: str) -> Users | NodeError:
        if name not in self.users.users:
            return UnknownUserError(name)
        users = {n: user for n, user in self.users.users.items() if n != name}
        return Users(users, self.users.roles)

    # --- Roles ---

    def _with_role(self, name: str, rules: Any) -> Users | NodeError:
        if name in READY_MADE:
            return ReadyMadeRoleError(name)
        if _NAME.match(name) is None:
            return BadAccessError(
                f"{name[:80]!r} is no name of a role", _NAME_IS, "use another name"
            )
        count = len(self.users.roles.keys() | {name})
        if count > ROLES_MAX:
            return LimitReachedError("roles", count, ROLES_MAX)
        if not 1 <= len(rules) <= RULES_OF_A_ROLE_MAX:
            why = f"a role has 1 to {RULES_OF_A_ROLE_MAX}"
            do = "give it another number of rules, or a user several roles"
            return BadAccessError(f"role {name!r} would have {len(rules)} rules", why, do)
        try:
            role = from_pb(rules)
            check_rules(role)
        except BadAccessError as error:
            return error
        has_place = any(PLACEHOLDER in rule.resource.name for rule in role)
        for user in self.users.users.values():
            for role_name in user.roles:
                own, _, argument = role_name.partition(":")
                if own == name and has_place is not bool(argument):
                    return RoleInUseError(name, user.name)
        return Users(self.users.users, {**self.users.roles, name: role})

    def _without_role(self, name: str) -> Users | NodeError:
        if name in READY_MADE:
            return ReadyMadeRoleError(name)
        if name not in self.users.roles:
            return UnknownRoleError(name)
        for user in self.users.users.values():
            if any(one.partition(":")[0] == name for one in user.roles):
                return RoleInUseError(name, user.name)
        roles = {n: role for n, role in self.users.roles.items() if n != name}
        return Users(self.users.users, roles)

    def _copy(self) -> TableContent:
        if not self.version:
            return {}
        return {
            "users": {name: to_json(user) for name, user in self.users.users.items()},
            "roles": {name: _role_to_json(role) for name, role in self.users.roles.items()},
            "has_begun": self.has_begun,
            "reset_ids": [one.hex() for one in self.reset_ids],
        }


def _has_admin(users: Users, *, by_certificate: bool) -> bool:
    """Whether a user may see and change users, and has a token, or where they prove a user a
    certificate, that does not end: a state has no clock, and UserService takes no access keys."""
    for name, user in users.users.items():
        rights = users.get(name)
        if rights is None or not all(rights.decide(need).is_allowed for need in _OF_AN_ADMIN):
            continue
        for one in user.credentials.values():
            is_taken = one.token_sha256 or (one.certificate and by_certificate)
            if is_taken and not one.expires_unix_ms:
                return True
    return False


def user_of(put: users_pb2.User) -> User:
    """Read a user in wire form. Raises BadAccessError."""
    if _NAME.match(put.name) is None:
        what = f"{put.name[:80]!r} is no name of a user"
        raise BadAccessError(what, _NAME_IS, "use another name")
    roles = tuple(dict.fromkeys(put.roles))
    if len(roles) > ROLES_OF_A_USER_MAX or any(len(role) > 255 for role in roles):
        what = f"user {put.name!r} would have {len(roles)} roles, or one that is too long"
        why = f"a user has at most {ROLES_OF_A_USER_MAX}, of at most 255 characters"
        raise BadAccessError(what, why, "make a role that has the rules of several")
    if len(put.credentials) > CREDENTIALS_OF_A_USER_MAX:
        count = len(put.credentials)
        why = f"a user has at most {CREDENTIALS_OF_A_USER_MAX}, those that have ended included"
        do = "remove one first, 'qlog user describe' has them"
        raise BadAccessError(f"user {put.name!r} would have {count} credentials", why, do)
    credentials: dict[str, Credential] = {}
    for one in put.credentials:
        if _NAME.match(one.id) is None:
            what = f"{one.id[:80]!r} is no access key and no name of a credential"
            raise BadAccessError(what, _NAME_IS, "use another one")
        if one.id in credentials:
            what = f"user {put.name!r} has a credential {one.id!r} already"
            do = "use another name, or remove that one first"
            raise BadAccessError(what, "each has a name of its own", do)
        credential = _credential_of(one)
        for known, other in credentials.items():
            if credential[:3] == other[:3]:
                what = f"{known} and {one.id} of user {put.name!r} are one credential"
                raise BadAccessError(what, "each proof is kept once", f"remove {known} first")
        credentials[one.id] = credential
    rates = Rates(
        put.rates.bytes_per_second,
        put.rates.messages_per_second,
        put.rates.requests_per_second,
        put.rates.connections,
    )
    return User(put.name, roles, put.is_disabled, credentials, rates, put.revision)


def _credential_of(given: users_pb2.Credential) -> Credential:
    which, end = given.WhichOneof("proof"), given.expires_unix_ms
    if end < 0:
        why = f"its end is {end} ms since 1970"
        do = "give it a later end, or 0 for none"
        raise BadAccessError(f"credential {given.id!r} would end before 1970", why, do)
    if which == "token_sha256" and len(given.token_sha256) == 32:
        return Credential(token_sha256=given.token_sha256, expires_unix_ms=end)
    if which == "sealed_secret" and 0 < len(given.sealed_secret) <= 512:
        return Credential(sealed_secret=given.sealed_secret, expires_unix_ms=end)
    if which == "certificate":
        check_certificate_name(given.certificate)
        return Credential(certificate=given.certificate, expires_unix_ms=end)
    why = "it needs a digest of 32 bytes, a sealed secret of 1 to 512 or a name of a certificate"
    raise BadAccessError(f"credential {given.id!r} proves nothing", why, "give it one of them")


def to_pb(user: User) -> users_pb2.User:
    """Return all of a user in wire form, what is secret included."""
    credentials = [
        users_pb2.Credential(
            id=identity,
            expires_unix_ms=one.expires_unix_ms,
            **(
                {"token_sha256": one.token_sha256}
                if one.token_sha256
                else {"sealed_secret": one.sealed_secret}
                if one.sealed_secret
                else {"certificate": one.certificate}
            ),
        )
        for identity, one in user.credentials.items()
    ]
    return users_pb2.User(
        name=user.name,
        roles=user.roles,
        is_disabled=user.is_disabled,
        credentials=credentials,
        rates=users_pb2.Rates(**user.rates._asdict()),
        revision=user.revision,
    )


def _role_to_json(role: Role) -> list[Any]:
    return [
        [rule.is_denial, str(rule.resource), [a for a in Action if a in rule.actions]]
        for rule in role
    ]


def _role_from_json(rows: Any) -> Role:
    return tuple(
        rule_of(bool(is_denial), str(resource), actions) for is_denial, resource, actions in rows
    )
