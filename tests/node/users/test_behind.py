"""A node that may lack users refuses with an error after which clients try again."""

import pytest

from node.errors.common import NotReadyError
from node.errors.users import UnauthenticatedError
from node.users.guard import Guard
from node.users.rules import Action, Need, ResourceKind


def test_an_unknown_credential_is_refused_for_now_until_all_users_are_known() -> None:
    guard, need = Guard("on", lambda: 0), Need(Action.GET, ResourceKind.TOPIC, "orders")
    caller = guard.by_token("of a user that was just made")
    for is_behind, error in ((True, NotReadyError), (False, UnauthenticatedError)):
        missing = NotReadyError(0, "does not know all users yet") if is_behind else None
        guard.missing = lambda missing=missing: missing  # type: ignore[misc]
        with pytest.raises(error, match="know all users yet" if is_behind else "is unknown"):
            caller.require(need)
        assert not caller.may(need)
