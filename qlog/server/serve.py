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
from qlog.output import print_text
from qlog.server.settings import as_cli_error, settings_options
from quorumlog.command_errors import CliError, ExitCode, report
from quorumlog.standard_output import styled

_UNIT_CONFIG: Final = "/etc/quorumlog/node.toml"
_UNIT_DIRECTORY: Final = Path("/var/lib/quorumlog")
_HIDDEN: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
"""What ProtectHome and PrivateTmp hide from the node of the unit."""


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
        loaded = load(file, flags)
    except ConfigError as error:
        report(as_cli_error(error))
        return EXIT_BAD_CONFIG
    with paused_collector():
        from node.lifecycle import run

        # Else the collector would look through all these objects as soon as it goes on.
        gc.freeze()
    sys.stderr = styled(sys.stderr)  # The log has its own escapes, and colours.
    return run(loaded.settings, loaded.origins)


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
        # systemd has not the variables of this shell.
        settings = load(file, {}, {}).settings
    config = Path(file or _UNIT_CONFIG).absolute()
    for name, path in (*settings, ("--config", config)):
        if isinstance(path, Path):
            _check_path(name, path)
    for path in (Path(sys.executable), Path(__file__).parents[1], config):
        if hidden := _below(_HIDDEN, path):
            remedy = "move it out of /home, /root and /tmp"
            print_text(f"note: the unit hides {hidden} from its node; {remedy}", err=True)
    return (
        Path(__file__)
        .with_name("quorumlog.service")
        .read_text("utf-8")
        .format(
            python=_word(sys.executable).replace("$", "$$"),
            config=_word(config).replace("$", "$$"),  # A variable, but in a command alone.
            directory=_word(settings.directory),
            # Behind the limits of the node, which say more of what was wrong.
            watchdog_s=settings.sync_hang_limit_ms // 1000 + 30,
            stop_s=settings.drain_timeout_ms // 1000 + 35,
        )
    )


def _check_path(name: str, path: Path) -> None:
    """Raises CliError for a path of a setting that the node of a unit would not have."""
    if not path.is_absolute():
        what = f"{name} {path} is relative, and the node would look for it in /"
        why = "systemd starts it there, and not in the working directory of this shell"
    elif not str(path).isprintable():
        what = f"{name} {str(path)!r} has a character that no line of a unit can have"
        why = "what follows a line break would be a setting of systemd"
    elif ".." in path.parts:
        what = f"{name} {path} leads back by `..`"
        why = "systemd ignores such a path, and the node could not write there"
    elif name != "--config" and _below(_HIDDEN, path):
        what = f"the unit hides {name} {path} from its node"
        why = "ProtectHome and PrivateTmp keep a node out of homes and temporary files"
    elif name == "directory" and _below(("/run", "/dev"), path):
        what = f"the directory {path} is empty after each start of the host"
        why = "/run and /dev are in memory, and the node would have lost what it acknowledged"
    else:
        return
    place = _UNIT_DIRECTORY if name == "directory" else Path(_UNIT_CONFIG).with_name(path.name)
    raise CliError(what, why, f"move it, and set `{name}`: {place}, for example", ExitCode.USAGE)


def _below(tops: tuple[str, ...], path: Path) -> Path | None:
    """Return the path, or what it links to, if it is below one of these directories."""
    ways = (path, path.resolve())
    return next((one for one in ways for top in tops if one.is_relative_to(top)), None)


def _word(path: str | Path) -> str:
    """Return a path as one word of a unit, where %, quotes and backslashes have a meaning."""
    text = str(path).replace("%", "%%")
    for mark in "\\\"'":
        text = text.replace(mark, f"\\{mark}")
    return f'"{text}"' if {*text} & {*" \\;"} else text
