"""`qlog nameserver`: run a standalone replica of the name server; status, routes and values.

Owns the options and the printing; the work is `quorumlog.cluster.nameserver`'s, the life of a
replica `node.nameserver_process`'s.
"""

import dataclasses
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qlog.command_decorators import Printout, TableRows, command_with
from qlog.connection import CALL_TIMEOUT_MS, addresses, call_timeout_ms, credentials, run, token
from qlog.output import Row
from qlog.server_program import enter_server
from quorumlog.command_errors import ExitCode
from quorumlog.foreign_text import shown_json
from quorumlog.standard_output import styled

if TYPE_CHECKING:
    from quorumlog.cluster.nameserver import ListedTopicShare, NameServers

_Answer = TypeVar("_Answer")
_STATUS_COLUMNS = (
    "server", "node_id", "broker_group", "state", "address", "leader", "term", "commit_index",
    "applied_index", "journal_size_bytes", "directory_size_bytes", "directory_size_bytes_max",
    "refused_connections", "refused_reports", "is_encrypted", "failure", "problem",
)  # fmt: skip
_SHORT_COLUMNS = (
    "server", "node_id", "broker_group", "state", "address", "leader", "term", "commit_index",
    "failure", "problem",
)  # fmt: skip
_SHARE_COLUMNS = (
    "broker_group", "kind", "cluster", "master_id", "epoch", "read_queue_count",
    "write_queue_count", "permission", "in_sync",
)  # fmt: skip
_BROKER_COLUMNS = (
    "broker_group", "broker_id", "role", "address", "ha_address", "epoch", "silent_ms",
)  # fmt: skip


