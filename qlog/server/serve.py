"""`qlog serve`: run one node, or print the unit by which systemd runs it.

Owns the options and what the unit has of the settings; these are `node.config.load`'s, the
process's life is `node.lifecycle`'s.
"""

import gc
import sys
from pathlib import Path
from typing import Any, Final

import click

from node.config.load import ConfigError, load
from node.config.settings import Settings
from node.runtime.fail_stop import EXIT_BAD_CONFIG
from qlog import paused_collector
from qlog.server.settings import as_cli_error, settings_options
from quorumlog.command_errors import CliError, ExitCode
from quorumlog.standard_output import styled

_UNIT_CONFIG: Final = "/etc/quorumlog/node.toml"
_UNIT_DIRECTORY: Final = Path("/var/lib/quorumlog")


@click.command()
@click.option("--config", "file", metavar="FILE", help="Settings in TOML.")
@click.option("--print-unit", is_flag=True, help="Print a unit of systemd for --config, and end.")
@settings_options
def serve(file: str | None, print_unit: bool, **flags: Any) -> int:
    """Run one node, until it gets SIGTERM, SIGINT or SIGHUP.

    A setting is taken from its option, else from its variable (QUORUMLOG_NODE_ID for --node-id),
    else from the file, else it has its default. docs/configuration.md explains them all. Log lines
    go to stderr: for people on a terminal, JSON elsewhere. The first signal hands leadership over
    and finishes what runs, a second one does not wait for it. DIRECTORY/node.json says where the
    node listens.

    \b
    Examples:
      qlog serve --node-id 1 --directory data
      qlog serve --config node.toml --flush async
      qlog serve --print-unit > /etc/systemd/system/quorumlog.service

    Ends with 0 when it was told to stop, and with a code of docs/operations.md otherwise.
    """
    try:
        if print_unit:
            click.echo(_unit(file, flags), nl=False)
            return ExitCode.OK
        settings = load(file, flags).settings
    except ConfigError as error:
        click.echo(str(as_cli_error(error)), err=True)
        return EXIT_BAD_CONFIG
    with paused_collector():
        from node.lifecycle import run

        # Else the collector would look through all these objects as soon as it goes on.
        gc.freeze()
    sys.stderr = styled(sys.stderr)  # The log has its own escapes, and colours.
    return run(settings)


def _unit(file: str | None, flags: dict[str, Any]) -> str:
    """Return the unit of a node with these settings, by default of a file that is not read.

    Raises ConfigError, and CliError for a setting that is an option.
    """
    for name, value in flags.items():
        if value is not None:
            raise CliError(
                f"a unit has its settings in a file, and --{name.replace('_', '-')} is an option",
                "the node that systemd starts reads them again at each start",
                f"write `{name}` into {file or _UNIT_CONFIG}",
                ExitCode.USAGE,
            )
    if file is None:
        settings = Settings.model_construct(directory=_UNIT_DIRECTORY)
    else:
        settings = load(file, {}).settings
    return (
        Path(__file__)
        .with_name("quorumlog.service")
        .read_text("utf-8")
        .format(
            python=_word(sys.executable),
            config=_word(_UNIT_CONFIG if file is None else Path(file).absolute()),
            directory=_word(settings.directory.absolute()),
            # Behind the limits of the node, which say more of what was wrong.
            watchdog_s=settings.sync_hang_limit_ms // 1000 + 30,
            stop_s=settings.drain_timeout_ms // 1000 + 35,
        )
    )


def _word(path: str | Path) -> str:
    """Return a path as one word of a unit, where % and quotes have a meaning."""
    text = str(path).replace("%", "%%")
    return f'"{text}"' if " " in text else text
