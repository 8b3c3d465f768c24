"""`qlog transaction`: open transactions of producers, and ending one by hand.

Owns the options and the printing; the work is the admin client's.
"""

from typing import TYPE_CHECKING

import click

from qlog.broker_groups import broker_group_option
from qlog.command_decorators import Printout, TableRows, cluster_command, confirmed
from qlog.message_rows import message_row, table_row, time_text
from qlog.output import Row, say_if_more

if TYPE_CHECKING:
    from quorumlog.client import Client
    from quorumlog.transactions.types import TransactionInfo

_COLUMNS = (
    "broker_group", "transaction_id", "producer_group", "begun", "message_count", "size_bytes",
    "check_count", "next_check", "is_orphaned",
)  # fmt: skip


@click.group()
def transaction() -> None:
    """List and end open transactions of producers."""


@transaction.command("list")
@click.option("--producer-group", default="", help="Only those of this group of producers.")
@click.option(
    "--max-count", type=click.IntRange(min=1), default=1_000, show_default=True, help="At most."
)
@cluster_command
async def list_transactions(client: "Client", producer_group: str, max_count: int) -> Printout:
    """List open transactions, the oldest first.

    is_orphaned: it is due, and no producer of its group is there to be asked. It is kept for a day,
    and asked about as soon as one comes.

    \b
    Keys of -o json:
      transaction_id, broker_group, producer_group, begun_unix_ms, message_count,
      size_bytes, check_count, next_check_unix_ms, is_orphaned

    \b
    Examples:
      qlog transaction list
      qlog transaction list --producer-group billing -o jsonl
    """
    transactions = await client.admin.list_transactions(
        producer_group=producer_group, max_count=max_count + 1
    )
    say_if_more(transactions, max_count)
    transactions = transactions[:max_count]
    return Printout(
        transactions, table=[TableRows.of(_COLUMNS, [_line(info) for info in transactions])]
    )


@transaction.command()
@click.argument("transaction_id", metavar="ID", type=int)
@broker_group_option
@cluster_command
async def show(client: "Client", transaction_id: int, group: str) -> Printout:
    """Show a transaction and its messages, or how it ended.

    \b
    Keys of -o json:
      transaction_id, broker_group, outcome (open, committed, rolled back, given
      up, expired), producer_group, begun_unix_ms, check_count,
      next_check_unix_ms, is_orphaned, messages

    \b
    Examples:
      qlog transaction show 1044
      qlog transaction show 1044 -o json | jq -r '.messages[].body'
    """
    described = await client.admin.describe_transaction(transaction_id, broker_group=group)
    names = "producer_group", "begun_unix_ms", "check_count", "next_check_unix_ms", "is_orphaned"
    row: dict[str, object] = {
        "transaction_id": described.transaction_id,
        "broker_group": described.broker_group,
        "outcome": described.outcome,
        **{name: getattr(described.info, name, None) for name in names},
        "messages": [message_row(message) for message in described.messages],
    }
    lines = [table_row(message) for message in described.messages]
    return Printout(row, table=[{**row, "messages": lines}])


@transaction.command()
@click.argument("transaction_id", metavar="ID", type=int)
@confirmed("Commit transaction {transaction_id}?")
@broker_group_option
@cluster_command
async def commit(client: "Client", transaction_id: int, group: str) -> Row:
    """Make the messages of an open transaction visible.

    \b
    Keys of -o json:
      transaction_id, outcome, was_ended (it was committed before)

    \b
    Examples:
      qlog transaction commit 1044
      qlog transaction commit 1044 --yes
    """
    was_ended = await client.admin.end_transaction(transaction_id, "commit", broker_group=group)
    return {"transaction_id": transaction_id, "outcome": "committed", "was_ended": was_ended}


@transaction.command()
@click.argument("transaction_id", metavar="ID", type=int)
@confirmed("Roll back transaction {transaction_id}?")
@broker_group_option
@cluster_command
async def rollback(client: "Client", transaction_id: int, group: str) -> Row:
    """Forget the messages of an open transaction.

    \b
    Keys of -o json:
      transaction_id, outcome, was_ended (it was rolled back before)

    \b
    Examples:
      qlog transaction rollback 1044
      qlog transaction rollback 1044 --yes
    """
    was_ended = await client.admin.end_transaction(transaction_id, "rollback", broker_group=group)
    return {"transaction_id": transaction_id, "outcome": "rolled back", "was_ended": was_ended}


def _line(info: "TransactionInfo") -> dict[str, object]:
    row = info.to_dict()
    row["begun"] = time_text(row.pop("begun_unix_ms"))
    row["next_check"] = time_text(row.pop("next_check_unix_ms"))
    return row
