"""Rules: RocketMQ's actions on clusters, topics and groups, allowed or denied.

Owns the words, their texts, which rule fits a resource, and which of several decides: a denial
before any permission, and without a rule the answer is no. Source of the words: RocketMQ 5,
authorization (ACL 2.0).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from node.errors.users import BadAccessError
from quorumlog.pb import users_pb2

PLACEHOLDER: Final = "{}"
"""In the name of a resource of a role: what follows the role's name where the role is given."""
RULES_OF_A_ROLE_MAX: Final = 100
NAME_LENGTH_MAX: Final = 255
"""Of a resource: no topic and no group has a longer name."""
_NAME: Final = re.compile(r"[^\x00-\x20*\x7f]{1,255}\Z")
_IS: Final = "1 to 255 characters without spaces"


class Action(StrEnum):
    """What is done to a resource."""

    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


_ACTIONS: Final = (
    "a rule says what it allows or denies",
    f"use {', '.join(Action)}, with commas between several",
)


class ResourceKind(StrEnum):
    """What it is done to."""

    CLUSTER = "Cluster"
    """Names of the cluster's resources are the parts that are administered: see `ClusterPart`."""
    TOPIC = "Topic"
    GROUP = "Group"


class ClusterPart(StrEnum):
    """The names of the resource Cluster."""

    NODES = "nodes"
    """Members, leadership, state and metrics of nodes."""
    SETTINGS = "settings"
    VALUES = "values"
    """The key-value configuration of the name server, and files of settings that are imported."""
    USERS = "users"


class Resource(NamedTuple):
    """One resource, or with `is_prefix` all of a kind whose names begin so."""

    kind: ResourceKind
    name: str
    is_prefix: bool = False

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}{'*' if self.is_prefix else ''}"

    def has(self, other: "Resource") -> bool:
        """Whether another resource, all of it, is this one or one of these."""
        if self.is_prefix:
            return other.kind is self.kind and other.name.startswith(self.name)
        return other == self

    def touches(self, other: "Resource") -> bool:
        """Whether a resource is of both."""
        return self.has(other) or other.has(self)


class Rule(NamedTuple):
    """One right, or with `is_denial` the refusal of one."""

    resource: Resource
    actions: frozenset[Action]
    is_denial: bool = False

    def __str__(self) -> str:
        word = "DENY" if self.is_denial else "ALLOW"
        return f"{word} {self.resource} {','.join(a for a in Action if a in self.actions)}"


Role = tuple[Rule, ...]


class Need(NamedTuple):
    """What a call needs: an action on a resource, or on all of a kind whose names begin so."""

    action: Action
    kind: ResourceKind
    name: str
    """Empty: everything of its kind."""
    is_prefix: bool = False

    @property
    def resource(self) -> Resource:
        """What it is done to."""
        return Resource(self.kind, self.name, self.is_prefix or not self.name)

    def __str__(self) -> str:
        return f"{self.action} on {self.resource}"


class Decision(NamedTuple):
    """Whether something is allowed, and what decided: a rule of a role, or that there is none."""

    is_allowed: bool
    role: str = ""
    rule: Rule | None = None


def resource_of(text: str) -> Resource:
    """Read `Topic:orders`, `Group:shop-*`. Raises BadAccessError."""
    kind, colon, name = text.partition(":")
    kinds = {str(one).lower(): one for one in ResourceKind}
    if not colon or kind.lower() not in kinds:
        why = "a resource is a kind, a colon and a name"
        do = "use Cluster:NAME, Topic:NAME or Group:NAME"
        raise BadAccessError(f"{text[:80]!r} is no resource", why, do)
    is_prefix = name.endswith("*")
    name = name.removesuffix("*")
    if name or not is_prefix:
        if _NAME.match(name) is None:
            do = "use * at the end only, where it stands for all names that begin so"
            raise BadAccessError(f"{text[:80]!r} names no resource", f"a name has {_IS}", do)
        if (
            kinds[kind.lower()] is ResourceKind.CLUSTER
            and not is_prefix
            and name not in set(ClusterPart)
        ):
            why = f"the parts of a cluster are {', '.join(ClusterPart)}"
            do = "use one of them, as Cluster:nodes, or Cluster:* for all"
            raise BadAccessError(f"{text[:80]!r} is no part of a cluster", why, do)
    return Resource(kinds[kind.lower()], name, is_prefix)


