"""The parts of a local cluster: nodes, their states, ports, settings, environment.

Owns the form of these; must not start, end or wait for anything.
"""

import contextlib
import errno
import json
import os
import re
import ssl
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

from deploy.local_process import NodeProcess, free_ports, listen_error
from quorumlog.local_cluster import CAUSES, HOST, NODE_FILE, node_process, started_at
from store.durability.identity import lock_holder

ANY_HOST: Final = "0.0.0.0"
FIRST_GROUP: Final = "g0"
PORTS_PER_NODE: Final = 10
NAMESERVER_COUNT: Final = 3
FRAMED_PORT_DISTANCE: Final = 1_000
"""From the port of a node's client service to that of its framed one: the node's own default."""
CONSOLE_PORT_DISTANCE: Final = 4
"""To that of its pages for a browser."""
ROCKETMQ_NAMESERVER_PORT: Final = 9_876
"""Port of a name server of RocketMQ; further nodes have the next ones."""
ROCKETMQ_PORT: Final = 10_911
"""Port of a broker of RocketMQ, of the first broker name of the first node."""
ROCKETMQ_PORT_STEP: Final = 200
"""From the ports of one node to those of the next: room for 16 broker names."""
_PORT_MAX: Final = 65_535
_ASK_TIMEOUT_S: Final = 5.0
_LOG_LINES_READ: Final = 200
_ERROR_LINE: Final = re.compile(r"(?:error: |quorumlog: |(?=Fatal Python error: |\w+Error: ))(.*)")
"""Of a start that failed before there was a log, or of Python."""
_WHY_LINE: Final = re.compile(r"  why: (.*)")
_PREFIX: Final = "QUORUMLOG_"
_INHERITED: Final = (f"{_PREFIX}FAILPOINTS", f"{_PREFIX}TEST_")

_ANY_CERTIFICATE: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_ANY_CERTIFICATE.check_hostname, _ANY_CERTIFICATE.verify_mode = False, ssl.CERT_NONE
DIRECT: Final = urllib.request.build_opener(
    urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=_ANY_CERTIFICATE)
)
"""Asks a node itself, and no proxy that `http_proxy` names. `local.json` has the address of its
process, so its certificate proves no more."""

Relay = Callable[[int, int, int], int]
"""(source node, target node, port of the target's peer link): the port that the source dials."""

REMOVED: Final = "removed"
State = Literal["running", "paused", "stopped", "dead"]


class LocalError(Exception):
    """A command on a local cluster cannot be done. Says what, why and what to do."""

    retryable = False
    outcome = "not_applied"

    def __init__(self, code: str, what: str, do: str) -> None:
        assert code in CAUSES, code
        super().__init__(code, what, do)
        self.code, self.what, self.do = code, what, do

    @property
    def why(self) -> str:
        """The cause in words."""
        return CAUSES[self.code]

    def __str__(self) -> str:
        return f"{self.what}; {self.do}"


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of one node. `role` and the fields below it are empty unless it answers.

    `role` is REMOVED for one that the leader of its group no longer counts as a member."""

    node_id: int
    state: State
    """`dead`: it ended on its own. `stopped`: by a command or SIGTERM, or it was never started."""
    pid: int | None
    address: str
    peer_address: str
    http_address: str
    directory: str
    broker_group: str = FIRST_GROUP
    role: str = ""
    term: int | None = None
    leader_id: int | None = None
    is_ready: bool = False
    commit_index: int | None = None
    applied_index: int | None = None
    members: Sequence[int] = ()
    """Members of its group, as it knows them; empty in master-slave mode."""
    detail: str = ""
    """What it says of its readiness; how it ended."""
    console_address: str = ""
    """Address of its pages for a browser; empty: it has none, or does not run."""


@dataclass(frozen=True, slots=True)
class NodeHost:
    """Another host than this one, as its nodes are reached and started there."""

    name: str
    """Name that all nodes and clients resolve."""
    status_name: str
    launcher: Sequence[str]
    """Words before a command that have it run there, in the same process."""


@dataclass(slots=True)
class LocalNode:
    """One node as `local.json` has it."""

    address_port: int
    peer_port: int
    http_port: int
    nameserver_port: int = 0
    """Port of the name server's replica in it; 0: there is none."""
    group: str = FIRST_GROUP
    host: str = HOST
    """Host at which clients and peers reach it."""
    status_host: str = HOST
    """Host at which it answers requests for its status, by a way of its own."""
    is_removed: bool = False
    """Whether its cluster had removed it when it was stopped."""
    is_killed: bool = False
    """Whether a command has killed its last process."""
    process: NodeProcess | None = None

    @property
    def framed_port(self) -> int:
        """Port of the framed client service, unless it is taken; 0: any free one."""
        port = self.address_port + FRAMED_PORT_DISTANCE
        return port if port <= _PORT_MAX else 0

    @property
    def ports(self) -> tuple[int, ...]:
        """All ports on which the node listens."""
        own_ports = (self.address_port, self.peer_port, self.http_port, self.nameserver_port)
        return tuple(filter(None, own_ports))

    def to_json(self) -> dict[str, object]:
        process = None if self.process and self.process.is_strange else self.process
        saved: dict[str, object] = {name: getattr(self, name) for name in self._saved()}
        return saved | {"pid": process and process.pid, "started": process and process.started}

    @classmethod
    def _saved(cls) -> list[str]:
        return [field.name for field in fields(cls) if field.name != "process"]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "LocalNode":
        node = cls(**{name: value[name] for name in cls._saved() if name in value})
        if value["pid"] is not None:
            node.process = NodeProcess(value["pid"], value["started"])
        return node

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.is_alive


