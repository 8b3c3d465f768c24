"""`qlog context`: the clusters of a user by name, and which of them commands use.

Owns the options and the printing; the file is that of `qlog.contexts`.
"""

from pathlib import Path
from typing import Any

import click

from qlog.command_decorators import Printout, TableRows, printed
from qlog.connection import addresses
from qlog.contexts import DEFAULT, Context, Contexts
from qlog.names import of
from qlog.output import Row
from quorumlog.cluster.tls import ClientTls
from quorumlog.command_errors import CliError, ExitCode, nearest


@click.group()
def context() -> None:
    """Save clusters under names, and choose the one that commands use.

    A context is the addresses and the TLS files of a cluster. --server and QUORUMLOG_SERVER come
    before it, and then its files are not used either; the variables that name PEM files come
    before its files. The context 'default' is the cluster of 'qlog local', else 127.0.0.1:8081.
    All are in quorumlog/contexts.json in XDG_CONFIG_HOME (~/.config), for their owner only.
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
@printed
def create(name: str, server: str, **files: str) -> dict[str, Any]:
    """Save a cluster under a name. Its files are read once, so that a wrong one is found now.

    \b
    Keys of -o json:
      context, server

    \b
    Examples:
      qlog context create test --server 10.0.0.1:8081,10.0.0.2:8081
      qlog context create prod -s prod1:8081 --tls-ca ca.pem && qlog context use prod
    """
    contexts, server = Contexts.load(), addresses(server)
    if name == DEFAULT:
        raise click.UsageError(f"{DEFAULT!r} is the local cluster; choose another name")
    if name in contexts.by_name:
        raise CliError(
            f"there is a context {name!r} already",
            f"it names {contexts.by_name[name].server}",
            f"choose another name, or delete it: qlog context delete {name}",
        )
    tls = ClientTls(**{one: str(Path(file).absolute()) for one, file in files.items() if file})
    tls.credentials()
    contexts.by_name[name] = Context(server, tls)
    contexts.save()
    return {"context": name, "server": server}


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
    contexts = _having(name)
    contexts.current = name
    contexts.save()
    return {"context": name}


@context.command("list")
@printed
def list_contexts() -> Printout:
    """List the contexts; * is before the one that commands use.

    \b
    Keys of -o json:
      is_current, context, server, tls_ca, tls_certificate, tls_key

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
        for name, one in sorted({DEFAULT: none, **contexts.by_name}.items())
    ]
    marked = [{"": "*" if row["is_current"] else "", **row} for row in rows]
    columns = ("", *list(rows[0])[1:])
    shown = [{name: row[name] for name in columns} for row in marked]
    return Printout(rows, table=[TableRows(columns, shown)])


@context.command()
@_name_argument
@printed
def delete(name: str) -> dict[str, Any]:
    """Forget a context; its files stay. Commands that used it use 'default' then.

    \b
    Keys of -o json:
      context, deleted

    \b
    Examples:
      qlog context delete test
    """
    contexts = _having(name)
    if contexts.by_name.pop(name, None) is None:
        raise click.UsageError(f"{DEFAULT!r} is the local cluster, and stays")
    if contexts.current == name:
        contexts.current = DEFAULT
    contexts.save()
    return {"context": name, "deleted": True}


def _having(name: str) -> Contexts:
    """Return the contexts, which have this one. Raises CliError."""
    contexts = Contexts.load()
    names = [DEFAULT, *sorted(contexts.by_name)]
    if name not in names:
        raise CliError(
            f"there is no context {name!r}",
            f"there are {', '.join(names)}",
            nearest(name, names) + f"make it: qlog context create {name} --server HOST:PORT",
            ExitCode.NOT_FOUND,
        )
    return contexts
