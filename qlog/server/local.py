"""`qlog local`: a cluster on this machine, without containers, for trials and tests.

Owns the options and the printing; the work is `deploy.local`'s.
"""

import dataclasses
import fcntl
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from qlog import names
from qlog.cluster.node_rows import with_roles
from qlog.command_decorators import Printout, TableRows, print_printout
from qlog.connection import confirm, diversions, timeout_option
from qlog.output import Format, counted, output_option
from qlog.parsed import Parsed, parse_duration
from qlog.progress import line_shown, lines_shown
from qlog.transport import TOKEN_FILE_VARIABLE
from qlog.watch import Condition, watched
from quorumlog.command_errors import CliError, ExitCode, exit_code_of

if TYPE_CHECKING:
    from deploy.local import LocalCluster, LocalError

_STATE_COLUMNS = (
    "node_id", "broker_group", "state", "role", "is_ready", "term", "leader_id", "commit_index",
    "applied_index", "address", "peer_address", "http_address", "pid", "directory", "detail",
    "cluster_id", "console_address",
)  # fmt: skip
_TABLE_COLUMNS = (
    "node_id", "state", "role", "is_ready", "term", "commit_index", "address", "http_address",
    "pid", "detail",
)  # fmt: skip


@click.group()
def local() -> None:
    """Run a cluster on this machine, without containers.

    Every node is a process of its own that continues after the command has ended. All its files are
    in one directory: --dir, else the variable QUORUMLOG_LOCAL_DIR, else .quorumlog/local in the
    home directory.
    """


def _settings(
    _context: click.Context, _option: click.Parameter, given: tuple[str, ...]
) -> dict[str, object] | None:
    """Return the settings by name, None without any; a value is JSON, else text."""
    settings: dict[str, object] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{one!r} is not NAME=VALUE")
        settings[name] = value
        with suppress(ValueError):  # TOML has no null.
            settings[name] = value if value == "null" else json.loads(value)
    return settings or None


