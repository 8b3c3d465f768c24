"""`qlog delay`: the messages that are held until they are due, and cancelling one.

Owns the options and the printing; the work is the admin client's.
"""

import click

from qlog.connection import ask, server_option
from qlog.output import Format, output_option, print_record
from quorumlog.command_errors import ExitCode


@click.group()
def delay() -> None:
    """Show what is held until it is due, and cancel delayed messages."""


@delay.command()
@server_option
@output_option
def status(server: str | None, output: Format) -> int:
    """Show how many delayed messages are held, by level and broker group.

    Level 0 holds messages of any time. A message whose topic is gone when it is due is not lost:
    it is in rmq_sys_undeliverable, and counts there.

    \b
    Keys of -o json:
      held_count, groups, queues
      groups: group, held_count, held_count_max, delay_ms_max, next_due_unix_ms (0: nothing),
        now_unix_ms, undeliverable_count, is_loading
      queues: group, level, delay_ms, held_count, floor_offset, max_offset

    \b
    Examples:
      qlog delay status
      qlog delay status -o json | jq .held_count
      qlog consume rmq_sys_undeliverable --until end
    """

    found = ask(server, lambda client: client.admin.delay_status())
    groups = [
        {
            "group": one.group,
            "held_count": one.held_count,
            "held_count_max": one.held_count_max,
            "delay_ms_max": one.delay_ms_max,
            "next_due_unix_ms": one.next_due_unix_ms,
            "now_unix_ms": one.now_unix_ms,
            "undeliverable_count": one.undeliverable_count,
            "is_loading": one.is_loading,
        }
        for one in found
    ]
    queues = [
        {
            "group": one.group,
            "level": queue.level,
            "delay_ms": queue.delay_ms,
            "held_count": queue.held_count,
            "floor_offset": queue.floor_offset,
            "max_offset": queue.max_offset,
        }
        for one in found
        for queue in one.queues
    ]
    held_count = sum(one.held_count for one in found)
    print_record({"held_count": held_count, "groups": groups, "queues": queues}, output)
    return ExitCode.OK


@delay.command()
@click.argument("message_id", metavar="ID")
@click.option("--group", default="", help="Broker group that holds it; the first one by name.")
@server_option
@output_option
def cancel(message_id: str, group: str, server: str | None, output: Format) -> int:
    """Have a delayed message never delivered, by the id in its receipt.

    Certain once it is done; repeating it changes nothing. Ends with 3 when the message was
    delivered, or is just being delivered.

    \b
    Keys of -o json:
      topic, queue_id, due_unix_ms (where and when it would have been delivered)

    \b
    Examples:
      qlog delay cancel 7F00000100001F910000000000000ACC
    """

    found = ask(server, lambda client: client.cancel_delayed(message_id, group=group))
    row = {"topic": found.topic, "queue_id": found.queue_id, "due_unix_ms": found.due_unix_ms}
    print_record(row, output)
    return ExitCode.OK
