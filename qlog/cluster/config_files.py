"""`qlog config-files`: topics, groups and offsets as the files that RocketMQ keeps of them.

Owns the directory and the printing; the work is the admin client's.
"""

from pathlib import Path

import click

from qlog.broker_groups import broker_group_option
from qlog.command_decorators import Printout, printed
from qlog.connection import ask, server_option
from qlog.output import Row
from quorumlog.command_errors import CliError, ExitCode

_NAMES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
_SIZE_BYTES_MAX = 4 << 20


@click.group("config-files")
def config_files() -> None:
    """Write and read topics.json, subscriptionGroup.json and the other tables of RocketMQ."""


@config_files.command("export")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@broker_group_option
@server_option
@printed
def export_files(directory: Path, group: str, server: str | None) -> list[Row]:
    """Write the tables of a cluster into a directory, which is made.

    \b
    Keys of -o json:
      file, size_bytes

    \b
    Examples:
      qlog config-files export tables
    """
    files = ask(server, lambda client: client.admin.export_config_files(broker_group=group))
    directory.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for name in sorted(files.keys() & set(_NAMES)):
        data = files[name].encode()
        (directory / name).write_bytes(data)
        rows.append({"file": name, "size_bytes": len(data)})
    return rows


@config_files.command("import")
@click.argument(
    "directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option("--dry-run", is_flag=True, help="Only say what would change, and what forbids it.")
@broker_group_option
@server_option
@printed
def import_files(directory: Path, dry_run: bool, group: str, server: str | None) -> Printout:
    """Make topics, groups and offsets as the tables in a directory say: all of it, or nothing.

    What is there already stays: doing it again changes nothing. Leave consumerOffset.json out for a
    cluster with another log, whose offsets mean other messages. A warning names each topic and
    group with a setting that has no effect here, as `order` and `attributes` of a topic. A value
    of another type, an entry twice or under another name than its own is refused by file and entry.

    \b
    Keys of -o json:
      topic_count, group_count, offset_count, refusals, skipped, warnings

    \b
    Examples:
      qlog config-files import tables --dry-run
      qlog config-files import tables -o json | jq '.refusals, .warnings'

    Ends with 0, or with 1 when something forbids it; then nothing was changed.
    """
    files = _read(directory)
    if not files:
        raise CliError(
            f"{directory} has none of the tables",
            "they are " + ", ".join(_NAMES),
            "name the config directory of a broker, or one that 'qlog config-files export' wrote",
        )

    report = ask(
        server,
        lambda client: client.admin.import_config_files(
            files, is_dry_run=dry_run, broker_group=group
        ),
    )
    return Printout(
        report,
        omitted=("refusals", "skipped", "warnings"),
        lines=[
            *(f"skipped: {text}" for text in report.skipped),
            *(f"warning: {text}" for text in report.warnings),
            *(f"refused: {text}" for text in report.refusals),
        ],
        exit_code=ExitCode.FINDINGS if report.refusals else ExitCode.OK,
    )


def _read(directory: Path) -> dict[str, str]:
    """Return the text of each table that exists. Raises CliError for one that is no file."""
    files: dict[str, str] = {}
    size_bytes = 0
    for name in _NAMES:
        path = directory / name
        if not path.exists():
            continue
        if not path.is_file():  # Reading a pipe would block.
            raise _unreadable(path, "it is no file")
        size_bytes += path.stat().st_size
        if size_bytes > _SIZE_BYTES_MAX:
            raise CliError(
                f"the tables have {size_bytes} bytes or more",
                f"one import takes {_SIZE_BYTES_MAX}, because it happens as a whole",
                "import topics.json and subscriptionGroup.json first, then offsets in parts",
            )
        try:
            files[name] = path.read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise _unreadable(path, str(error)) from error
    return files


def _unreadable(path: Path, why: str) -> CliError:
    do = "name the config directory of a broker, or one that 'qlog config-files export' wrote"
    return CliError(f"{path} cannot be read", why, do)
