"""`qlog store restore`: begin a new cluster with a backup.

Owns the options and the printing; `node.offline.restore` does it, and is imported when the command
runs.
"""

from pathlib import Path

import click

from qlog.output import Format, output_option, print_record
from qlog.progress import progress_bars
from quorumlog.command_errors import ExitCode


@click.command()
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
      qlog store restore /backup/node-2 --config node1.toml && qlog serve --config node1.toml
      qlog store restore /backup/node-2 --config node1.toml -o json | jq .last_index

    Ends with 3 when it could not be done; nothing is left then.
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
        click.echo(
            f"\n{restored.directory} is node {restored.node_id}, alone, of the new cluster "
            f"{restored.cluster_id}: start it, then add the others with empty disks"
        )
    return ExitCode.OK
