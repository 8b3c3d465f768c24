"""Rules: a denial before any permission, and no rule is a no."""

import pytest

from node.users.rules import (
    READY_MADE,
    Action,
    ClusterPart,
    Need,
    ResourceKind,
    Role,
    decide,
    given,
    resource_of,
    rule_of,
)


def allow(resource: str, *actions: str) -> Role:
    return (rule_of(False, resource, actions),)


def deny(resource: str, *actions: str) -> Role:
    return (rule_of(True, resource, actions),)


@pytest.mark.parametrize(
    ("roles", "is_allowed", "by"),
    [
        ({}, False, ""),
        ({"a": allow("Topic:orders", "Pub")}, True, "a"),
        ({"a": allow("Topic:order", "Pub")}, False, ""),
        ({"a": allow("Topic:order*", "Pub")}, True, "a"),
        ({"a": allow("Topic:*", "pub")}, True, "a"),
        ({"a": allow("Topic:orders", "Sub")}, False, ""),
        ({"a": allow("Group:*", "Pub")}, False, ""),
        ({"a": allow("topic:orders", "Pub"), "b": deny("Topic:*", "Pub")}, False, "b"),
        ({"b": deny("Topic:ord*", "Pub"), "a": allow("Topic:orders", "Pub")}, False, "b"),
        ({"b": deny("Topic:ord*", "Sub"), "a": allow("Topic:orders", "Pub")}, True, "a"),
    ],
)
def test_a_denial_wins_else_a_permission_is_needed(
    roles: dict[str, Role], is_allowed: bool, by: str
) -> None:
    decision = decide(list(roles.items()), Need(Action.PUB, ResourceKind.TOPIC, "orders"))
    assert (decision.is_allowed, decision.role) == (is_allowed, by)


@pytest.mark.parametrize(
    ("name", "is_prefix", "is_allowed"),
    [
        *(("ba", True, True), ("bar", False, True), ("b", True, False), ("bad", True, False)),
        *(("bad-a", True, False), ("", False, False), ("bar", True, True)),
    ],
)
def test_of_many_one_rule_allows_all_and_a_denial_of_one_denies_them(
    name: str, is_prefix: bool, is_allowed: bool
) -> None:
    roles = [("a", allow("Topic:ba*", "Sub")), ("b", deny("Topic:bad*", "Sub"))]
    if name == "ba":
        roles.pop()
    elif not name:
        roles.append(("c", allow("Topic:*", "Sub")))
    need = Need(Action.SUB, ResourceKind.TOPIC, name, is_prefix)
    assert decide(roles, need).is_allowed is is_allowed


@pytest.mark.parametrize(
    "text",
    [
        *("", "Topic", "Topic:", "Disk:a", "Topic:a*b", "Topic:a b", "Topic:a\n", "Topic:**"),
        *("Topic:" + "a" * 256, "Cluster:cluster"),
    ],
)
def test_a_resource_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="use"):
        resource_of(text)


def test_a_rule_needs_an_action_that_exists() -> None:
    for actions in ((), ("Pub", "Read")):
        with pytest.raises(ValueError, match="use Pub, Sub, Create, Update, Delete, Get, List"):
            rule_of(False, "Topic:a", actions)


MAY = {
    "admin": [("Update", "Cluster", "users"), ("Pub", "Topic", "any"), ("Sub", "Group", "any")],
    "operator": [("Update", "Cluster", "nodes"), ("Delete", "Topic", "any"), ("Get", "Group", "g")],
    "producer-consumer": [("Pub", "Topic", "shop-a"), ("Sub", "Group", "shop-"), ("Get", "Topic",
                                                                                 "shop-b")],
    "reader": [("Sub", "Topic", "any"), ("List", "Group", "any"), ("Get", "Cluster", "nodes")],
}  # fmt: skip
MAY_NOT = {
    "admin": [],
    "operator": [("Sub", "Topic", "any"), ("Pub", "Topic", "any"), ("Get", "Cluster", "users"),
                 ("Update", "Cluster", "users")],
    "producer-consumer": [("Pub", "Topic", "shop"), ("Pub", "Topic", "other"), ("Create", "Topic",
                          "shop-a"), ("Get", "Cluster", "nodes"), ("Sub", "Topic", "")],
    "reader": [("Pub", "Topic", "any"), ("Sub", "Group", "any"), ("Get", "Cluster", "users")],
}  # fmt: skip


@pytest.mark.parametrize("name", READY_MADE)
def test_the_ready_made_roles(name: str) -> None:
    role = given(READY_MADE[name], "shop-")
    for rows, is_allowed in ((MAY[name], True), (MAY_NOT[name], False)):
        for action, kind, resource in rows:
            need = Need(Action(action), ResourceKind(kind), resource)
            assert decide([(name, role)], need).is_allowed is is_allowed, need


def test_every_part_of_a_cluster_is_a_resource() -> None:
    assert [resource_of(f"Cluster:{part}").name for part in ClusterPart] == list(ClusterPart)
