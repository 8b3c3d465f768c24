"""Options for all settings of a node, made from their list, for `qlog serve` and `qlog config`.

Owns the flag of a setting, and the three lines of a wrong configuration. Imports server code: only
commands that need it may import this.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from node.config.load import ConfigError
from node.config.settings import Settings
from quorumlog.command_errors import CliError, ExitCode

_Command = TypeVar("_Command", bound=Callable[..., Any])


def settings_options(command: _Command, *, hidden: bool = False) -> _Command:
    """Decorate a command with a flag for each setting; they arrive as keyword arguments, as text
    or None."""
    for name, field in reversed(Settings.model_fields.items()):
        flag = f"--{name.replace('_', '-')}"
        if field.annotation is bool:
            option = click.option(
                f"{flag}/--no-{flag[2:]}", name, default=None, **_help(name, hidden)
            )
        else:
            option = click.option(flag, name, metavar="VALUE", **_help(name, hidden))
        command = option(command)
    return command


def _help(name: str, hidden: bool) -> dict[str, Any]:
    # Marks of Markdown are for the page.
    text = (Settings.model_fields[name].description or "").replace("`", "")
    return {"help": text, "hidden": hidden}


def as_cli_error(error: ConfigError) -> CliError:
    """Return the error of a wrong configuration; its cause has a line for every wrong setting."""
    head, *rest = (line.strip() for line in str(error).splitlines())
    return CliError(
        what=head,
        why=rest[0] if rest else "",
        do="correct them; 'qlog serve --help' and docs/configuration.md list every setting",
        exit_code=ExitCode.USAGE,
        others=tuple(rest[1:]),
    )
