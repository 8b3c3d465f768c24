"""Access keys: who holds one is its user, whichever client wrote the header."""

import pytest

from node.errors.users import UnauthenticatedError
from node.rocketmq.callers import user_of
from tests.node.rocketmq.guards import SECRET, TIME, guard_of, headers


@pytest.mark.parametrize(("key", "upper"), [("ak", False), ("ak", True), ("ak//Rocketmq", False)])
def test_a_client_with_a_key_is_its_user(key: str, upper: bool) -> None:
    guard = guard_of({"ak": ("admin",)})
    caller = user_of(guard, headers(key, upper=upper))
    assert (caller.name, caller.rights.user.roles) == ("ak", ("admin",))


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"authorization": "Basic abc"},
        {"authorization": "Bearer qlt_unknown"},
        headers("ak", "other"),
        headers("ak", "\0" * 32),
        headers("other", SECRET),
        headers("other", "\0" * 32),
        headers("", ""),
        headers("ak", time=TIME.replace("Z", "1Z")),
    ],
)
def test_a_client_without_a_key_is_no_user(found: dict[str, str]) -> None:
    caller = user_of(guard_of({"ak": ("admin",)}), found)
    with pytest.raises(UnauthenticatedError):
        _ = caller.rights
    assert not caller.name