def adopt(node: LocalNode, data: Path) -> None:
    """Let a process that another command started on the node's data directory be that node's."""
    pid = lock_holder(str(data))
    # A repair of the store has the lock, too, and is no node.
    with contextlib.suppress(ProcessLookupError):
        if pid and node_process(data).get("pid") == pid:
            node.process = NodeProcess(pid, started_at(pid), is_strange=True)


def node_toml(
    node_id: int,
    nodes: Mapping[int, LocalNode],
    directory: Path,
    cluster_id: str,
    settings: Mapping[str, object],
    relay: Relay | None = None,
) -> str:
    """Return the settings file of a node; `settings` win over what a local cluster chooses,
    and None leaves a setting out."""
    own, is_off = nodes[node_id], settings.get("nameserver_listen") == "off"
    listen_host = HOST if own.host == HOST else ANY_HOST
    values: dict[str, object] = {
        "node_id": node_id,
        "cluster_id": cluster_id,
        # The first one is the default; builds before the name say `group`.
        **({} if own.group == FIRST_GROUP else {"broker_group": own.group}),
        "directory": str(directory),
        "listen": f"{listen_host}:{own.address_port}",
        "peer_listen": f"{listen_host}:{own.peer_port}",
        "http_listen": f"{listen_host}:{own.http_port}",
        "console_listen": f"{listen_host}:{own.address_port + CONSOLE_PORT_DISTANCE}",
        **({} if is_off else _nameserver_settings(own, nodes.values())),
        **settings,
    }
    # Texts, numbers, booleans and lists are written in TOML as in JSON.
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items() if value is not None]
    for other, node in nodes.items():
        if node.group != own.group:
            continue
        dialled = node.peer_port
        if relay is not None and other != node_id:
            dialled = relay(node_id, other, dialled)
        lines += [
            "",
            f"[peers.{other}]",
            f'address = "{node.host}:{node.address_port}"',
            f'peer_address = "{node.host}:{dialled}"',
        ]
    return "\n".join([*lines, ""])


def rocketmq_ports(number: int) -> tuple[int, int]:
    """Return RocketMQ's own ports of a node, counted from 0: name server and broker."""
    return ROCKETMQ_NAMESERVER_PORT + number, ROCKETMQ_PORT + ROCKETMQ_PORT_STEP * number


def rocketmq_settings(number: int) -> dict[str, object]:
    """Return the settings of a node, counted from 0, that is at RocketMQ's own ports."""
    nameserver_port, broker_port = rocketmq_ports(number)
    return {
        "rocketmq_nameserver_listen": f"{HOST}:{nameserver_port}",
        "rocketmq_listen": f"{HOST}:{broker_port}",
        "rocketmq_auto_topics": True,
    }


def place_nameserver(nodes: Iterable[LocalNode]) -> None:
    """Leave a replica of the name server in three nodes, of different groups where there are."""
    seen: dict[str, int] = {}
    rank: list[tuple[int, str, LocalNode]] = []
    for node in nodes:
        seen[node.group] = seen.get(node.group, 0) + 1
        rank.append((seen[node.group], node.group, node))
    rank.sort(key=lambda entry: entry[:2])
    for _, _, node in rank[NAMESERVER_COUNT:]:
        node.nameserver_port = 0


