"""`qlog context`: the clusters of a user by name, and which of them commands use.

Owns the options and the printing; the file is that of `qlog.contexts`.
"""

import re
from pathlib import Path
from typing import Any

import click

from qlog.command_decorators import Printout, TableRows, printed
from qlog.connection import DEFAULT_SERVER, addresses, read_token
from qlog.contexts import DEFAULT, Context, Contexts
from qlog.names import of
from qlog.output import Row
from quorumlog.cluster.tls import ClientTls
from quorumlog.command_errors import CliError, ExitCode, nearest
from quorumlog.user_files import UserFileError, read_keys

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # As those of clusters and broker groups.


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


_name_argument = click.argument(
    "name", metavar="NAME", shell_complete=of(lambda _context: [DEFAULT, *Contexts.load().by_name])
)


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
) -> dict[str, Any]:
    """Save a cluster under a name. Its files are read once, so that a wrong one is found now.

    A name has 1 to 64 of letters, digits, '.', '_' and '-', the first no sign.

    \b
    Keys of -o json:
      context, server

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
    return {"context": name, "server": server}


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
        {"is_current": name == contexts.current, "context": name, "server": one.server or None}
        | {f"tls_{file}": path or None for file, path in one.tls._asdict().items()}
        | {"token_file": one.token_file or None}
        | {"source_ca": one.source_ca or None, "source_keys": "set" if one.source_keys else None}
        for name, one in sorted({DEFAULT: none, **contexts.by_name}.items())
    ]
    marked = [{"": "*" if row["is_current"] else "", **row} for row in rows]
    columns = ("", *list(rows[0])[1:])
    shown = [{name: row[name] for name in columns} for row in marked]
    return Printout(rows, table=[TableRows(columns, shown)])


@context.command()
@_name_argument
@printed
def delete(name: str) -> Printout:
    """Forget a context; its files stay. Commands that used it use 'default' then.

    \b
    Keys of -o json:
      context, deleted, current

    \b
    Examples:
      qlog context delete test
    """
    with Contexts.changed() as contexts:
        _check_there(contexts, name)
        if contexts.by_name.pop(name, None) is None:
            raise click.UsageError(f"{DEFAULT!r} is the local cluster, and stays")
        was_current = contexts.current == name
        if was_current:
            contexts.current = DEFAULT
    falls_back = (
        f"it was the current one: commands use {DEFAULT!r} now, the cluster of 'qlog local', else "
        f"{DEFAULT_SERVER}"
    )
    return Printout(
        {"context": name, "deleted": True, "current": contexts.current},
        lines=[falls_back] if was_current else [],
    )


def _check_there(contexts: Contexts, name: str) -> None:
    names = [DEFAULT, *sorted(contexts.by_name)]
    if name not in names:
        raise CliError(
            f"there is no context {name!r}",
            f"there are {', '.join(names)}",
            nearest(name, names) + f"make it: qlog context create {name} --server HOST:PORT",
            ExitCode.NOT_FOUND,
        )
