"""`qlog context`: the clusters of a user by name, and which of them commands use.

Owns the options and the printing; the file is that of `qlog.contexts`.
"""

import os
import re
from pathlib import Path
from typing import Any

import click

from qlog.command_decorators import Printout, TableRows, confirmed, printed
from qlog.connection import (
    CALL_TIMEOUT_MS,
    CONNECT_TIMEOUT_MS,
    DEFAULT_SERVER,
    SERVER_VARIABLE,
    TLS_VARIABLES,
    addresses,
    default_addresses,
    read_token,
)
from qlog.contexts import DEFAULT, Context, Contexts
from qlog.names import of
from qlog.output import Row
from qlog.parsed import duration_text
from quorumlog.cluster.tls import ClientTls
from quorumlog.command_errors import CliError, ExitCode, nearest
from quorumlog.user_files import UserFileError, read_keys

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # As those of clusters and broker groups.

_DEFAULT_IS = f"{DEFAULT!r} is the cluster of 'qlog local' on this machine, else {DEFAULT_SERVER}"


@click.group()
def context() -> None:
    """Save clusters under names, and choose the one that commands use.

    A context is the addresses of a cluster, its TLS files, the path of the file with your token,
    and the files by which 'qlog rocketmq import' enters the source. --server and
    QUORUMLOG_SERVER come before it, and then its files are not used either; variables and options
    that name files come before its files. The context 'default' is the cluster of 'qlog local',
    else 127.0.0.1:8081. All are in quorumlog/contexts.json in XDG_CONFIG_HOME (~/.config), for
    their owner only.
    """


_complete = of(lambda _context: [DEFAULT, *Contexts.load().by_name])
_name_argument = click.argument("name", metavar="NAME", shell_complete=_complete)


@context.command()
@click.argument("name", metavar="NAME")
@click.option("-s", "--server", required=True, metavar="HOST:PORT,...", help="Its nodes, or some.")
@click.option("--tls-ca", "ca", default="", metavar="FILE", help="Who signed its certificates.")
@click.option(
    "--tls-certificate", "certificate", default="", metavar="FILE", help="Your own certificate."
)
@click.option("--tls-key", "key", default="", metavar="FILE", help="Its private key.")
@click.option("--token-file", default="", metavar="FILE", help="With your token; its path is kept.")
@click.option(
    "--source-keys",
    default="",
    metavar="FILE",
    help="For 'rocketmq import': access key of the source and its secret.",
)
@click.option(
    "--source-ca", default="", metavar="FILE", help="And who signed the certificates of the source."
)
@printed
def create(
    name: str, server: str, token_file: str, source_keys: str, source_ca: str, **files: str
) -> Printout:
    """Save a cluster under a name. Its files are read once, so that a wrong one is found now.

    A name has 1 to 64 of letters, digits, '.', '_' and '-', the first no sign.

    \b
    Keys of -o json:
      context, server, tls_ca, tls_certificate, tls_key, token_file, source_ca
      source_keys ("set", or null without any)

    \b
    Examples:
      qlog context create test --server 10.0.0.1:8081,10.0.0.2:8081
      qlog context create prod -s prod1:8081 --tls-ca ca.pem
      qlog context create prod -s prod1:8081 --source-keys keys.txt
    """
    server = addresses(server)
    if name == DEFAULT:
        raise click.UsageError(f"{DEFAULT!r} is the local cluster; choose another name")
    if not _NAME.fullmatch(name):
        raise CliError(
            f"{name[:80]!r} is no name of a context",
            "a name has 1 to 64 of letters, digits, '.', '_' and '-', the first no sign",
            "choose another name",
            ExitCode.USAGE,
        )
    tls = ClientTls(**{one: _absolute(file) for one, file in files.items()})
    new = Context(server, tls, *map(_absolute, (source_keys, source_ca, token_file)))
    if token_file:
        read_token(new.token_file)
    for each in (tls, ClientTls(ca=new.source_ca)):
        each.credentials()
    try:
        _ = read_keys(new.source_keys) if source_keys else {}
    except UserFileError as error:
        what = f"the keys of the source cannot be read from {new.source_keys}"
        raise CliError(what, error.what, error.do, ExitCode.USAGE) from error
    with Contexts.changed() as contexts:
        if name in contexts.by_name:
            raise CliError(
                f"there is a context {name!r} already",
                f"it names {contexts.by_name[name].server}",
                f"choose another name, or delete it: qlog context delete {name}",
            )
        contexts.by_name[name] = new
    row = {"context": name, **_values(new)}
    return Printout(row, omitted=[key for key, value in row.items() if value is None])


