"""`qlog events`: what happened at the nodes, as their logs say, in one list.

Owns the options, the merge of the nodes, and the looks of `--follow`; nodes keep the events.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Final

import click

from qlog import names
from qlog.cluster.node_rows import is_down
from qlog.connection import connected, run, server_option, stop_on_signals, until
from qlog.message_rows import time_text
from qlog.output import Format, output_option, print_rows, print_text
from qlog.parsed import Parsed, parse_duration
from quorumlog.command_errors import ExitCode
from quorumlog.foreign_text import shown

if TYPE_CHECKING:
    from quorumlog.admin.types import NodeEvent, NodeEvents
    from quorumlog.client import Client

_INTERVAL_S: Final = 1.0
_LEVELS: Final = ("info", "warning", "error")
_KEYS: Final = ("unix_ms", "node_id", "level", "component", "text", "values", "number")


@click.command()
@click.option(
    "--node",
    "node_id",
    type=click.IntRange(min=1),
    shell_complete=names.nodes,
    metavar="ID",
    help="Of one node only.",
)
@click.option(
    "--level",
    type=click.Choice(_LEVELS),
    default="info",
    show_default=True,
    help="The lowest level that is shown.",
)
@click.option(
    "--last",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    metavar="COUNT",
    help="How many of those that there are.",
)
@click.option(
    "--since",
    "since_ms",
    metavar="DURATION",
    type=Parsed("duration", parse_duration),
    help="How far back: 10s, 5m, 2h, 7d.  [default: all that there are]",
)
@click.option("--follow", is_flag=True, help="Show what comes, too, until Ctrl-C.")
@server_option
@output_option
def events(
    node_id: int | None,
    level: str,
    last: int,
    since_ms: int | None,
    follow: bool,
    server: str | None,
    output: Format,
) -> int:
    """Show what happened at the nodes: elections, disks, damage, repairs.

    An event is a line of the log of a node; of libraries and native code, a line of level error. A
    node keeps the last 1,000 of its process, of the levels that its setting log_level lets through.

    \b
    Keys of -o json:
      unix_ms, node_id, level, component, text, values, number (grows by one in a
      process)

    \b
    Examples:
      qlog events
      qlog events --follow --level warning
      qlog events --since 1h
      qlog events --node 2 -o json | jq '.[] | select(.text == "role")'
    """
    since_unix_ms = 0 if since_ms is None else int(time.time() * 1000) - since_ms
    return run(_events(node_id, level, last, since_unix_ms, follow, server, output))


async def _events(
    node_id: int | None,
    level: str,
    last: int,
    since_unix_ms: int,
    follow: bool,
    server: str | None,
    output: Format,
) -> int:
    shown_levels = {*_LEVELS[_LEVELS.index(level) :], "critical"}
    has: dict[int, NodeEvents] = {}

    async def look(client: "Client") -> list["NodeEvent"]:
        node_ids = [node_id] if node_id is not None else await _node_ids(client)
        found: list[NodeEvent] = []
        for said in await asyncio.gather(*(_ask(client, node, has.get(node)) for node in node_ids)):
            if said is not None and said.events:
                has[said.node_id] = said
                found += said.events
        return sorted(
            (e for e in found if e.level in shown_levels and e.unix_ms >= since_unix_ms),
            key=lambda event: (event.unix_ms, event.node_id, event.number),
        )

    with stop_on_signals() as stop:
        async with connected(server) as client:
            if node_id is not None:
                await client.admin.events(node_id, max_count=1)  # Its error, if there is one.
            found = await look(client)
            _show(found[-last:] if last else [], output, is_whole=not follow)
            while follow and not stop.requested.is_set():
                await until(stop.requested, asyncio.sleep(_INTERVAL_S))
                _show(await look(client), output, is_whole=False)
    return ExitCode.OK


async def _node_ids(client: "Client") -> list[int]:
    nodes = (await client.admin.cluster_status()).nodes
    return sorted({node.node_id for node in nodes if not is_down(node)})


async def _ask(client: "Client", node_id: int, has: "NodeEvents | None") -> "NodeEvents | None":
    from quorumlog.errors import DeadlineError, UnavailableError

    try:
        return await client.admin.events(node_id, after=has)
    except (UnavailableError, DeadlineError):
        return None  # Another look may find it; its events are kept until it ends.


def _show(events: list["NodeEvent"], output: Format, *, is_whole: bool) -> None:
    rows = [{key: getattr(event, key) for key in _KEYS} for event in events]
    if output is not Format.TABLE:
        print_rows(rows, output if is_whole else Format.JSONL, columns=_KEYS)
        return
    for row in rows:
        values = " ".join(f"{name}={shown(str(value))}" for name, value in row["values"].items())
        head = f"{time_text(row['unix_ms'])}  node {row['node_id']}  {row['level']:7}  "
        print_text(f"{row['component']}: {shown(row['text'])}  {values}".rstrip(), head)
