"""Broker groups in commands: `--queue [GROUP/]NUMBER`, `--broker-group`, columns.

Owns these forms. `group` is a consumer group everywhere, so options, keys and columns call a broker
group by its full name. Where there is one broker group, tables leave it out.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import click

from qlog.parsed import Parsed
from quorumlog.foreign_text import shown


class QueueName(NamedTuple):
    """A queue of a topic; without a group it is of the first one by name."""

    group: str
    queue_id: int


def parse_queue(text: str) -> QueueName:
    """Return the queue of [GROUP/]NUMBER. Raises ValueError."""
    match = re.fullmatch(r"(?:([A-Za-z0-9][A-Za-z0-9._-]*)/)?([0-9]{1,9})", text)
    if match is None:
        raise ValueError(f"{text!r} is no queue; use a number, or GROUP/NUMBER")
    return QueueName(match[1] or "", int(match[2]))


QUEUE: Final = Parsed("queue", parse_queue)
"""The type of an option."""


broker_group_option = click.option(
    "--broker-group",
    "group",
    default="",
    metavar="NAME",
    help="In a cluster of several broker groups: this one.  [default: the first by name]",
)
"""Decorates a command with `--broker-group`; it arrives as `group`, empty for the first."""


def warn_away(away: Sequence[str]) -> None:
    """Print to stderr which broker groups did not answer, so that a part does not pass for all."""
    for name in away:
        click.echo(f"warning: broker group {shown(name)} does not answer; it is left out", err=True)


def shown_columns(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """Return the columns of a table: `broker_group` only if there are several."""
    is_plural = len({row.get("broker_group") for row in rows}) > 1
    return tuple(column for column in columns if is_plural or column != "broker_group")


def shown_rows(rows: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return the rows of a table: `broker_group` only if there are several."""
    columns = shown_columns(tuple(rows[0]) if rows else (), rows)
    return [{column: row[column] for column in columns} for row in rows]
