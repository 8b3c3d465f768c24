"""The users that a guard knows: those of the replicated state, as of the last turn.

Owns when the guard looks, and whether this node may lack users that others have.
"""

from collections.abc import Callable
from typing import Final

from node.broker.core.context import Context
from node.errors.common import NodeError, NotReadyError
from node.errors.users import UsersNotPreparedError
from node.state.tables.users import UsersTable
from node.users.guard import Guard
from raft.messages import NodeId

_LAG_COUNT_MAX: Final = 1_024
"""Entries; further behind a node may lack users, and refuses unknown callers for now only. A busy
follower is always a little behind."""


def follow_users(
    guard: Guard,
    context: Context,
    commit_index: Callable[[], int],
    is_ready: Callable[[], bool],
    mode_at: Callable[[NodeId], str],
    on_change: Callable[[], None],
) -> Callable[[], str]:
    """Have a guard know the users of the state from now on. `mode_at` returns the setting `users`
    of a node; empty: it is not known. Return what returns why no caller can be a user here; empty:
    there is no reason."""
    driver, machine = context.driver, context.machine
    state, table = machine.state, machine.state.table(UsersTable)

    def unprepared() -> NodeError | None:
        is_made = bool(guard.users.users) or mode_at(driver.leader_id) != "off"
        return None if is_made else UsersNotPreparedError(guard.mode, driver.leader_id)

    def missing() -> NodeError | None:
        is_near = commit_index() - driver.applied_index <= _LAG_COUNT_MAX
        if is_near and guard.users.users and is_ready():
            return None
        return unprepared() or NotReadyError(0, "does not know all users yet")

    def problem() -> str:
        error = unprepared() if guard.is_on else None
        return "" if error is None else str(error)

    def look() -> None:
        """Without a call as long as nothing has changed: it is on the path of each append."""
        nonlocal state, table
        if state is not machine.state:
            state, table = machine.state, machine.state.table(UsersTable)
        if table.users is not guard.users:
            guard.look(table.users)
            on_change()

    look()
    guard.missing = missing
    driver.add_listener(look)
    return problem
