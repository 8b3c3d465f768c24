"""`qlog dlq`: dead letters of a consumer group, seen and sent again.

Owns the options and the printing; the work is the admin client's.
"""

from typing import TYPE_CHECKING

import click

from qlog import names
from qlog.broker_groups import broker_group_option
from qlog.command_decorators import Printout, cluster_command, printed
from qlog.connection import ask, server_option
from qlog.message_rows import body_text, message_row, plain_body, time_text
from qlog.output import Row, say_if_more
from qlog.progress import progress_bars
from quorumlog.command_errors import CliError, ExitCode

if TYPE_CHECKING:
    from quorumlog.admin.groups import DeadLetter, Resent
    from quorumlog.client import Client

_AT_ONCE = 256


@click.group()
def dlq() -> None:
    """Show the dead letters of a consumer group, and send them again.

    A dead letter is a message that the group did not acknowledge in any of its deliveries: 'qlog
    group settings' shows how many it gets.
    """


@dlq.command("list")
@click.argument("name", metavar="GROUP", shell_complete=names.groups)
@click.option(
    "--from", "offset", type=click.IntRange(min=0), default=0, help="From this offset on."
)
@click.option(
    "--max-count",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Maximum number of messages.",
)
@broker_group_option
@cluster_command
async def list_dead(
    client: "Client", name: str, offset: int, max_count: int, group: str
) -> Printout:
    """List messages that a group was given too often.

    \b
    Keys of -o json:
      offset, origin_topic, reconsume_times, store_time, is_resent, key, body

    \b
    Examples:
      qlog dlq list billing
      qlog dlq list billing --from 100 -o jsonl

    Ends with 0 when there is one, and with 1 when there is none.
    """
    letters = await client.admin.dead_letters(
        name, offset=offset, max_count=max_count + 1, broker_group=group
    )
    say_if_more(letters, max_count)
    rows = [_row(letter) for letter in letters[:max_count]]
    return Printout(rows, exit_code=ExitCode.OK if letters else ExitCode.FINDINGS)


def _row(letter: "DeadLetter") -> dict[str, object]:
    message = letter.message
    return {
        "offset": letter.offset,
        "origin_topic": message.origin_topic,
        "reconsume_times": message.reconsume_times,
        "store_time": time_text(message.store_unix_ms),
        "is_resent": letter.is_resent,
        "key": message.key,
        "body": body_text(plain_body(message)[0])[0],
    }


@dlq.command()
@click.argument("name", metavar="GROUP", shell_complete=names.groups)
@click.argument("offset", metavar="OFFSET", type=click.IntRange(min=0))
@broker_group_option
@cluster_command
async def show(client: "Client", name: str, offset: int, group: str) -> Row:
    """Show one dead letter. property ORIGIN_MESSAGE_ID is the id of the first message.

    \b
    Keys of -o json:
      topic, queue_id, queue_offset, message_id, key, tag, properties,
      born_unix_ms, store_unix_ms, log_position, body_size_bytes, body_encoding
      (utf-8 or base64, then ", compressed" for a body that cannot be unpacked),
      body, broker_group, origin_topic, reconsume_times, is_resent

    \b
    Examples:
      qlog dlq show billing 17
      qlog dlq show billing 17 -o json | jq -r .body
    """
    letters = await client.admin.dead_letters(name, offset=offset, max_count=1, broker_group=group)
    if not letters or letters[0].offset != offset:
        raise CliError(
            f"group {name} has no dead letter {offset}",
            "it has expired, or there never was one",
            f"see 'qlog dlq list {name}'",
            ExitCode.NOT_FOUND,
        )
    message = letters[0].message
    return {
        **message_row(message),
        "origin_topic": message.origin_topic,
        "reconsume_times": message.reconsume_times,
        "is_resent": letters[0].is_resent,
    }


@dlq.command()
@click.argument("name", metavar="GROUP", shell_complete=names.groups)
@click.option(
    "--offset", "offsets", type=click.IntRange(min=0), multiple=True, help="This dead letter."
)
@click.option("--all", "is_all", is_flag=True, help="All that were not sent again.")
@broker_group_option
@server_option
@printed
def resend(
    name: str, offsets: tuple[int, ...], is_all: bool, group: str, server: str | None
) -> Printout:
    """Send dead letters again, to the topics they came from, each at most once.

    A dead letter stays where it is, marked as sent: doing it again sends nothing twice. One that
    cannot be sent, for example because its topic is gone, is named and holds no other back.

    \b
    Keys of -o json:
      resent_count, already_resent_count, kept
      kept: offset, code, reason

    \b
    Examples:
      qlog dlq resend billing --offset 17 --offset 18
      qlog dlq resend billing --all
      qlog dlq resend billing --all -o json | jq .kept

    Ends with 0 when all were sent, now or before, and with 1 when some stayed.
    """
    if bool(offsets) == is_all:
        raise click.UsageError("name dead letters with --offset, or --all of them")

    async def call(client: "Client") -> "list[Resent]":
        done: list[Resent] = []
        wanted = list(offsets) or await _left(client, name, group)
        with progress_bars() as show:
            for lo in range(0, len(wanted), _AT_ONCE):
                piece = wanted[lo : lo + _AT_ONCE]
                done.append(await client.admin.resend_dead_letters(name, piece, broker_group=group))
                show("looked at", lo + len(piece), len(wanted))
        return done

    done = ask(server, call)
    kept = [letter for one in done for letter in one.kept]
    row = {
        "resent_count": sum(len(one.resent) for one in done),
        "already_resent_count": sum(len(one.already_resent) for one in done),
        "kept": kept,
    }
    return Printout(row, exit_code=ExitCode.FINDINGS if kept else ExitCode.OK)


async def _left(client: "Client", name: str, group: str) -> list[int]:
    """Return the offsets of the dead letters that were not sent again."""
    left: list[int] = []
    offset = 0
    while True:
        letters = await client.admin.dead_letters(
            name, offset=offset, max_count=_AT_ONCE, broker_group=group
        )
        if not letters:
            return left
        left += [one.offset for one in letters if not one.is_resent]
        offset = letters[-1].offset + 1
