"""`qlog top`: the status of all nodes on one screen, repeated.

Owns the live status on a terminal and the plain snapshot elsewhere. The content of a row is
node_rows', what is wrong is judgement's.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qlog.broker_groups import shown_columns, shown_rows
from qlog.cluster.judgement import Look, Looks
from qlog.cluster.node_rows import (
    TOP_COLUMNS,
    groups_of,
    leader_of,
    replication_of,
    top_rows,
    with_roles,
)
from qlog.connection import Reader, connected, run, server_option, stop_on_signals, until
from qlog.output import (
    Format,
    cell,
    output_option,
    print_record,
    print_rows,
    print_text,
    table_parts,
)
from quorumlog.command_errors import ExitCode
from quorumlog.foreign_text import shown
from quorumlog.standard_output import styled

if TYPE_CHECKING:
    from quorumlog.admin.types import ClusterStatus
    from quorumlog.client import Client

_HEADS = {
    "broker_group": "broker group", "node_id": "node", "address": "address", "role": "role",
    "term": "term", "last_index": "last", "commit_index": "commit", "applied_index": "applied",
    "lag_count": "lag", "msgs_per_s": "msg/s", "mb_per_s": "MB/s", "pulls_per_s": "pulls/s",
    "busy_per_s": "busy/s",
    "in_flight_kib": "in flight KiB", "disk_used_ratio": "disk", "standing": "standing",
    "uptime_ms": "up", "detail": "detail",
}  # fmt: skip
_T = TypeVar("_T")
_ROLE_STYLES = {"leader": "bold green", "follower": "", "learner": "cyan", "down": "bold red"}
assert tuple(_HEADS) == TOP_COLUMNS, "each column of qlog top has a head"


interval_option = click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks; rates are over this time.",
)


async def look_twice(look: Callable[[], Awaitable[_T]], interval: float) -> tuple[_T, _T, float]:
    """Return what two looks find, the newer one first, and the seconds between them."""
    before, began = await look(), time.monotonic()
    await asyncio.sleep(interval)
    return await look(), before, time.monotonic() - began


@click.command()
@interval_option
@click.option("--once", is_flag=True, help="One snapshot, after one interval, also on a terminal.")
@server_option
@output_option
def top(interval: float, once: bool, server: str | None, output: Format) -> int:
    """Watch all nodes: role, term, indexes, lag, rates.

    A live view on a terminal until Ctrl-C; where output is no terminal, or with -o json, one
    snapshot. Rates are counted over one interval: what this process of the node acked as leader.

    \b
    Keys of -o json:
      cluster_id, leader_id, term, problems, nodes
      nodes: broker_group, node_id, address, role, term, last_index, commit_index,
        applied_index, lag_count, msgs_per_s, mb_per_s, pulls_per_s, busy_per_s,
        in_flight_kib, disk_used_ratio, standing, uptime_ms, detail

    \b
    Examples:
      qlog top
      qlog top --once
      qlog top --once --interval 5 -o json | jq '.nodes[].msgs_per_s'

    Problems are what 'qlog check' finds, without the lag. Ends with 0. A snapshot ends with 1 when
    there is a problem; it is named.
    """
    is_live = sys.stdout.isatty() and not once and output is Format.TABLE
    return run(_live(server, interval) if is_live else _once(server, interval, output))


async def _once(server: str | None, interval: float, output: Format) -> int:
    async with connected(server) as client:
        looks = look_twice(Looks(client).look, interval)
        look, before, seconds = await Reader().during(looks)
    status, wrong = look.status, look.problems
    rows = top_rows(status, before.status, seconds)
    if output is Format.TABLE:
        lines = shown_rows(with_roles(rows, replication_of(status)))
        print_rows(lines, output, columns=tuple(lines[0]) if lines else TOP_COLUMNS)
        for problem in wrong:
            print_text(shown(f"problem: {problem}"))
    else:
        print_record({**_head(status), "problems": wrong, "nodes": rows}, output)
    return ExitCode.FINDINGS if wrong else ExitCode.OK


async def _live(server: str | None, interval: float) -> int:
    from rich.console import Console
    from rich.live import Live

    async with connected(server) as client:
        live = Live(
            console=Console(file=styled(sys.stdout)),
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with stop_on_signals() as stop, live:
            await until(stop.requested, _watch(client, live, interval))
    return ExitCode.OK


async def _watch(client: "Client", live: Any, interval: float) -> None:
    looks, before, began = Looks(client), None, time.monotonic()
    while True:
        look, now = await looks.look(), time.monotonic()
        width = live.console.width  # Of the terminal as it is now.
        live.update(status_table(look, before, now - began, width), refresh=True)
        before, began = look.status, now
        await asyncio.sleep(interval)


def _head(status: "ClusterStatus") -> dict[str, object]:
    leader = leader_of(status, groups_of(status)[0]) if status.nodes else None
    return {
        "cluster_id": status.cluster_id,
        "leader_id": leader.node_id if leader else None,
        "term": status.term,
    }


def status_table(look: Look, before: "ClusterStatus | None", seconds: float, width: int) -> Any:
    """Return the content of the screen, `width` columns wide, for rich to draw."""
    from rich.console import Group
    from rich.text import Text

    status = look.status
    head = _head(status)
    word = "master" if replication_of(status).endswith("_master") else "leader"
    leader = f"{word} {head['leader_id']}" if head["leader_id"] else f"no {word}"
    rows = top_rows(status, before, seconds)
    names = shown_columns(TOP_COLUMNS, rows)
    people = with_roles(rows, replication_of(status))
    texts = [{_HEADS[name]: _short(name, row[name]) for name in names} for row in people]
    right = set(_HEADS.values()) - {"broker group", "address", "role", "standing", "detail"}
    lines = []
    for part in table_parts(texts, [_HEADS[name] for name in names], width, right=right):
        lines.append(Text(""))
        for line, number in part:
            role = None if number is None else rows[number]["role"]
            lines.append(Text(line, style=_ROLE_STYLES.get(role, "yellow") if role else "bold"))
    # Above the table: a terminal of few lines shows its beginning.
    wrong = [Text(shown(f"problem: {one}"), style="bold red") for one in look.problems]
    title = shown(f"cluster {head['cluster_id']}  {leader}  term {head['term']}")
    return Group(Text(title, style="bold"), *wrong, *lines, Text("\nCtrl-C ends", style="dim"))


def _short(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "disk_used_ratio":
        return f"{value:.0%}"
    if name == "uptime_ms":
        return duration_text(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
    return cell(value)


def duration_text(milliseconds: int) -> str:
    """Return a time span in its two largest units: 3d 4h, 12m 5s, 7s."""
    seconds = milliseconds // 1000
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m")]
    parts.append((seconds % 60, "s"))
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{count}{unit}" for count, unit in parts[:2])
