"""`qlog delay`: the messages that are held until they are due, and cancelling one.

Owns the options and the printing; the work is the admin client's.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from qlog.broker_groups import broker_group_option
from qlog.command_decorators import cluster_command
from qlog.output import Row

if TYPE_CHECKING:
    from quorumlog.admin.messages import CancelledDelay
    from quorumlog.client import Client


@click.group()
def delay() -> None:
    """Show what is held until it is due, and cancel delayed messages."""


@delay.command()
@cluster_command
async def status(client: "Client") -> Row:
    """Show how many delayed messages are held, by level and broker group.

    A level is one of RocketMQ's 18 delays, from 1 s to 2 h; level 0 holds messages of any other.
    All below floor_offset are delivered or cancelled. A message whose topic is gone when it is due
    is not lost: it is in rmq_sys_undeliverable, and counts there.

    \b
    Keys of -o json:
      held_count, broker_groups, queues
      broker_groups: broker_group, held_count, held_count_max, delay_ms_max,
        next_due_unix_ms (0: nothing), now_unix_ms, undeliverable_count,
        is_loading
      queues: broker_group, level, delay_ms, held_count, floor_offset, end_offset

    \b
    Examples:
      qlog delay status
      qlog delay status -o json | jq .held_count
      qlog consume rmq_sys_undeliverable --until end
    """
    described = await client.admin.delay_status()
    return {
        "held_count": sum(status.held_count for status in described),
        "broker_groups": described,
        "queues": [
            {"broker_group": status.broker_group, **asdict(queue)}
            for status in described
            for queue in status.queues
        ],
    }


@delay.command()
@click.argument("message_id", metavar="ID")
@broker_group_option
@cluster_command
async def cancel(client: "Client", message_id: str, group: str) -> "CancelledDelay":
    """Have a delayed message never delivered, by the id in its receipt.

    Certain once it is done; repeating it changes nothing. Ends with 5 when the message was
    delivered, or is just being delivered.

    \b
    Keys of -o json:
      topic, queue_id, due_unix_ms (where and when it would have been delivered)

    \b
    Examples:
      qlog delay cancel 7F00000100001F910000000000000ACC
    """
    return await client.cancel_delayed(message_id, broker_group=group)