def _check_named(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    """Refuse an empty name, as that of an unset variable: the default directory is not meant."""
    if value == "":
        raise click.BadParameter("it is empty; name a directory, or leave --dir out")
    return value


dir_option = click.option(
    "--dir", "directory", metavar="DIR", callback=_check_named, help="Where the cluster is kept."
)


@local.command()
@dir_option
@click.option("--nodes", type=int, help="Nodes of each broker group of a new one.  [default: 3]")
@click.option("--broker-groups", type=int, help="How many share its topics.  [default: 1]")
@click.option("--port", type=int, help="First port of a new cluster; else free ones are found.")
@click.option(
    "--flush",
    type=click.Choice(["sync", "async"]),
    help="When a new cluster acknowledges: synced, or in memory, on a quorum.  [default: sync]",
)
@click.option(
    "--replication",
    type=click.Choice(["raft", "sync_master", "async_master"]),
    help="How a new cluster replicates; with a master, node 1 begins as it.  [default: raft]",
)
@click.option(
    "--rocketmq",
    is_flag=True,
    default=None,
    help="A new cluster is at RocketMQ's own ports, too: name servers from 9876 on, brokers from "
    "10911 on; a send makes its topic.",
)
@click.option(
    "--users",
    is_flag=True,
    default=None,
    help="A new cluster has users on, and a file with the token of the first one, admin.",
)
@click.option(
    "--setting",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_settings,
    help="A setting of the nodes of a new cluster; see qlog config show. May be repeated.",
)
@output_option
def start(directory: str | None, output: Format, **given: Any) -> int:
    """Make a cluster if there is none, start the nodes that do not run, wait until they serve.

    With several broker groups, g0, g1 and so on, each has its own nodes and log, and serves its
    share of the queues of every topic.

    \b
    Examples:
      qlog local start
      qlog local start --dir /tmp/try --nodes 1 --port 18080
      qlog local start --broker-groups 2
      qlog local start --replication sync_master && qlog ha status
      qlog local start --rocketmq
      qlog local start --users
      qlog local start -o json | jq -r '.[].address'
    """
    from deploy.local import default_directory
    from quorumlog.local_cluster import DIRECTORY_VARIABLE, STATE_FILE

    with _explained():
        with _alone(directory or default_directory()):
            is_new = not os.path.exists(os.path.join(directory or default_directory(), STATE_FILE))
            cluster = _made(directory, _Given(**given))
            with _undone(cluster) if is_new else nullcontext():
                started = cluster.start()
        with _undone(cluster) if is_new else nullcontext(), _progress() as progress:
            cluster.wait_ready(progress=progress)
        print_printout(_status(cluster), {"": _STATE_COLUMNS}, output)
    if output is Format.TABLE:
        done = f"started {_count(started)}" if started else "all nodes were running already"
        click.echo(f"\n{done}; clients connect to\n  {cluster.bootstrap}\nnext:")
        with suppress(CliError):  # Of the file of contexts; the next command says it.
            for what, end in diversions(cluster.bootstrap):
                click.echo(f"  # {what} sends commands elsewhere; this ends that:\n  {end}")
        if "--dir" in cluster.command("status"):
            variable = f"{DIRECTORY_VARIABLE}={shlex.quote(str(cluster.directory))}"
            click.echo(f"  # other commands find it by this:\n  export {variable}")
        if cluster.token_path is not None:
            variable = f"{TOKEN_FILE_VARIABLE}={shlex.quote(str(cluster.token_path))}"
            click.echo(f"  # users are on; by this you are the user admin:\n  export {variable}")
        first = ("qlog topic create orders",) if is_new else ()
        for words in (*first, *map(cluster.command, ("status", "stop"))):
            click.echo(f"  {words}")
    return ExitCode.OK


@local.command()
@dir_option
@click.option("--node", type=int, shell_complete=names.local_nodes, help="Only this node.")
def stop(directory: str | None, node: int | None) -> int:
    """Stop the nodes gracefully: leadership handed over, everything synced. Nothing is deleted.

    Does nothing when they do not run. A node that 'qlog serve' runs on a directory of the cluster
    is stopped, too.
    """
    with _explained():
        cluster = _opened(directory)
        chosen = cluster.node_ids if node is None else (node,)
        running = [n for n in chosen if cluster.is_alive(n)]
        killed = cluster.stop(*chosen)
    for one in killed:
        click.echo(f"node {one} did not end in time and was killed", err=True)
    idle = "nothing was running" if node is None else f"node {node} was not running"
    click.echo(f"stopped {_count(running)}" if running else idle)
    return ExitCode.OK


@local.command()
@dir_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(directory: str | None, yes: bool) -> int:
    """Delete a cluster that is stopped, with all its messages.

    What else is in its directory stays.

    \b
    Examples:
      qlog local stop && qlog local purge
      qlog local purge --dir /tmp/try --yes
    """
    with _explained():
        cluster = _opened(directory)
        cluster.check_stopped()
        confirm(f"Delete the cluster in {cluster.directory}, with all messages?", is_confirmed=yes)
        cluster.purge()
    click.echo(f"deleted the cluster in {cluster.directory}")
    return ExitCode.OK


def _is_healthy(states: list[dict[str, Any]]) -> bool:
    from deploy.local_nodes import REMOVED

    return all(state["is_ready"] or state["role"] == REMOVED for state in states)


def _is_led(states: list[dict[str, Any]]) -> bool:
    led = {state["broker_group"] for state in states if state["role"] == "leader"}
    return led == {state["broker_group"] for state in states}


@local.command()
@dir_option
@timeout_option
@watched(
    {
        "healthy": Condition("all nodes are ready", _is_healthy),
        "leader": Condition("each broker group has one", _is_led),
    }
)
def status(directory: str | None) -> Printout:
    """Show every node: whether it runs, its broker group, its role, its addresses.

    A node whose role is removed is no member of the cluster any more. Ends with 0 when all others
    are ready, else with 1.

    \b
    Keys of -o json:
      node_id, broker_group, state, role, is_ready, term, leader_id,
      commit_index, applied_index, address, peer_address, http_address, pid,
      directory, detail, cluster_id, console_address
    """
    with _explained():
        cluster = _opened(directory)
        printout = _status(cluster)
        lines = [
            f"The store of node N is in {cluster.directory}/node-N/data.",
            f"Its log is {cluster.directory}/node-N/log.",
        ]
        return dataclasses.replace(printout, lines=[*lines, *printout.lines])


@local.command()
@dir_option
@click.option("--node", type=int, shell_complete=names.local_nodes, help="The node to kill.")
@click.option("--leader", is_flag=True, help="Kill whichever node leads.")
@click.option("--broker-group", "group", help="Whose leader that is.  [default: the first one]")
@click.option("--all", "all_nodes", is_flag=True, help="Kill every node.")
def kill(
    directory: str | None, node: int | None, leader: bool, group: str | None, all_nodes: bool
) -> int:
    """End one node, or all, as a crash would (SIGKILL).

    \b
    Examples:
      qlog local kill --leader
      qlog local kill --node 2 && qlog local start
    """
    if leader + all_nodes + (node is not None) != 1:
        raise click.UsageError("Name one of --node, --leader and --all.")
    with _explained():
        cluster = _opened(directory)
        if all_nodes:
            click.echo(f"killed {_count([n for n in cluster.node_ids if cluster.kill(n)])}")
            return ExitCode.OK
        if node is None:
            if group is not None and group not in cluster.groups:
                names = ", ".join(cluster.groups)
                what = f"there is no broker group {group!r}"
                raise CliError(what, f"known are {names}", "name one", ExitCode.NOT_FOUND)
            node = cluster.leader_id(group)
            if not node:
                do = f"see {cluster.command('status')}"
                raise CliError("no node leads", "there is no quorum", do)
        _check_running(cluster, node)
        cluster.kill(node)
    click.echo(f"killed node {node}")
    return ExitCode.OK


@local.command()
@dir_option
@click.option("--node", type=int, shell_complete=names.local_nodes, help="Only this node.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the nodes are ready.")
@output_option
def restart(directory: str | None, node: int | None, no_wait: bool, output: Format) -> int:
    """Stop and start nodes in turn, so that the cluster continues to serve."""
    with _explained():
        cluster = _opened(directory)
        chosen = cluster.member_ids if node is None else (node,)
        stopped = [one for one in chosen if not cluster.is_alive(one)]
        if stopped:  # First, since the others may have no majority without them.
            cluster.start(*stopped)
            if not no_wait:
                with _progress() as progress:
                    cluster.wait_ready(progress=progress)
        for one in chosen:
            if one in stopped:
                continue
            cluster.restart(one)
            if not no_wait:
                with _progress() as progress:
                    cluster.wait_ready(progress=progress)
        print_printout(_status(cluster), {"": _STATE_COLUMNS}, output)
    return ExitCode.OK


@local.command()
@dir_option
@click.option(
    "--timeout",
    "timeout_ms",
    metavar="DURATION",
    type=Parsed("duration", parse_duration),
    default="2m",
    show_default=True,
    help="How long: 500ms, 10s, 5m.",
)
def wait(directory: str | None, timeout_ms: int) -> int:
    """Wait until all nodes that run are ready and one leads; print the id of the leader.

    With several broker groups each needs a leader, and that of the first one is printed.
    """
    with _explained(), _progress() as progress:
        click.echo(_opened(directory).wait_ready(timeout_ms, progress=progress))
    return ExitCode.OK


@local.command()
@dir_option
@click.option(
    "--node", type=int, shell_complete=names.local_nodes, required=True, help="The node to pause."
)
def pause(directory: str | None, node: int) -> int:
    """Keep a node from running (SIGSTOP), as a machine that hangs; connections stay open."""
    with _explained():
        cluster = _opened(directory)
        _check_running(cluster, node)
        cluster.pause(node)
    resume_it = f"{cluster.command('resume')} --node {node}"
    click.echo(f"paused node {node}; it goes on after {resume_it}")
    return ExitCode.OK


@local.command()
@dir_option
@click.option(
    "--node",
    type=int,
    shell_complete=names.local_nodes,
    required=True,
    help="The node that was paused.",
)
def resume(directory: str | None, node: int) -> int:
    """Let a node run again that was paused."""
    with _explained():
        cluster = _opened(directory)
        _check_running(cluster, node)
        cluster.resume(node)
    click.echo(f"node {node} runs again")
    return ExitCode.OK


# --- Parts ---


def _opened(directory: str | None) -> "LocalCluster":
    from deploy.local import LocalCluster, default_directory

    return LocalCluster.open(directory or default_directory())


def _check_running(cluster: "LocalCluster", node_id: int) -> None:
    """Raise LocalError `local.not_running` for a node whose process has ended."""
    from deploy.local import LocalError

    if not cluster.is_alive(node_id):
        what = f"node {node_id} of {cluster.directory} does not run"
        raise LocalError("local.not_running", what, f"start it: {cluster.command('start')}")


class _Given(NamedTuple):
    """Options of the cluster from the command line; None: not given."""

    nodes: int | None
    broker_groups: int | None
    port: int | None
    flush: str | None
    replication: str | None
    rocketmq: bool | None
    users: bool | None
    setting: dict[str, object] | None


@contextmanager
def _undone(cluster: "LocalCluster") -> Iterator[None]:
    """Take a new cluster back that cannot start: the next one there may have other settings.

    Not when a node is ready: it may have acknowledged messages."""
    from deploy.local import LocalError

    try:
        yield
    except LocalError as error:
        is_ended = error.code in ("local.died", "local.no_room", "local.port_taken")
        if is_ended and not any(state.is_ready for state in cluster.status()):
            cluster.stop()
            cluster.purge(keeps_logs=True)
            logs = f"{cluster.directory}/node-*/log"
            do = f"correct that, and start again: no node runs; {logs} has what they said"
            raise LocalError(error.code, error.what, do) from error
        raise


@contextmanager
def _alone(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Have one command at a time make and start a cluster: two of them would make two in one place.

    The lock is on the nearest directory above that is there and can be read."""
    from pathlib import Path

    above = Path(directory).absolute().parents
    place = next((one for one in above if os.access(one, os.R_OK)), None)
    if place is None:
        yield
        return
    held = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _made(directory: str | None, given: _Given) -> "LocalCluster":
    """Open the cluster, or make it. The options must fit a cluster that exists."""
    from deploy.local import LocalCluster, LocalError, default_directory

    root = directory or default_directory()
    try:
        cluster = LocalCluster.open(root)
    except LocalError as error:
        if error.code != "local.none":
            raise
        from node.config.load import ConfigError
        from qlog.server.settings import as_cli_error

        try:
            return LocalCluster.create(
                root,
                3 if given.nodes is None else given.nodes,
                groups=1 if given.broker_groups is None else given.broker_groups,
                flush=given.flush or "sync",
                replication=given.replication or "raft",
                base_port=given.port,
                rocketmq=bool(given.rocketmq),
                users=bool(given.users),
                settings=given.setting,
            )
        except ConfigError as wrong:
            raise as_cli_error(wrong) from wrong
    group_count = len(cluster.groups)
    node_count = len(cluster.node_ids) // group_count
    own = _Given(
        node_count,
        group_count,
        cluster.base_port,
        cluster.flush,
        cluster.replication,
        cluster.has_rocketmq,
        cluster.token_path is not None,
        setting=None,
    )
    differs = [
        f"--{name.replace('_', '-')}"
        for name, option, value in zip(_Given._fields, given, own, strict=True)
        if option is not None and option != value
    ]
    if differs:
        steps = ("stop", "purge") if any(map(cluster.is_alive, cluster.node_ids)) else ("purge",)
        raise CliError(
            f"{cluster.directory} holds a cluster that was made with another {differs[0]}",
            f"it has {node_count} nodes in each of {counted(group_count, 'broker group')}, "
            f"from port {cluster.base_port} on, flush={cluster.flush}, "
            f"replication={cluster.replication}"
            f"{', at RocketMQ ports' if cluster.has_rocketmq else ''}"
            f"{', with users' if cluster.token_path else ''}",
            f"start it without {differs[0]}, name another directory with --dir, or delete it with "
            f"its messages first: {' && '.join(map(cluster.command, steps))}",
        )
    return cluster


def _status(cluster: "LocalCluster") -> Printout:
    states = [dataclasses.asdict(state) for state in cluster.status()]
    for state in states:
        state["role"] = state["role"] or None
        for name in ("detail", "console_address"):
            state[name] = state[name] or None
        state["cluster_id"] = cluster.cluster_id
    rows = [{name: state[name] for name in _STATE_COLUMNS} for state in states]
    columns = ("broker_group", *_TABLE_COLUMNS) if len(cluster.groups) > 1 else _TABLE_COLUMNS
    people = with_roles(rows, cluster.replication)
    table = [TableRows(columns, [{name: row[name] for name in columns} for row in people])]
    code = ExitCode.OK if _is_healthy(rows) else ExitCode.FINDINGS
    consoles = [row for row in rows if row["console_address"]]
    lines = [
        f"The console of node {row['node_id']}: http://{row['console_address']}/"
        for row in consoles[:1]  # Each shows the whole cluster.
    ]
    return Printout(rows, table=table, lines=lines, exit_code=code)


def _count(nodes: list[int]) -> str:
    return counted(len(nodes), "node")


@contextmanager
def _explained() -> Iterator[None]:
    """Turn errors of the cluster into three lines."""
    from deploy.local import LocalError

    try:
        yield
    except LocalError as error:
        raise cli_error(error) from error


def cli_error(error: "LocalError") -> CliError:
    """Return an error of a local cluster as three lines."""
    code = exit_code_of(error.code, is_retryable=False, is_unknown=False)
    return CliError(error.what, error.why, error.do, code, error.code)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that overwrites a line on a terminal's stderr; elsewhere it writes lines."""
    with line_shown() if sys.stderr.isatty() else lines_shown() as show:
        yield show
