"""`qlog config`: check the settings of a node, and show the effective ones.

Owns the options and the printing; reading and checking is `node.config.load`.
"""

import time
from typing import Any

import click

from node.config.load import ConfigError, Loaded, load
from node.config.settings import Settings
from node.config.types import plain
from qlog.output import Format, output_option, print_rows
from qlog.server.settings import as_cli_error, settings_options
from quorumlog.command_errors import ExitCode

_PROBLEM_COLUMNS = ("severity", "key", "value", "origin", "what", "suggestion")


@click.group()
def config() -> None:
    """Check and show the settings of a node.

    Both commands also take the settings of `qlog serve` as options, to try them.
    """


@config.command()
@click.argument("file", required=False, metavar="[FILE]")
@output_option
def check(file: str | None, output: Format, **flags: Any) -> int:
    """Find everything that is wrong with the settings.

    Looks at FILE (or the one that QUORUMLOG_CONFIG names), the environment and the options, as
    `qlog serve` would; opens no directory and no port. A listening port that a stranger could
    misuse is a warning, and a certificate that has ended, has not begun or ends within 14 days:
    the node starts, and says the same.

    \b
    Examples:
      qlog config check node.toml
      qlog config check node.toml -o json | jq '.[].suggestion'

    Ends with 0 when nothing is wrong, warnings or not, and with 1 when something is.
    """
    problems: list[dict[str, object]] = []
    warnings: list[dict[str, object]] = []
    try:
        warnings = _warnings(load(file, flags))
    except ConfigError as error:
        problems = [{"severity": "error", **problem._asdict()} for problem in error.problems]
    if output is Format.TABLE and not problems:
        click.echo("nothing is wrong" + (", with these warnings:" if warnings else ""))
    if problems or warnings or output is not Format.TABLE:
        print_rows(problems + warnings, output, columns=_PROBLEM_COLUMNS)
    return ExitCode.FINDINGS if problems else ExitCode.OK


def _warnings(loaded: Loaded) -> list[dict[str, object]]:
    from node.config.environment import tls_files
    from node.config.exposure import exposures
    from node.peers.security.tls import date_warnings, validity

    settings = loaded.settings
    found = [
        (one.setting, str(one.address), f"{one.who} {one.how}", one.remedy)
        for one in exposures(settings)
    ]
    tls = tls_files(settings)
    for dated in [] if tls is None else date_warnings(validity(tls), time.time()):
        what = f"the certificate {dated.what}"
        found.append((dated.setting, str(getattr(settings, dated.setting)), what, dated.remedy))
    return [
        {
            "severity": "warning",
            "key": key,
            "value": value,
            "origin": loaded.origins[key],
            "what": what,
            "suggestion": remedy,
        }
        for key, value, what, remedy in found
    ]


@config.command()
@click.argument("file", required=False, metavar="[FILE]")
@click.option("--origin", "with_origin", is_flag=True, help="Show where each value comes from.")
@output_option
def show(file: str | None, with_origin: bool, output: Format, **flags: Any) -> int:
    """Show the value of every setting.

    \b
    Examples:
      qlog config show node.toml --origin
      QUORUMLOG_FLUSH=async qlog config show node.toml -o jsonl
    """
    try:
        loaded = load(file, flags)
    except ConfigError as error:
        raise as_cli_error(error) from error
    rows = [
        {"setting": name, "value": plain(getattr(loaded.settings, name))}
        | ({"origin": loaded.origins[name]} if with_origin else {})
        for name in Settings.model_fields
    ]
    columns = ("setting", "origin", "value") if with_origin else ("setting", "value")
    print_rows(rows, output, columns=columns)
    return ExitCode.OK


for _command in (check, show):
    settings_options(_command, hidden=True)
