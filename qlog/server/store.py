"""`qlog store`: inspect a store directory, check it, look at its bytes, repair it, restore it and
reset its admin, without a server.

Owns the options and the printing; checks and repairs live in `store.fsck.check` and its parts, a
restore and a reset in `node.offline`, which are imported when a command runs.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qlog.output import Format, counted, output_option, print_record, print_rows, print_text
from qlog.progress import progress_bars
from quorumlog.command_errors import ExitCode
from quorumlog.standard_output import styled

if TYPE_CHECKING:
    from store.fsck.layout import GivenSettings
    from store.fsck.types import Finding
    from store.ledger.mending.damage import DamagedRange

_Command = TypeVar("_Command", bound=Callable[..., Any])
_FINDINGS_SHOWN = 1_000
_FINDING_COLUMNS = ("severity", "part", "file", "at", "field", "expected", "found", "log_position")
_SIZES = (
    ("--file-size", "file_size_bytes", "BYTES", "Size of a log file."),
    ("--queue-units", "consume_queue_units_per_file", None, "Units in a consume queue file."),
    ("--index-slots", "index_slot_count", None, "Hash slots in a key index file."),
    ("--index-entries", "index_entry_count", None, "Entries in a key index file."),
    ("--ledger-units", "ledger_index_units_per_file", None, "Units in a file of a ledger's index."),
)
_ACTION_COLUMNS = ("action", "file", "log_position", "why", "loses")


@click.group()
def store() -> None:
    """Look into a store directory, offline.

    A store is a log and what can be built from it: a consume queue says where the messages of a
    queue are, the key index where those with a key are. The log of a node in raft mode is a ledger.
    """


def _layout_options(command: _Command) -> _Command:
    """Add the options of the layout of a directory, for values that the files do not contain."""
    for option in reversed(
        [
            click.option(
                "--container",
                type=click.Choice(["commit_log", "ledger"]),
                help="Which log to read, when both are there.",
            ),
            click.option(
                "--self-id", metavar="ID", help="Read the ledger in the directory dledger-ID."
            ),
            *(
                click.option(flag, name, type=int, metavar=metavar, help=text)
                for flag, name, metavar, text in _SIZES
            ),
            click.option(
                "--property-crc/--no-property-crc",
                default=None,
                help="Whether each record of a plain log must carry a CRC over all of it.",
            ),
        ]
    ):
        command = option(command)
    return command


def _given(options: dict[str, Any]) -> "GivenSettings":
    from store.fsck.layout import GivenSettings

    return GivenSettings(**options)


@store.command()
@click.argument("path", metavar="DIR|FILE")
@_layout_options
@output_option
def inspect(path: str, output: Format, **options: Any) -> int:
    """Say what is in a store directory: files, log positions, queues, index, marks.

    Reads little and changes nothing. Works beside a running server, too, and names it (held_by).
    Sizes that no file proves are RocketMQ's defaults; "settings" says where each came from.

    With a file of the directory "cut": the records that a replica of a master-slave group had and
    the group lost.

    \b
    Examples:
      qlog store inspect data
      qlog store inspect data -o json | jq .queues
      qlog store inspect data --container ledger --self-id n0
      qlog store inspect data/cut/3-*.cut -o json | jq .records
    """
    from node.offline.owner_files import NODE_FILES
    from store.fsck.inspect import inspect as inspect_directory
    from store.fsck.inspect_cut import inspect_cut

    if os.path.isfile(path):
        print_record(inspect_cut(path), output)
    else:
        with progress_bars() as progress:
            row = inspect_directory(path, progress, given=_given(options), owner=NODE_FILES)
        print_record(row, output)
    return ExitCode.OK


@store.command()
@click.argument("directory", metavar="DIR")
@_layout_options
@output_option
def verify(directory: str, output: Format, **options: Any) -> int:
    """Check every byte of a store directory, read-only.

    The log by its checksums, consume queues and key index against the log in both directions, and
    marks, checkpoint, boot id, and what a node keeps beside them: vote, state, epochs, name server.
    Names file, byte, field, expected and found for all that is wrong.

    \b
    Severities:
      damage      of what was known to be good: lost unless a replica has it
      torn_tail   above the durable mark: normal after a crash, opening cuts it
      derived     can be rebuilt from the log
      repairable  the right bytes are known
      left_over   of an unfinished step; opening removes it
      unknown     a file that no store makes

    \b
    Examples:
      qlog store verify data
      qlog store verify data -o json | jq .findings
      qlog store verify data --file-size 1073741824

    "notices" says what is whole and cannot be read here: topics with inner batches of RocketMQ.
    No repair ever cuts them.

    Ends with 0 when nothing is wrong, 1 when something is, 3 when it could not be done.
    """
    from node.offline.owner_files import NODE_FILES
    from store.fsck.check import Check

    check = Check(directory, _given(options), NODE_FILES)
    findings: list[Finding] = []
    counts: dict[str, int] = {}
    with progress_bars() as progress:
        for finding in check.run(progress):
            counts[finding.severity.value] = counts.get(finding.severity.value, 0) + 1
            if len(findings) < _FINDINGS_SHOWN:
                findings.append(finding)
    total = sum(counts.values())
    ranges = check.damaged_ranges() if counts.keys() & {"damage", "repairable"} else []
    verdict = _verdict(counts, ranges)
    for notice in check.notices:
        verdict += f"; {notice}"
    summary = {
        "directory": directory,
        "container": check.config.container,
        "verdict": verdict,
        "clean": not total,
        "record_count": check.container.record_count,
        "first_log_position": check.data.position,
        "end_log_position": check.walk.end_position if check.walk else None,
        "finding_count": total,
        "severities": counts,
        "damaged_entries": [
            {
                "lo_index": damaged.lo_index,
                "hi_index": damaged.hi_index,
                "first_log_position": damaged.position,
                "end_log_position": damaged.end_position,
                "reason": damaged.reason,
            }
            for damaged in ranges
        ],
        "notices": [str(notice) for notice in check.notices],
    }
    rows: list[dict[str, object]] = [
        {
            "severity": finding.severity.value,
            "part": finding.part.value,
            "file": finding.path,
            "at": finding.at,
            "field": finding.field,
            "expected": finding.expected,
            "found": finding.actual,
            "log_position": finding.position if finding.position >= 0 else None,
        }
        for finding in findings
    ]
    _print(summary, "findings", rows, _FINDING_COLUMNS, output)
    if total > len(findings):
        click.echo(f"{counted(total - len(findings), 'finding')} not shown", err=True)
    return ExitCode.FINDINGS if total else ExitCode.OK


@store.command()
@click.argument("directory", metavar="DIR")
@click.option("--index", type=click.IntRange(min=0), metavar="N", help="The entry of a ledger.")
@click.option(
    "--position",
    type=click.IntRange(min=0),
    metavar="P",
    help="The record, or the entry, at a log position.",
)
@click.option("--queue", metavar="TOPIC:QUEUE:OFFSET", help="A unit of a consume queue.")
@click.option(
    "--key-slot",
    type=click.IntRange(min=0),
    metavar="N",
    help="A slot of the newest file of the key index.",
)
@_layout_options
@output_option
def microscope(
    directory: str,
    index: int | None,
    position: int | None,
    queue: str | None,
    key_slot: int | None,
    output: Format,
    **options: Any,
) -> int:
    """Show the bytes of one thing in a store directory, field by field, each checked.

    With it: what it is compared with, as the header before an entry and the unit that points at it.
    A verdict is right (by a check of the field, or a checksum that covers it), WRONG, or - where
    nothing says what the field must be. The server must be stopped.

    \b
    Keys of -o json:
      directory, wrong_count, things (kind, file, at, position, number, topic,
      queue_id, size_bytes, wrong_count, rows (at, size_bytes, name, value,
      verdict, expected, hex))

    \b
    Examples:
      qlog store microscope data --index 41
      qlog store microscope data --position 8192
      qlog store microscope data --queue orders:0:17
      qlog store microscope data --key-slot 42 -o json | jq '.things[0].rows'

    Ends with 0 when nothing is wrong, 1 when something is, 3 when it could not be done.
    """
    from qlog.server.microscope import json_of, text_lines
    from store.fsck.files import refuse_if_locked
    from store.microscope.directory import LogDirectory
    from store.microscope.look import look

    if sum(value is not None for value in (index, position, queue, key_slot)) != 1:
        raise click.UsageError("name one of --index, --position, --queue and --key-slot")
    place = _queue_place(queue) if queue is not None else None
    refuse_if_locked(directory)
    with LogDirectory.of(directory, _given(options)) as there:
        if index is not None:
            specimens = there.entry(index)
        elif position is not None:
            specimens = there.record(position)
        elif place is not None:
            specimens = there.queue_unit(*place)
        else:
            specimens = there.key_slot(key_slot or 0)
    tables = look(specimens)
    wrong_count = sum(table.wrong_count for table in tables)
    if output is Format.TABLE:
        has_colours = False if os.environ.get("NO_COLOR") else None  # None: on a terminal.
        for line in text_lines(tables):
            click.echo(line, file=styled(sys.stdout), color=has_colours)
    else:
        record = {"directory": directory, "wrong_count": wrong_count, "things": json_of(tables)}
        print_record(record, output)
    return ExitCode.FINDINGS if wrong_count else ExitCode.OK


def _queue_place(text: str) -> tuple[str, int, int]:
    """Return topic, queue id and offset of TOPIC:QUEUE:OFFSET. Raises BadParameter."""
    topic, *numbers = text.split(":")
    if not topic or len(numbers) != 2 or not all(n.isascii() and n.isdecimal() for n in numbers):
        raise click.BadParameter(f"{text!r} is not TOPIC:QUEUE:OFFSET", param_hint="'--queue'")
    return topic, int(numbers[0]), int(numbers[1])


@store.command()
@click.argument("directory", metavar="DIR")
@click.option("--apply", "is_applied", is_flag=True, help="Carry the plan out.")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Allow the plan to cut data that was durable. Check the other replicas first.",
)
@_layout_options
@output_option
def repair(
    directory: str, is_applied: bool, accept_loss: bool, output: Format, **options: Any
) -> int:
    """Show a repair plan, and carry it out if told to.

    Checks the directory first. Without --apply nothing is changed. A plan that loses acknowledged
    data says exactly what, and needs --accept-loss. A replica that lost data must rejoin its
    cluster as a fresh learner. Damaged bytes are kept in DIR/damaged. May be run again at any time.

    \b
    Examples:
      qlog store repair data
      qlog store repair data --apply
      qlog store repair data --apply --accept-loss -o json

    Ends with 0 when nothing is, or is left, to do, and with 1 when something is.
    """
    from node.offline.owner_files import NODE_FILES
    from store.fsck.check import verify as verify_directory
    from store.fsck.plan import loses, plan
    from store.fsck.repair import apply

    given = _given(options)
    with progress_bars() as progress:
        findings = list(verify_directory(directory, progress, given=given, owner=NODE_FILES))
        actions = plan(directory, findings, given=given)
        left = len(findings)
        if is_applied and actions:
            apply(directory, actions, accept_loss=accept_loss, progress=progress)
            left = sum(
                1 for _ in verify_directory(directory, progress, given=given, owner=NODE_FILES)
            )
    loss = loses(actions)
    lost: dict[str, object] | None = None
    if loss is not None:
        lost = {
            "first_log_position": loss.lo_position,
            "end_log_position": loss.hi_position,
            "lo_index": loss.lo_index if loss.lo_index >= 0 else None,
            "hi_index": loss.hi_index if loss.hi_index >= 0 else None,
            "record_count": loss.record_count,
            "queues": [queue._asdict() for queue in loss.queues],
        }
    if not findings:
        verdict = "nothing is wrong, nothing to do"
    elif not actions:
        verdict = f"{counted(len(findings), 'finding')}, and nothing that a repair could do"
    elif not is_applied:
        verdict = (
            f"{counted(len(actions), 'step')} planned, nothing was changed; run it with --apply"
        )
        if loss is not None:
            verdict += " --accept-loss, or refetch from a replica"
    elif left:
        verdict = f"applied; {counted(left, 'finding')} left"
    else:
        verdict = "applied; no finding is left"
    summary = {
        "directory": directory,
        "verdict": verdict,
        "finding_count": len(findings),
        "applied": is_applied and bool(actions),
        "left_count": left,
        "loses": lost,
    }
    if output is Format.TABLE and lost is not None:  # Printed as lines and a table of its own.
        queues = lost.pop("queues")
        summary |= {f"lost_{key}": value for key, value in lost.items()}
        summary |= {"loses": True, "lost_queues": queues}
    rows: list[dict[str, object]] = [
        {
            "action": action.kind.value,
            "file": action.path,
            "log_position": action.position if action.position >= 0 else None,
            "why": action.why,
            "loses": action.loss is not None,
        }
        for action in actions
    ]
    _print(summary, "actions", rows, _ACTION_COLUMNS, output)
    return ExitCode.FINDINGS if left else ExitCode.OK


@store.command()
@click.argument("backup", metavar="BACKUP")
@click.option("--config", "file", metavar="FILE", help="Settings of the new node, in TOML.")
@output_option
def restore(backup: str, file: str | None, output: Format) -> int:
    """Begin a new cluster with the backup of a node of another one.

    BACKUP is the directory of any node in raft mode: a copy that was made while it was stopped, or
    a file system snapshot. Its bytes are copied and checked, and left alone. The settings, of FILE
    and the environment, are those that the new node will be served with: its directory, which is
    made, and a cluster_id of its own. The node leads alone then; the others join it with empty
    disks. docs/operations.md has the steps.

    \b
    Examples:
      qlog store restore /backup/node-2 --config node1.toml
      qlog store restore /backup/node-2 --config node1.toml -o json

    Ends with 2 for wrong settings, and with 3 when it could not be done; nothing is left then.
    """
    from node.config.load import ConfigError, load
    from node.offline.restore import restore as restore_directory
    from qlog.server.settings import as_cli_error

    try:
        settings = load(file, {}).settings
    except ConfigError as error:
        raise as_cli_error(error) from error
    with progress_bars() as progress:
        restored = restore_directory(Path(backup), settings, progress)
    print_record(restored._asdict(), output)
    if output is Format.TABLE:
        click.echo()
        print_text(
            f"{restored.directory} is node {restored.node_id}, alone, of the new cluster "
            f"{restored.cluster_id}: start it, then add the others with empty disks"
        )
    return ExitCode.OK


@store.command("reset-admin")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True)
@click.option(
    "--users-file",
    "users_file",
    metavar="FILE",
    required=True,
    help="The new admin, as 'qlog user init FILE' writes it.",
)
@output_option
def reset_admin(directories: tuple[str, ...], users_file: str, output: Format) -> int:
    """Give a cluster an admin again, when no token of one is left.

    DIR are the directories of stopped nodes; a majority of the voters, or of the replicas of a
    master-slave group, has to have the file. For nodes on other machines, copy FILE there and run
    the command there, too. After the next start with users = prepare or on the leader makes the
    user of FILE an admin with that token alone, in place of one with that name. A file serves once.
    docs/operations.md has the steps.

    \b
    Examples:
      qlog store reset-admin data --users-file new.json
      qlog store reset-admin n1/data n2/data --users-file new.json -o json

    Ends with 3, and changes nothing, when it could not be done.
    """
    from node.offline.admin_reset import reset_admin as put_into

    reset = put_into([Path(directory) for directory in directories], Path(users_file))
    is_table = output is Format.TABLE  # It has the rest in a sentence.
    whole = {} if is_table else {"is_majority": reset.is_majority}
    print_record(reset._asdict() | whole, output)
    if is_table:
        click.echo()
        count = f"{len(reset.node_ids)} of {counted(len(reset.voters), 'voter')}"
        then = "after the next start with users = prepare or on"
        if not reset.is_majority:
            then = (
                "once a majority has the same file: what other machines have is not known here, "
                "so run the command on them, too"
            )
        print_text(f"{count} have it here; {reset.user} is the admin with the new token {then}")
    return ExitCode.OK


# --- Printing ---


def _print(
    summary: dict[str, object],
    name: str,
    rows: list[dict[str, object]],
    columns: tuple[str, ...],
    output: Format,
) -> None:
    """Print one object with its rows inside; as lines: the rows, then the summary. A table ends
    with the verdict."""
    match output:
        case Format.JSON:
            print_record({**summary, name: rows}, output)
        case Format.JSONL:
            print_rows(rows, output, columns=columns)
            print_record(summary, output)
        case Format.TABLE:
            if rows:
                print_rows(rows, output, columns=columns)
                click.echo()
            print_record({k: v for k, v in summary.items() if k != "verdict"}, output)
            click.echo()
            print_text(str(summary["verdict"]))


def _verdict(counts: dict[str, int], ranges: "list[DamagedRange]") -> str:
    if not counts:
        return "clean: every byte is as it must be"
    said = ", ".join(f"{n} {severity}" for severity, n in counts.items())
    entries = [f"{r.lo_index} to {r.hi_index - 1}" for r in ranges if r.lo_index < r.hi_index]
    if entries:
        more = f" and {len(entries) - 8} more ranges" if len(entries) > 8 else ""
        return (
            f"damaged: {said}; refetch entries {', '.join(entries[:8])}{more} from a replica (a "
            f"node of a raft group does so when it starts or first reads them), or see "
            f"'qlog store repair'"
        )
    if "damage" in counts:
        return f"damaged: {said}; refetch from a replica, or see 'qlog store repair'"
    if counts.keys() <= {"left_over", "unknown"}:
        return f"whole, with stray files: {said}"
    return f"not clean, nothing is lost: {said}; opening or 'qlog store repair' mends it"
