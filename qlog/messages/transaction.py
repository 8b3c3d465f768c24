"""`qlog transaction`: open transactions of producers, and ending one by hand.

Owns the options and the printing; the work is the admin client's.
"""

from typing import TYPE_CHECKING

import click

from qlog.broker_groups import broker_group_option, shown_rows
from qlog.connection import ask, confirm, server_option
from qlog.message_rows import message_row, table_row, time_text
from qlog.output import (
    Format,
    output_option,
    print_record,
    print_rows,
    say_if_more,
)
from quorumlog.command_errors import ExitCode

if TYPE_CHECKING:
    from quorumlog.transactions.types import TransactionInfo

_COLUMNS = (
    "group",
    "transaction_id",
    "producer_group",
    "begun",
    "message_count",
    "size_bytes",
    "check_count",
    "next_check",
    "is_orphaned",
)


@click.group()
def transaction() -> None:
    """List and end open transactions of producers."""


@transaction.command("list")
@click.option("--producer-group", default="", help="Only those of this group of producers.")
@click.option(
    "--max-count", type=click.IntRange(min=1), default=1_000, show_default=True, help="At most."
)
@server_option
@output_option
def list_transactions(
    producer_group: str, max_count: int, server: str | None, output: Format
) -> int:
    """List open transactions, the oldest first.

    is_orphaned: it is due, and no producer of its group is there to be asked. It is kept for a day,
    and asked about as soon as one comes.

    \b
    Keys of -o json:
      transaction_id, group (the broker group), producer_group, begun_unix_ms, message_count,
      size_bytes, check_count, next_check_unix_ms, is_orphaned

    \b
    Examples:
      qlog transaction list
      qlog transaction list --producer-group billing -o jsonl
    """

    found = ask(
        server,
        lambda client: client.admin.list_transactions(
            producer_group=producer_group, max_count=max_count + 1
        ),
    )
    say_if_more(found, max_count)
    found = found[:max_count]
    if output is Format.TABLE:
        lines = shown_rows([_line(info) for info in found])
        print_rows(lines, output, columns=tuple(lines[0]) if lines else _COLUMNS[1:])
    else:
        rows = [info.to_dict() for info in found]
        print_rows(rows, output, columns=tuple(rows[0]) if rows else ())
    return ExitCode.OK


@transaction.command()
@click.argument("transaction_id", metavar="ID", type=int)
@broker_group_option
@server_option
@output_option
def show(transaction_id: int, group: str, server: str | None, output: Format) -> int:
    """Show a transaction and its messages, or how it ended.

    \b
    Keys of -o json:
      transaction_id, group, outcome (open, committed, rolled back, given up, expired),
      producer_group, begun_unix_ms, check_count, next_check_unix_ms, is_orphaned, messages

    \b
    Examples:
      qlog transaction show 1044
      qlog transaction show 1044 -o json | jq -r '.messages[].body'
    """

    found = ask(
        server, lambda client: client.admin.describe_transaction(transaction_id, group=group)
    )
    info = found.info
    to_row = table_row if output is Format.TABLE else message_row
    row: dict[str, object] = {
        "transaction_id": found.transaction_id,
        "group": found.group,
        "outcome": found.outcome,
        "producer_group": info.producer_group if info else None,
        "begun_unix_ms": info.begun_unix_ms if info else None,
        "check_count": info.check_count if info else None,
        "next_check_unix_ms": info.next_check_unix_ms if info else None,
        "is_orphaned": info.is_orphaned if info else None,
        "messages": [to_row(message) for message in found.messages],
    }
    print_record(row, output)
    return ExitCode.OK


@transaction.command()
@click.argument("transaction_id", metavar="ID", type=int)
@click.option("--yes", is_flag=True, help="Do not ask.")
@broker_group_option
@server_option
@output_option
def commit(transaction_id: int, yes: bool, group: str, server: str | None, output: Format) -> int:
    """Make the messages of an open transaction visible.

    \b
    Keys of -o json:
      transaction_id, outcome, was_ended (it was committed before)

    \b
    Examples:
      qlog transaction commit 1044
      qlog transaction commit 1044 --yes
    """
    confirm(f"Commit transaction {transaction_id}?", is_confirmed=yes)
    return _end(transaction_id, "commit", "committed", group, server, output)


@transaction.command()
@click.argument("transaction_id", metavar="ID", type=int)
@click.option("--yes", is_flag=True, help="Do not ask.")
@broker_group_option
@server_option
@output_option
def rollback(transaction_id: int, yes: bool, group: str, server: str | None, output: Format) -> int:
    """Forget the messages of an open transaction.

    \b
    Keys of -o json:
      transaction_id, outcome, was_ended (it was rolled back before)

    \b
    Examples:
      qlog transaction rollback 1044
      qlog transaction rollback 1044 --yes
    """
    confirm(f"Roll back transaction {transaction_id}?", is_confirmed=yes)
    return _end(transaction_id, "rollback", "rolled back", group, server, output)


def _end(
    transaction_id: int, decision: str, outcome: str, group: str, server: str | None, output: Format
) -> int:
    was_ended = ask(
        server, lambda client: client.admin.end_transaction(transaction_id, decision, group=group)
    )
    print_record(
        {"transaction_id": transaction_id, "outcome": outcome, "was_ended": was_ended}, output
    )
    return ExitCode.OK


def _line(info: "TransactionInfo") -> dict[str, object]:
    return {
        "group": info.group,
        "transaction_id": info.transaction_id,
        "producer_group": info.producer_group,
        "begun": time_text(info.begun_unix_ms),
        "message_count": info.message_count,
        "size_bytes": info.size_bytes,
        "check_count": info.check_count,
        "next_check": time_text(info.next_check_unix_ms),
        "is_orphaned": info.is_orphaned,
    }