def _nameserver_settings(own: LocalNode, nodes: Iterable[LocalNode]) -> dict[str, object]:
    hosts = [node for node in nodes if node.nameserver_port]
    if not own.nameserver_port:
        return {"nameserver_servers": [f"{HOST}:{node.address_port}" for node in hosts]}
    members = [f"{HOST}:{node.nameserver_port}" for node in hosts]
    return {
        "nameserver_listen": f"{HOST}:{own.nameserver_port}",
        "nameserver_members": members,
    }


def choose_ports(nodes: int, base_port: int | None) -> list[tuple[int, int, int, int]]:
    """Return the ports of each node: client service, peer link, HTTP, name server. Those of the
    framed client service and of the console are free as well."""
    if base_port is None:
        addresses = free_ports(nodes, beside=[CONSOLE_PORT_DISTANCE, FRAMED_PORT_DISTANCE])
        free = free_ports(3 * nodes)
        return list(zip(addresses, free[0::3], free[1::3], free[2::3], strict=True))
    ports = [base_port + PORTS_PER_NODE * n for n in range(nodes)]
    if base_port < 1 or ports[-1] + CONSOLE_PORT_DISTANCE > _PORT_MAX:
        what = f"ports {base_port} to {ports[-1] + CONSOLE_PORT_DISTANCE} do not exist"
        raise LocalError("local.bad_port", what, "use a --port from 1024 to 65000")
    for first in ports:
        check_free(range(first, first + CONSOLE_PORT_DISTANCE + 1), "use another --port, or none")
    return [(first, first + 1, first + 2, first + 3) for first in ports]


def check_free(ports: Iterable[int], do: str, *, whose: str = "") -> None:
    """Raise LocalError `local.port_taken` for the first of these ports that is taken."""
    for port in ports:
        if (number := listen_error(port)) == errno.EACCES:
            what = f"this user may not listen on port {port}{whose}"
            raise LocalError("local.bad_port", what, "use a --port from 1024 to 65000")
        if number:
            what = f"port {port}{whose} is used by another process"
            raise LocalError("local.port_taken", what, do)


def inherited_environment() -> dict[str, str]:
    """Return the environment without settings: those of a local node are in its file."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_PREFIX) or name.startswith(_INHERITED)
    }


def page(address: str, path: str, directory: Path, timeout_s: float) -> bytes:
    """Return a page of the node of a directory, with its token if it has users. Raises OSError."""
    node = {}
    with contextlib.suppress(OSError, ValueError):
        node = json.loads((directory / NODE_FILE).read_text("utf-8"))
    request = urllib.request.Request(f"{node.get('http_scheme', 'http')}://{address}{path}")
    if "http_token" in node:
        request.add_header("authorization", f"Bearer {node['http_token']}")
    with DIRECT.open(request, timeout=timeout_s) as answer:
        content: bytes = answer.read()
        return content


def ask(address: str, path: str, directory: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(page(address, path, directory, _ASK_TIMEOUT_S))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def end_of(log: Path, exit_code: int | None) -> str:
    """Return in words how a process ended; None: its exit code is not known.

    A node that ends by an error has it as its last line: the error of its log, or of its start."""
    if exit_code is not None and exit_code < 0:
        return f"killed (signal {-exit_code})"
    ended = "ended" if exit_code is None else f"exited with code {exit_code}"
    if said := _last_error(log):
        return f"{ended}: {said}"
    return f"{ended}, as by a signal: its log has no error" if exit_code is None else ended


def has_stopped(log: Path) -> bool:
    """Whether the last line of a log says that the node stopped as it should."""
    return '"event": "stopped"' in "".join(_last_lines(log)[-1:])


def _last_lines(log: Path) -> list[str]:
    try:
        return log.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES_READ:]
    except FileNotFoundError:
        return []


def _last_error(log: Path) -> str:
    lines = _last_lines(log)
    why: list[str] = []
    for line in reversed(lines):
        try:
            document = json.loads(line)
            is_error = document["level"] in ("error", "critical")
        except (ValueError, TypeError, KeyError):
            if match := _WHY_LINE.match(line):
                why = [match[1]]
            elif match := _ERROR_LINE.match(line):
                return "; ".join([match[1], *why])
            continue
        names = [name for name in ("event", "error", "reason") if name in document]
        return ": ".join(str(document[name]) for name in names) if is_error else ""
    return ""