def action_of(text: str) -> Action:
    """Read the name of an action, in any case. Raises BadAccessError."""
    actions = {str(one).lower(): one for one in Action}
    if text.lower() not in actions:
        raise BadAccessError(f"{text[:80]!r} is no action", *_ACTIONS)
    return actions[text.lower()]


def rule_of(is_denial: bool, resource: str, actions: Iterable[str]) -> Rule:
    """Read a rule. Raises BadAccessError."""
    read = frozenset(map(action_of, actions))
    if not read:
        raise BadAccessError(f"the rule for {resource[:80]!r} has no action", *_ACTIONS)
    return Rule(resource_of(resource), read, is_denial)


def from_pb(rules: Iterable[users_pb2.Rule]) -> Role:
    """Read the rules of a role. Raises BadAccessError."""
    return tuple(rule_of(rule.deny, rule.resource, rule.actions) for rule in rules)


def to_pb(rule: Rule) -> users_pb2.Rule:
    """Return a rule in wire form."""
    actions = [str(action) for action in Action if action in rule.actions]
    return users_pb2.Rule(deny=rule.is_denial, resource=str(rule.resource), actions=actions)


def _role(*rows: tuple[str, str]) -> Role:
    return tuple(
        rule_of(actions.startswith("DENY "), resource, actions.removeprefix("DENY ").split(","))
        for resource, actions in rows
    )


_ALL: Final = ",".join(Action)
READY_MADE: Final[Mapping[str, Role]] = MappingProxyType(
    {
        "admin": _role(("Cluster:*", _ALL), ("Topic:*", _ALL), ("Group:*", _ALL)),
        "operator": _role(
            ("Cluster:*", "Create,Update,Delete,Get,List"),
            ("Cluster:users", "DENY Create,Update,Delete,Get,List"),
            ("Topic:*", "Create,Update,Delete,Get,List"),
            ("Group:*", "Create,Update,Delete,Get,List"),
        ),
        "producer-consumer": _role(
            ("Topic:{}*", "Pub,Sub,Get,List"),
            ("Group:{}*", "Pub,Sub,Get,List"),
        ),
        "reader": _role(
            ("Topic:*", "Sub,Get,List"),
            ("Group:*", "Get,List"),
            ("Cluster:nodes", "Get,List"),
        ),
    }
)
"""Roles that are there in every cluster and cannot be changed."""


def check_argument(argument: str) -> None:
    """Raise BadAccessError unless names can begin with the argument of a role."""
    if _NAME.match(argument) is None:
        do = "use the beginning of names as PREFIX"
        raise BadAccessError(f"{argument[:80]!r} is no prefix", f"a prefix has {_IS} and *", do)


def given(role: Role, argument: str) -> Role:
    """Return a role with an argument in the place of each `{}`."""
    return tuple(
        rule._replace(
            resource=rule.resource._replace(name=rule.resource.name.replace(PLACEHOLDER, argument))
        )
        for rule in role
    )


def decide(roles: Sequence[tuple[str, Role]], need: Need) -> Decision:
    """Return whether these roles, with their names, allow something, and by which rule. Of several
    resources one rule must allow all, and a denial of one denies them."""
    action, resource = need.action, need.resource
    found = Decision(False)
    for role, rules in roles:
        for rule in rules:
            if action not in rule.actions:
                continue
            if rule.is_denial:
                if rule.resource.touches(resource):
                    return Decision(False, role, rule)
            elif not found.is_allowed and rule.resource.has(resource):
                found = Decision(True, role, rule)
    return found
