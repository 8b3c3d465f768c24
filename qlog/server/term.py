"""`qlog term`: lower an absurd term on the stopped nodes of a group, all of them together.

Owns the options and the printing; the work is `node.offline.term_change`'s, which is imported when
a command runs.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qlog.command_decorators import Printout, printed
from quorumlog.command_errors import ExitCode

if TYPE_CHECKING:
    from node.config.settings import Settings


@click.group()
def term() -> None:
    """Lower an absurd term on the stopped nodes of a group, all of them together.

    For a cluster with a forged term or epoch that no elections explain, up to one with which no
    node can be elected (node.term_end). A term is a promise to the other nodes, so it
    can only go down while all members are stopped, learners included. Three steps, with the
    settings that the node is served with:

    \b
      1. stop every node of the group, and keep its peer port closed to strangers from now on
      2. on each:  qlog term seal --config node.toml --statement node-ID.json
      3. bring all statements to every machine, and on each:
                   qlog term lower --config node.toml node-1.json node-2.json node-3.json

    Then start the nodes. A sealed node does not start, so that nothing changes between the steps.
    docs/operations.md says why, and what to do about clients and the name server.
    """


def _config_option(command: "click.decorators.FC") -> "click.decorators.FC":
    text = "Settings of the node, in TOML, as for 'qlog serve'."
    return click.option("--config", "file", metavar="FILE", help=text)(command)


def _settings(file: str | None) -> "Settings":
    from node.config.load import ConfigError, load
    from qlog.server.settings import as_cli_error

    try:
        return load(file, {}).settings
    except ConfigError as error:
        raise as_cli_error(error) from error


@term.command()
@_config_option
@click.option("--statement", metavar="FILE", help="Where to write it; stdout if not given.")
def seal(file: str | None, statement: str | None) -> int:
    """Seal the directory of a stopped node, and write what it says of itself.

    The node does not start again until it was lowered or unsealed. Doing it twice changes nothing,
    and writes the same statement.

    \b
    Examples:
      qlog term seal --config node1.toml --statement node-1.json

    Ends with 3 when it could not be done, for example since the node runs.
    """
    from node.offline.term_change import seal_directory

    found = seal_directory(_settings(file)).to_json()
    if statement is None:
        click.echo(found, nl=False)
        return ExitCode.OK
    with open(statement, "w", encoding="utf-8") as target:
        target.write(found)
        target.flush()
        os.fdatasync(target.fileno())
    return ExitCode.OK


@term.command()
@_config_option
@click.argument("statements", nargs=-1, required=True, metavar="STATEMENT...")
@printed
def lower(file: str | None, statements: tuple[str, ...]) -> Printout:
    """Lower the term of a stopped and sealed node, and take the seal away.

    STATEMENTs are the files that `qlog term seal` wrote, of every member of the group: the new term
    is one above the highest of any entry in any of their logs, and the same on all nodes. It is
    refused while a member is missing, when the directory is not what its statement says, and when
    the logs themselves reach the end. It may be repeated if it broke off.

    \b
    Keys of -o json:
      directory, node_id, former_term, term, is_repeated

    \b
    Examples:
      qlog term lower --config node1.toml node-1.json node-2.json node-3.json

    Ends with 3 when it was refused; nothing is changed then.
    """
    from node.offline.term_change import lower_directory
    from node.offline.term_statement import STATEMENT_SIZE_BYTES_MAX, Statement

    found = []
    for name in statements:
        with Path(name).open("rb") as source:
            data = source.read(STATEMENT_SIZE_BYTES_MAX + 1)
        found.append(Statement.from_json(name, data))
    lowered = lower_directory(_settings(file), found)
    line = "\nlower the other nodes with the same statements, then start all of them"
    return Printout(lowered, lines=[line])


@term.command()
@_config_option
def unseal(file: str | None) -> int:
    """Give a change of terms up on this node: it starts again as it was.

    Its statement is void from now on: destroy every copy, and do not lower another node with it.

    \b
    Examples:
      qlog term unseal --config node1.toml
    """
    from node.offline.term_change import unseal_directory

    if unseal_directory(_settings(file)):
        click.echo("unsealed; its statement is void: destroy every copy of it")
    else:
        click.echo("it was not sealed")
    return ExitCode.OK
