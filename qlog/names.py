"""Names that a shell completes: topics, consumer groups and nodes of the cluster.

Owns the look at the cluster, which has a second and is silent when it fails: a person is typing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from qlog.connection import connected, run

if TYPE_CHECKING:
    from quorumlog.client import Client

LOOK_S: Final = 1.0


def _names(
    call: "Callable[[Client], Awaitable[Any]]", name_of: Callable[[Any], object]
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    async def look(server: str | None) -> Iterable[Any]:
        async with asyncio.timeout(LOOK_S), connected(server) as client:
            found = await call(client)
            return getattr(found, "nodes", found)  # type: ignore[no-any-return]

    def complete(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        try:
            names = [str(name_of(one)) for one in run(look(context.params.get("server")))]
        except Exception:  # noqa: BLE001 - no cluster, no names.
            return []
        return sorted(name for name in names if name.startswith(begun))

    return complete


topics = _names(lambda client: client.admin.list_topics(), lambda info: info.topic)
groups = _names(lambda client: client.admin.list_groups(), lambda info: info.group)
nodes = _names(lambda client: client.admin.cluster_status(), lambda node: node.node_id)
"""The `shell_complete` of an argument."""