def _values(context: Context) -> dict[str, str | None]:
    """Return what a context has, by name, without secrets; None: it has none."""
    files = {f"tls_{name}": file for name, file in context.tls._asdict().items()}
    values = {"server": context.server, **files, "token_file": context.token_file}
    values["source_ca"] = context.source_ca
    values["source_keys"] = "set" if context.source_keys else ""
    return {name: value or None for name, value in values.items()}


def _absolute(file: str) -> str:
    return file and str(Path(file).absolute())


@context.command()
@_name_argument
@printed
def use(name: str) -> dict[str, Any]:
    """Let commands use a context from now on; 'default' is none.

    \b
    Keys of -o json:
      context

    \b
    Examples:
      qlog context use prod
      qlog context use default
    """
    with Contexts.changed() as contexts:
        _check_there(contexts, name)
        contexts.current = name
    return {"context": name}


@context.command("list")
@printed
def list_contexts() -> Printout:
    """List the contexts; * is before the one that commands use.

    \b
    Keys of -o json:
      is_current, context, server, tls_ca, tls_certificate, tls_key, token_file,
      source_ca
      source_keys ("set", or null without any)

    \b
    Examples:
      qlog context list
      qlog context list -o json | jq -r '.[] | select(.is_current).context'
    """
    contexts = Contexts.load()
    none = Context("", ClientTls())
    rows: list[Row] = [
        {"is_current": name == contexts.current, "context": name, **_values(one)}
        for name, one in sorted({DEFAULT: none, **contexts.by_name}.items())
    ]
    marked = [{"": "*" if row["is_current"] else "", **row} for row in rows]
    columns = ("", *list(rows[0])[1:])
    shown = [{name: row[name] for name in columns} for row in marked]
    of_variable = os.environ.get(SERVER_VARIABLE) and f"; {SERVER_VARIABLE} is set, and goes first"
    lines = [f"{_DEFAULT_IS}.", f"commands use {contexts.current!r}{of_variable or ''}"]
    return Printout(rows, table=[TableRows(columns, shown)], lines=lines)


@context.command()
@click.argument("name", metavar="[NAME]", required=False, shell_complete=_complete)
@printed
def show(name: str | None) -> list[Row]:
    """Show what a context gives to commands, or without NAME what they use now.

    Without NAME, variables go before the context, as they do in commands.

    \b
    Keys of -o json:
      name, value, source

    \b
    Examples:
      qlog context show
      qlog context show prod
    """
    contexts, variables = Contexts.load(), os.environ if name is None else {}
    if name is not None:
        _check_there(contexts, name)
        contexts.current = name
    chosen = contexts.chosen()
    server = variables.get(SERVER_VARIABLE)
    values = _values(Context("", ClientTls()) if server or not chosen else chosen)
    sources = {each: f"context {contexts.current!r}" for each, value in values.items() if value}
    try:
        found = (server, SERVER_VARIABLE) if server else default_addresses(contexts)
        values["server"], sources["server"] = found
    except CliError as error:  # A local cluster that is stopped.
        sources["server"] = error.explanation.what
    names = dict(zip(("tls_ca", "tls_certificate", "tls_key"), TLS_VARIABLES, strict=True))
    if any(variables.get(variable) for variable in TLS_VARIABLES):
        values |= {each: variables.get(variable) or None for each, variable in names.items()}
        sources |= names
    for each, ms in (("timeout", CALL_TIMEOUT_MS), ("connect_timeout", CONNECT_TIMEOUT_MS)):
        values[each], sources[each] = duration_text(ms), "the default; --timeout sets it"
    return [
        {"name": each, "value": value, "source": sources.get(each)}
        for each, value in values.items()
    ]


@context.command()
@_name_argument
@confirmed("Forget context {name}?")
@printed
def delete(name: str) -> Printout:
    """Forget a context; its files stay. Commands that used it use 'default' then.

    \b
    Keys of -o json:
      context, deleted, current

    \b
    Examples:
      qlog context delete test --yes
    """
    with Contexts.changed() as contexts:
        _check_there(contexts, name)
        if contexts.by_name.pop(name, None) is None:
            raise click.UsageError(f"{DEFAULT!r} is the local cluster, and stays")
        was_current = contexts.current == name
        if was_current:
            contexts.current = DEFAULT
    falls_back = f"it was the current one: commands use {DEFAULT!r} now. {_DEFAULT_IS}"
    return Printout(
        {"context": name, "deleted": True, "current": contexts.current},
        lines=[falls_back] if was_current else [],
    )


def _check_there(contexts: Contexts, name: str) -> None:
    names = [DEFAULT, *sorted(contexts.by_name)]
    if name not in names:
        raise CliError(
            f"there is no context {name!r}",
            f"known are {', '.join(names)}",
            nearest(name, names) + f"make it: qlog context create {name} --server HOST:PORT",
            ExitCode.NOT_FOUND,
        )
