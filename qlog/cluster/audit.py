"""`qlog audit`: who changed the cluster, and who was refused.

Owns the options, the merge of the broker groups and the looks of `--follow`; nodes write the rows,
as messages of a system topic.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from qlog.connection import connected, run, server_option, stop_on_signals, until
from qlog.message_rows import time_text
from qlog.output import Format, output_option, print_rows, print_text
from qlog.parsed import Parsed, parse_duration
from quorumlog.command_errors import ExitCode
from quorumlog.foreign_json import read_json
from quorumlog.foreign_text import shown

if TYPE_CHECKING:
    from quorumlog.client import Client

_TOPIC: Final = "rmq_sys_audit"
_INTERVAL_S: Final = 1.0
_REFUSALS: Final = (
    *("node.forbidden", "node.unauthenticated"),
    *("prepare.forbidden", "prepare.unauthenticated"),
)
_KEYS: Final = (
    *("unix_ms", "node_id", "user", "call", "resource", "address", "outcome", "count"),
    "left_out",
)
_NUMBERS: Final = ("unix_ms", "node_id", "count", "left_out")
_TEXTS: Final = tuple(key for key in _KEYS if key not in _NUMBERS)
_NUMBER_MAX: Final = (1 << 53) - 1


@click.command()
@click.option("--follow", is_flag=True, help="Show what comes, too, until Ctrl-C.")
@click.option(
    "--since",
    "since_ms",
    metavar="DURATION",
    default="1d",
    show_default=True,
    type=Parsed("duration", parse_duration),
    help="How far back: 10s, 5m, 2h, 7d.",
)
@click.option("--user", help="Only calls of this user.")
@click.option(
    "--refused", is_flag=True, help="Only calls that were refused, or would be with users = on."
)
@server_option
@output_option
def audit(
    follow: bool,
    since_ms: int,
    user: str | None,
    refused: bool,
    server: str | None,
    output: Format,
) -> int:
    """Show who changed the cluster, and who was refused.

    A row is a call: who made it, on what, from where, and what became of it. user is empty for a
    caller without a credential that is known. outcome is ok, or the code of an error; or, with
    users = prepare, prepare.forbidden or prepare.unauthenticated: users = on would have refused
    this many calls (count). left_out counts rows that were too many before this one. A row that
    cannot be read is left out, and stderr says how many. It needs Get on Cluster:users.

    \b
    Keys of -o json:
      unix_ms, node_id, user, call, resource, address, outcome, count,
        left_out

    \b
    Examples:
      qlog audit
      qlog audit --since 1h --refused
      qlog audit --user shop --follow -o jsonl | jq .call
    """

    def is_meant(row: dict[str, Any]) -> bool:
        return user in (None, row["user"]) and (not refused or row["outcome"] in _REFUSALS)

    return run(_audit(server, since_ms, follow, is_meant, output))


async def _audit(
    server: str | None, since_ms: int, follow: bool, is_meant: Any, output: Format
) -> int:
    with stop_on_signals() as stop:
        async with connected(server) as client:
            since_unix_ms = max(0, int(time.time() * 1000) - since_ms)
            groups = client.broker_groups
            offsets = {
                group: await client.offset_by_time(_TOPIC, 0, since_unix_ms, broker_group=group)
                for group in groups
            }
            rows = list(filter(is_meant, await _look(client, offsets)))
            _show(rows, output, is_whole=not follow)
            if not (rows or follow):
                text = "no row is as asked; see --since, and for --user 'qlog user list'"
                print_text(text, err=True)
            while follow and not stop.requested.is_set():
                await until(stop.requested, asyncio.sleep(_INTERVAL_S))
                _show(filter(is_meant, await _look(client, offsets)), output, is_whole=False)
    return ExitCode.OK


async def _look(client: "Client", offsets: dict[str, int]) -> list[dict[str, Any]]:
    """Return the rows of all groups from these offsets on, in their order, and move the offsets."""
    rows: list[dict[str, Any]] = []
    for group, lo in list(offsets.items()):
        found, offsets[group] = await _read(client, group, lo)
        rows += found
    return sorted(rows, key=lambda row: row["unix_ms"])


async def _read(client: "Client", group: str, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of a group from an offset on, and where the next one will be."""
    rows: list[dict[str, Any]] = []
    while True:
        batch = await client.pull(_TOPIC, 0, offset, broker_group=group)
        if batch.next_offset <= offset:
            return rows, offset
        read = [_row_of(message.body) for message in batch]
        rows += [row for row in read if row is not None]
        if unread := read.count(None):
            click.echo(f"warning: {unread} rows cannot be read; they are left out", err=True)
        offset = batch.next_offset


def _row_of(body: bytes) -> dict[str, Any] | None:
    """Return a row; None: this is none."""
    try:
        row = read_json(body)
    except ValueError:
        return None
    if not isinstance(row, dict):
        return None
    numbers, texts = (row.get(key, 0) for key in _NUMBERS), (row.get(key) for key in _TEXTS)
    is_row = all(type(one) is int and 0 <= one <= _NUMBER_MAX for one in numbers)
    return row if is_row and all(isinstance(one, str) for one in texts) else None


def _show(entries: Iterable[dict[str, Any]], output: Format, *, is_whole: bool) -> None:
    rows: list[dict[str, Any]] = [{key: row.get(key) for key in _KEYS} for row in entries]
    if output is not Format.TABLE:
        print_rows(rows, output if is_whole else Format.JSONL, columns=_KEYS)
        return
    for row in rows:
        head = f"{time_text(row['unix_ms'])}  {shown(row['user'] or '-')}  "
        call = f"{row['call'].rpartition('/')[2]} {row['resource']}".rstrip()
        text = f"{shown(call)} from {shown(row['address'] or '-')}: {shown(row['outcome'])}"
        if (row["count"] or 1) > 1:
            text += f" ({row['count']} calls)"
        if row["left_out"]:
            text += f" ({row['left_out']} before it were left out)"
        print_text(text, head)