@click.group(invoke_without_command=True)
@click.option("--config", "file", metavar="FILE", help="Settings in TOML, as of a node.")
@click.option("--directory", metavar="DIR", help="Where its files are kept; for it alone.")
@click.option("--listen", metavar="HOST:PORT", help="Client service (gRPC).")
@click.option("--cluster-id", metavar="NAME", help="Of the nodes that it serves.")
@click.option("--secret-file", metavar="FILE", help="Holds the secret of these nodes.")
@click.option("--nameserver-listen", metavar="IP:PORT", help="For the other replicas.")
@click.option("--nameserver-members", metavar="IP:PORT,...", help="All replicas, this one too.")
@click.option("--nameserver-secret-file", metavar="FILE", help="Holds the replicas' password.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
def nameserver(file: str | None, **flags: Any) -> int:
    """Run a replica of the name server without a log; or ask the name server.

    Without a command it runs until it gets SIGTERM, SIGINT or SIGHUP. Nodes have a replica
    inside when their setting nameserver_listen says so; this is for a machine that holds no
    log. Settings may also come from the file and the environment, as those of `qlog serve` do;
    without a password only loopback addresses are allowed. Nodes that have no replica tell it
    where they are, and are believed when they have the same secret-file and cluster-id; without
    a secret, only those that the file names as `peers` of `broker_group`. With users = on it
    takes calls of these nodes and of the user of users_file alone.

    \b
    Examples:
      qlog nameserver --directory ns3 --listen 127.0.0.1:8083 \\
        --nameserver-listen 127.0.0.1:9876 --cluster-id orders \\
        --secret-file node.secret
      qlog nameserver --config nameserver.toml
      qlog nameserver status
      qlog nameserver route orders -o json
    """
    if click.get_current_context().invoked_subcommand is not None:
        return ExitCode.OK
    enter_server()
    from node.config.load import ConfigError
    from node.nameserver_process import load_settings, run
    from node.runtime.fail_stop import EXIT_BAD_CONFIG
    from qlog.server.settings import as_cli_error

    try:
        settings = load_settings(file, flags)
    except ConfigError as error:
        click.echo(str(as_cli_error(error)), err=True)
        return EXIT_BAD_CONFIG
    sys.stderr = styled(sys.stderr)  # The log has its own escapes, and colours.
    return run(settings)


def _ask(
    server: str | None, call: "Callable[[NameServers], Coroutine[Any, Any, _Answer]]"
) -> _Answer:
    from quorumlog.cluster.nameserver import NameServers

    async def act() -> _Answer:
        async with NameServers(
            addresses(server),
            timeout_ms=call_timeout_ms(CALL_TIMEOUT_MS),
            credentials=credentials(server),
            token=token(server),
        ) as client:
            return await call(client)

    return run(act())


_command = command_with(_ask)


@nameserver.command()
@_command
async def status(client: "NameServers") -> Printout:
    """Show every replica and every broker group that is known.

    state is leader, follower, no_leader, joining (it counts for nothing), stopped, failed, off (the
    node has no replica) or down; failure says why. problem says why the directory does not know
    that node as it is. problems has the broker groups that can elect no master, or have had no
    master for 15 s, and why.

    \b
    Keys of -o json:
      leader, healthy, problems, replicas, broker_groups
      problems: by broker group, a text
      replicas: server, node_id, broker_group, state, address, leader, term,
        commit_index, applied_index, journal_size_bytes, directory_size_bytes,
        directory_size_bytes_max, refused_connections, refused_reports,
        is_encrypted, failure, problem
      broker_groups: broker_group, kind, cluster, master_id, epoch,
        read_queue_count, write_queue_count, permission, brokers (as those of
        'qlog nameserver route'), in_sync

    \b
    Examples:
      qlog nameserver status
      qlog nameserver status -o json | jq .leader

    Ends with 0 when there is a leader, every replica runs and no broker group has a problem, else
    with 1.
    """
    replicas = await client.status()
    is_up = any(one.state not in ("off", "down", "failed", "stopped") for one in replicas)
    groups = await client.broker_groups() if is_up else []
    leader = next((one.leader for one in replicas if one.leader), None)
    problems = {k: text for one in replicas for k, text in one.broker_group_problems.items()}
    is_healthy = leader is not None and all(
        one.state in ("leader", "follower", "off") for one in replicas
    )
    is_healthy = is_healthy and not problems
    rows = [
        {name: getattr(one, name) for name in _STATUS_COLUMNS}
        | {"leader": one.leader or None, "node_id": one.node_id or None}
        for one in replicas
    ]
    shown = "; ".join(text for _, text in sorted(problems.items())) or None
    head = {"leader": leader, "healthy": is_healthy, "problems": problems}
    short = [{key: row[key] for key in _SHORT_COLUMNS} for row in rows]
    return Printout(
        {**head, "replicas": rows, "broker_groups": [_share_row(group) for group in groups]},
        table=[{**head, "problems": shown}, TableRows(_SHORT_COLUMNS, short), _broker_rows(groups)],
        exit_code=ExitCode.OK if is_healthy else ExitCode.FINDINGS,
    )


@nameserver.command()
@click.argument("topic")
@click.option("--rocketmq", is_flag=True, help="Print RocketMQ's TopicRouteData instead.")
@_command
async def route(client: "NameServers", topic: str, rocketmq: bool) -> Printout:
    """Show which broker groups serve a topic, with how many queues, and where their brokers are.

    \b
    Keys of -o json:
      broker_group, kind, cluster, master_id, epoch, read_queue_count,
      write_queue_count, permission, brokers, in_sync
      brokers: broker_id, address, ha_address, role, epoch, silent_ms

    \b
    Examples:
      qlog nameserver route orders
      qlog nameserver route orders -o json | jq '.[].master_id'
      qlog nameserver route orders --rocketmq

    Ends with 0 when a broker group serves it, else with 1.
    """
    answer = await client.route(topic)
    code = ExitCode.OK if answer.shares else ExitCode.FINDINGS
    if rocketmq:
        click.echo(shown_json(answer.rocketmq_json))
        click.get_current_context().exit(code)
    rows = [_share_row(share) for share in answer.shares]
    lines = [{name: row[name] for name in _SHARE_COLUMNS} for row in rows]
    table = TableRows(_SHARE_COLUMNS, lines), _broker_rows(answer.shares)
    return Printout(rows, table=table, exit_code=code)


@nameserver.command()
@click.argument("namespace")
@click.argument("key", required=False)
@_command
async def get(client: "NameServers", namespace: str, key: str | None) -> list[Row]:
    """Show one value of a namespace, or all of them.

    \b
    Keys of -o json:
      key, value

    \b
    Examples:
      qlog nameserver get ORDER_TOPIC_CONFIG
      qlog nameserver get ORDER_TOPIC_CONFIG orders -o json
    """
    if key is not None:
        return [{"key": key, "value": await client.get(namespace, key)}]
    values = await client.get_all(namespace)
    return [{"key": name, "value": value} for name, value in values.items()]


@nameserver.command()
@click.argument("namespace")
@click.argument("key")
@click.argument("value")
@click.option("--expected", metavar="VALUE", help="Only if this is the value now.")
@_command
async def put(
    client: "NameServers", namespace: str, key: str, value: str, expected: str | None
) -> Row:
    """Set a value.

    \b
    Keys of -o json:
      namespace, key, value

    \b
    Examples:
      qlog nameserver put ORDER_TOPIC_CONFIG orders 'g0:4;g1:4'
      qlog nameserver put app limit 20 --expected 10
    """
    await client.put(namespace, key, value, expected=expected)
    return {"namespace": namespace, "key": key, "value": value}


@nameserver.command()
@click.argument("namespace")
@click.argument("key")
@_command
async def delete(client: "NameServers", namespace: str, key: str) -> Row:
    """Remove a value.

    \b
    Keys of -o json:
      namespace, key, deleted

    \b
    Examples:
      qlog nameserver delete app limit
    """
    await client.delete(namespace, key)
    return {"namespace": namespace, "key": key, "deleted": True}


def _share_row(share: "ListedTopicShare") -> dict[str, Any]:
    row = dataclasses.asdict(share)
    return {**row, "master_id": row["master_id"] or None}


def _broker_rows(shares: "list[ListedTopicShare] | tuple[ListedTopicShare, ...]") -> TableRows:
    rows = [
        {"broker_group": share.broker_group, **dataclasses.asdict(broker)}
        for share in shares
        for broker in share.brokers
    ]
    return TableRows(_BROKER_COLUMNS, rows)
