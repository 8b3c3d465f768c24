"""`qlog tls`: certificates to try TLS with.

Owns the options and the printing; `qlog.server.authority` makes the files.
"""

import json
import shlex
from pathlib import Path

import click

from qlog.connection import CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE
from qlog.output import Format, output_option, print_record
from quorumlog.command_errors import CliError, ExitCode

_HOSTS = ("127.0.0.1", "localhost")
_NAMES = ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")


@click.group()
def tls() -> None:
    """Make certificates to try TLS with."""


@tls.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="Another name or IP address of a node; may be repeated.",
)
@output_option
def dev(directory: Path, hosts: tuple[str, ...], output: Format) -> int:
    """Make an authority, a certificate for nodes and one for clients, valid for 30 days.

    Writes ca.pem, server.pem, server.key, client.pem and client.key into DIRECTORY, and overwrites
    no file. The certificate of the nodes is for 127.0.0.1, localhost and each --host. The key of
    the authority is not kept. client.pem has the name CN=client, as users know it. For development
    and tests, not for production.

    \b
    Examples:
      qlog tls dev certs
      qlog tls dev certs --host node1.example --host 10.0.0.1

    \b
    Keys of -o json:
      settings     what node.toml gets, by setting
      environment  what the shell of qlog gets, by variable
      hosts        what the certificate of the nodes is for
      ends         the end of all certificates, as ISO 8601
    """
    from qlog.server.authority import Authority

    directory = directory.absolute()
    there = [name for name in _NAMES if (directory / name).exists()]
    if there:
        raise CliError(
            f"{directory} has {', '.join(there)} already",
            "files of nodes that run would be replaced",
            "name another directory, or move these files away",
        )
    is_new = not directory.exists()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority, hosts = Authority(directory), tuple(dict.fromkeys((*_HOSTS, *hosts)))
    try:
        server, client = authority.files("server", hosts), authority.files("client", ())
    except ValueError as error:
        authority.path.unlink()
        if is_new:
            directory.rmdir()
        raise CliError(
            "no certificate can be made for that --host",
            str(error),
            "give --host a name of letters, digits, '-' and '.', or an IP address, without a port",
            ExitCode.USAGE,
        ) from error
    settings: dict[str, object] = {
        "tls_certificate_file": str(server.certificate),
        "tls_key_file": str(server.key),
        "tls_ca_file": str(server.ca),
        "tls_client_auth": True,
    }
    environment = {
        CA_VARIABLE: str(client.ca),
        CERTIFICATE_VARIABLE: str(client.certificate),
        KEY_VARIABLE: str(client.key),
    }
    if output is not Format.TABLE:
        ends = authority.ends.isoformat(timespec="seconds")
        made = {"settings": settings, "environment": environment, "hosts": hosts, "ends": ends}
        print_record(made, output)
        return ExitCode.OK
    click.echo(f"# until {authority.ends:%Y-%m-%d}, not for production")
    click.echo(f"# for {', '.join(hosts)}")
    click.echo("# the name of client.pem for 'qlog user certificate add' is CN=client")
    click.echo("# into node.toml of each node, above the first [peers.N]:")
    for name, value in settings.items():
        click.echo(f"{name} = {'true' if value is True else _quoted(str(value))}")
    click.echo("# or three nodes on this machine:")
    given = [f"{name}={'true' if value is True else value}" for name, value in settings.items()]
    words = ["qlog local start", *(f"--setting {shlex.quote(one)}" for one in given)]
    click.echo(" \\\n  ".join(words))
    click.echo("# into the shell of qlog:")
    for name, path in environment.items():
        click.echo(f"export {name}={shlex.quote(path)}")
    return ExitCode.OK


def _quoted(path: str) -> str:
    return json.dumps(path, ensure_ascii=False)  # A basic string of TOML has the same escapes.
