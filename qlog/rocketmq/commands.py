"""`qlog rocketmq`: move from a cluster of Apache RocketMQ.

Owns the options and the printing; the work is that of the modules beside it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qlog.command_decorators import Printout, TableRows, cluster_command
from qlog.connection import context_of
from qlog.output import counted
from quorumlog.cluster.routes import is_address
from quorumlog.command_errors import CliError, ExitCode

if TYPE_CHECKING:
    from quorumlog.client import Client

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_TOPIC = ("topic", "queue_count", "message_count", "size_bytes", "duration_s", "gap_count")
_GROUP = ("group", "is_new", "offset_count", "stored_count")


@click.group()
def rocketmq() -> None:
    """Move topics, messages and groups from a cluster of Apache RocketMQ."""


@rocketmq.command("import")
@click.argument("name_server", metavar="NAMESERVER")
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be given repeatedly.")
@click.option("--group", "groups", multiple=True, help="Only this group; may be given repeatedly.")
@click.option(
    "--source-keys",
    type=_FILE,
    metavar="FILE",
    help="Access key of the source and its secret, in one line.",
)
@click.option(
    "--source-ca",
    type=_FILE,
    metavar="FILE",
    help="Certificate of the source's CA (PEM): connect with TLS.",
)
@cluster_command
async def import_cluster(
    client: "Client",
    name_server: str,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    source_keys: Path | None,
    source_ca: Path | None,
) -> Printout:
    """Copy topics, messages, consumer groups and their offsets from a live cluster.

    NAMESERVER is HOST:PORT of a name server of RocketMQ, several with semicolons between. The
    source is only read. Each message is stored once, however often the command is stopped and run
    again: it goes on where each queue of the source was. It follows the source until a pass
    finds nothing new, and then stores the offsets; a group is never moved back. Topics of RocketMQ
    itself (retries, dead letters, delayed and half messages among them) are named and left behind.
    Without --source-keys or --source-ca the file of the context counts, if it names the cluster.
    docs/rocketmq.md has the steps of a move.

    \b
    Keys of -o json:
      topics, groups, skipped, refused
      topics: topic, queue_count, message_count, size_bytes (of bodies),
        duration_s, gap_count
      groups: group, is_new, offset_count, stored_count
      skipped: topic, message_count
      refused: name, what, why, do

    \b
    Examples:
      qlog rocketmq import 10.0.0.1:9876
      qlog rocketmq import "10.0.0.1:9876;10.0.0.2:9876" --group billing
      qlog rocketmq import 10.0.0.1:9876 --source-keys keys.txt --source-ca ca.pem
      qlog rocketmq import 10.0.0.1:9876 -o json | jq .refused

    Ends with 0, or with 1 when a topic, a group or a message was refused; the others were copied.
    """
    from qlog.progress import progress_bars
    from qlog.rocketmq.groups import copy_groups
    from qlog.rocketmq.source import RocketSource, access_of
    from qlog.rocketmq.topics import copy_topics

    addresses = [one.strip() for one in name_server.split(";") if one.strip()]
    if not addresses or not all(map(is_address, addresses)):
        raise CliError(
            f"{name_server!r} is no address of a name server",
            "it is HOST:PORT, several with semicolons between",
            "for example qlog rocketmq import 10.0.0.1:9876",
            ExitCode.USAGE,
        )
    saved = context_of(click.get_current_context().params["server"])
    if saved is not None:
        source_keys = source_keys or (Path(saved.source_keys) if saved.source_keys else None)
        source_ca = source_ca or (Path(saved.source_ca) if saved.source_ca else None)
    source = RocketSource(addresses, access_of(source_keys, source_ca))
    try:
        with progress_bars() as show:
            copies = await copy_topics(source, client, frozenset(topics), show)
        done = await copy_groups(source, client, frozenset(groups), copies, only_of=bool(topics))
    finally:
        source.close()
    lines = [f"left behind: {one.topic}, {_count(one.message_count)}" for one in copies.skipped]
    for one in copies.refused:
        lines += [f"refused: {one.what}", f"  why: {one.why}", f"  do:  {one.do}"]
    return Printout(
        {
            "topics": copies.topics,
            "groups": done,
            "skipped": copies.skipped,
            "refused": copies.refused,
        },
        table=[_rows(_TOPIC, copies.topics), _rows(_GROUP, done)],
        lines=lines,
        exit_code=ExitCode.FINDINGS if copies.refused else ExitCode.OK,
    )


def _rows(columns: Sequence[str], copies: Sequence[object]) -> TableRows:
    return TableRows(columns, [{name: getattr(one, name) for name in columns} for one in copies])


def _count(message_count: int | None) -> str:
    return (
        "RocketMQ's own" if message_count is None else f"{counted(message_count, 'message')} in it"
    )
