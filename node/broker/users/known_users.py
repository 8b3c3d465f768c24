"""The users that a guard knows: those of the replicated state, as of the last turn.

Owns when the guard looks, and whether this node may lack users that others have.
"""

from collections.abc import Callable
from typing import Final

from node.broker.core.context import Context
from node.state.tables.users import UsersTable
from node.users.guard import Guard

_LAG_COUNT_MAX: Final = 1_024
"""Entries; further behind a node may lack users, and refuses unknown callers for now only. A busy
follower is always a little behind."""


def follow_users(
    guard: Guard, context: Context, commit_index: Callable[[], int], is_ready: Callable[[], bool]
) -> None:
    """Have a guard know the users of the state from now on; `is_ready` says whether the node is."""
    driver, machine = context.driver, context.machine
    state, table = machine.state, machine.state.table(UsersTable)

    def is_behind() -> bool:
        is_near = commit_index() - driver.applied_index <= _LAG_COUNT_MAX
        return not (is_near and guard.users.users and is_ready())

    def look() -> None:
        """Without a call as long as nothing has changed: it is on the path of each append."""
        nonlocal state, table
        if state is not machine.state:
            state, table = machine.state, machine.state.table(UsersTable)
        if table.users is not guard.users:
            guard.look(table.users)

    look()
    guard.is_behind = is_behind
    driver.add_listener(look)
