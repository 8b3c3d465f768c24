"""Users: their credentials and roles, and what each of them may do.

Owns the tables by name and by credential, and the decisions, which are kept for each user until it
or a role changes. Never changed: a command makes new users. For one event loop.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from node.errors.users import BadAccessError
from node.users.rules import (
    NAME_LENGTH_MAX,
    READY_MADE,
    Action,
    ClusterPart,
    Decision,
    Need,
    ResourceKind,
    Role,
    decide,
    given,
)
from store.format import COMMAND_TOPIC, DEAD_LETTER_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from store.record.topic_names import is_reserved, is_reserved_prefix

_OF_APPENDS: Final = frozenset({COMMAND_TOPIC.encode()})
"""Of the command in the entry of a batch with a number, which the broker adds: not looked at."""
DECISIONS_KEPT_MAX: Final = 4_096
"""Of one user: names in calls are those of callers."""


class Credential(NamedTuple):
    """What proves that a caller is a user: one of the three proofs is there."""

    token_sha256: bytes = b""
    sealed_secret: bytes = b""
    certificate: str = ""
    expires_unix_ms: int = 0
    """0: never."""


NO_CREDENTIAL: Final = Credential()


class Owned(NamedTuple):
    """A credential with its user and its id."""

    user: str
    identity: str
    credential: Credential


class Rates(NamedTuple):
    """Limits of all connections of a user together, by node. 0: none."""

    bytes_per_second: int = 0
    messages_per_second: int = 0
    requests_per_second: int = 0
    connections: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class User:
    """One user as it was written. Compared by identity."""

    name: str
    roles: tuple[str, ...]
    """Names of roles, or name:argument."""
    is_disabled: bool
    credentials: Mapping[str, Credential]
    """By id, which for an access key is the key."""
    rates: Rates
    revision: int
    """Count of its changes."""


@dataclass(slots=True, eq=False)
class Rights:
    """A user with the rules of its roles, and what was decided with them."""

    user: User
    roles: tuple[tuple[str, Role], ...]
    may_publish: set[bytes] = field(default_factory=lambda: set(_OF_APPENDS))
    """Topics found allowed, for appends: a look-up without a call."""
    _decisions: dict[Need, Decision] = field(default_factory=dict)

    def decide(self, need: Need) -> Decision:
        """Return whether the user may do something. Retry and dead-letter topics belong to their
        consumer group. All others of the system hold messages of any topic, the audit, or the
        commands that change users: they need the right to look at users."""
        known = self._decisions.get(need)
        if known is None:
            known = decide(self.roles, standing_for(need))
            if len(self._decisions) >= DECISIONS_KEPT_MAX:
                self._decisions.clear()
                self.may_publish &= _OF_APPENDS
            if len(need.name) <= NAME_LENGTH_MAX:  # Others are of no use, and of any size.
                self._decisions[need] = known
        return known

    def why_not(self, need: Need) -> tuple[str, str]:
        """Return, for a person, why the user may not do something, and what to do."""
        set_roles = f"'qlog user set {self.user.name} --role' names all that it has"
        denied = self.decide(need).rule
        if denied is not None:
            return f"{denied} of its roles denies it", f"ask an admin for other roles, {set_roles}"
        roles = ", ".join(name for name, _ in self.roles)[:255]
        fit = [
            name if role == given(role, "") else f"{name}:PREFIX"
            for name, role in reversed([*READY_MADE.items()])
            if Rights(self.user, ((name, given(role, need.name)),)).decide(need).is_allowed
        ]
        why = f"no rule of its roles ({roles}) allows it" if roles else "it has no role"
        do = f"ask an admin for a role that does, as {' or '.join(fit)}, {set_roles}"
        return why, do


LOOK_AT_USERS: Final = Need(Action.GET, ResourceKind.CLUSTER, ClusterPart.USERS)


def check_rules(role: Role) -> None:
    """Raise BadAccessError for a rule that decides nothing, since others stand for its topics."""
    for rule in role:
        kind, name, is_prefix = rule.resource
        if kind is not ResourceKind.TOPIC:
            continue
        if is_reserved_prefix(name) if is_prefix else is_reserved(name):
            counts = standing_for(Need(Action.GET, *rule.resource))
            use = str(counts) if counts is LOOK_AT_USERS else f"rules for {counts.resource}"
            what = f"a rule for {rule.resource} decides nothing"
            raise BadAccessError(what, "something else stands for these topics", f"use {use}")


def standing_for(need: Need) -> Need:
    """Return what stands for a need in the rules."""
    if need.kind is not ResourceKind.TOPIC or not is_reserved(need.name):
        return need
    for prefix in (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX):
        if need.name.startswith(prefix):
            return need._replace(kind=ResourceKind.GROUP, name=need.name.removeprefix(prefix))
    return LOOK_AT_USERS


class Users:
    """All users and roles at one moment of the replicated state."""

    def __init__(self, users: Mapping[str, User], roles: Mapping[str, Role]) -> None:
        self.users: Final = users
        self.roles: Final = roles
        """Those that operators made; `READY_MADE` has the others."""
        self._rights: Final[dict[str, Rights]] = {}
        self.by_token: Final[dict[bytes, Owned]] = {}
        """By the digest of a token."""
        self.by_key: Final[dict[str, Owned]] = {}
        """By access key."""
        self.by_certificate: Final[dict[str, Owned]] = {}
        """By the name of a certificate."""
        for user in users.values():
            for identity, credential in user.credentials.items():
                row = Owned(user.name, identity, credential)
                if credential.token_sha256:
                    self.by_token[credential.token_sha256] = row
                elif credential.sealed_secret:
                    self.by_key[identity] = row
                else:
                    self.by_certificate[credential.certificate] = row

    def role(self, name: str) -> Role | None:
        """Return the rules of a role, given as NAME or NAME:ARGUMENT; None: there is none."""
        name, _, argument = name.partition(":")
        role = READY_MADE.get(name) or self.roles.get(name)
        return None if role is None else given(role, argument)

    def get(self, name: str) -> Rights | None:
        """Return the rights of a user that may call; None: unknown or disabled."""
        rights = self._rights.get(name)
        if rights is None:
            user = self.users.get(name)
            if user is None or user.is_disabled:
                return None
            roles = ((role, self.role(role)) for role in user.roles)
            found = tuple((name, rules) for name, rules in roles if rules is not None)
            rights = self._rights[name] = Rights(user, found)
        return rights


NO_USERS: Final = Users({}, {})


def to_json(user: User) -> dict[str, Any]:
    """Return a user as JSON values."""
    credentials: dict[str, dict[str, Any]] = {}
    for identity, one in user.credentials.items():
        row: dict[str, Any] = {}
        if one.token_sha256:
            row["token_sha256"] = one.token_sha256.hex()
        elif one.sealed_secret:
            row["sealed_secret"] = one.sealed_secret.hex()
        else:
            row["certificate"] = one.certificate
        if one.expires_unix_ms:
            row["expires_unix_ms"] = one.expires_unix_ms
        credentials[identity] = row
    return {
        "roles": list(user.roles),
        "is_disabled": user.is_disabled,
        "credentials": credentials,
        "rates": list(user.rates),
        "revision": user.revision,
    }


def from_json(name: str, row: Mapping[str, Any]) -> User:
    """Read the result of `to_json`. Raises KeyError, TypeError or ValueError for another shape."""
    credentials = {}
    for identity, one in row["credentials"].items():
        credentials[str(identity)] = Credential(
            bytes.fromhex(one.get("token_sha256", "")),
            bytes.fromhex(one.get("sealed_secret", "")),
            str(one.get("certificate", "")),
            int(one.get("expires_unix_ms", 0)),
        )
    roles = tuple(_texts(row["roles"]))
    rates = Rates(*map(int, row["rates"]))
    return User(name, roles, bool(row["is_disabled"]), credentials, rates, int(row["revision"]))


def _texts(values: Iterable[Any]) -> list[str]:
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"not a list of texts: {values!r}")
    return list(values)
