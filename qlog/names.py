"""Names that a shell completes, as those of topics, consumer groups and nodes of the cluster.

Owns the look at the cluster, which has a second, and the silence when a look fails: a person is
typing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from qlog.connection import connected, run
from quorumlog.local_cluster import default_directory, read_state

if TYPE_CHECKING:
    from quorumlog.client import Client

LOOK_S: Final = 1.0


Complete = Callable[[click.Context, click.Parameter, str], list[str]]
"""The `shell_complete` of a parameter."""


def of(look: Callable[[click.Context], Iterable[object]]) -> Complete:
    """Complete the names that a look finds; none when it fails."""

    def complete(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        try:
            found = map(str, look(context))
            return sorted(name for name in found if name.startswith(begun))
        except Exception:  # noqa: BLE001 - no cluster, no names.
            return []

    return complete


def _names(
    call: "Callable[[Client], Awaitable[Any]]", name_of: Callable[[Any], object]
) -> Complete:
    async def look(server: str | None) -> Iterable[Any]:
        async with asyncio.timeout(LOOK_S), connected(server) as client:
            found = await call(client)
            return getattr(found, "nodes", found)  # type: ignore[no-any-return]

    return of(lambda context: map(name_of, run(look(context.params.get("server")))))


def _local_nodes(context: click.Context) -> Iterable[object]:
    directory = Path(context.params.get("directory") or default_directory())
    state = read_state(directory)
    return state["nodes"] if state else ()


topics = _names(lambda client: client.admin.list_topics(), lambda info: info.topic)
groups = _names(lambda client: client.admin.list_groups(), lambda info: info.group)
users = _names(lambda client: client.admin.users(), lambda user: user.name)
roles = _names(lambda client: client.admin.roles(), lambda role: role.name)
nodes = _names(lambda client: client.admin.cluster_status(), lambda node: node.node_id)
local_nodes = of(_local_nodes)
