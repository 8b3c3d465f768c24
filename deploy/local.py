"""A cluster on this machine without containers: one process a node, one directory for everything.

Owns the directory's layout and the allowed order of commands: `local.json` lists the nodes and
their last processes, `node-N/` has a node's settings, its log of events and its data. Nodes outlive
the command that started them. Must not know the inside of a node: it starts processes, sends
signals and asks over HTTP.
"""

import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from deploy.local_nodes import (
    REMOVED,
    LocalError,
    LocalNode,
    NodeHost,
    NodeState,
    Relay,
    State,
    adopt,
    ask,
    check_free,
    choose_ports,
    end_of,
    has_stopped,
    inherited_environment,
    node_toml,
    place_nameserver,
    rocketmq_ports,
    rocketmq_settings,
)
from deploy.local_process import (
    NodeProcess,
    is_free,
    make_directory,
    make_missing,
    open_private,
    spawn,
    write_private,
)
from quorumlog import local_cluster
from quorumlog.local_cluster import (
    DIRECTORY_VARIABLE,
    HOME_DIRECTORY,
    HOST,
    STATE_FILE,
    TOKEN_FILE,
    DamagedStateError,
    node_process,
    read_state,
)
from quorumlog.user_files import UserFileError, read_user_text
from quorumlog.user_tokens import digest_of, first_user_text, new_token
from store.errors import StoreFullError

LOCK_FILE: Final = "lock"
SECRET_FILE: Final = "secret"
FIRST_USER_FILE: Final = "first-user.json"
USERS_KEY_FILE: Final = "users.key"
NAMESERVER_SECRET_FILE: Final = "nameserver.secret"
_OWN_FILES: Final = {
    "secret_file": SECRET_FILE,
    "users_file": FIRST_USER_FILE,
    "users_key_file": USERS_KEY_FILE,
    "nameserver_secret_file": NAMESERVER_SECRET_FILE,
}
"""By the setting that names it."""
LINK_FAULTS_FILE: Final = "link-faults.json"
LINK_FAULTS_VARIABLE: Final = "QUORUMLOG_TEST_LINK_FAULTS"
ANY_FRAMED_PORT: Final[Mapping[str, str]] = {"QUORUMLOG_LISTEN_FRAMED": f"{HOST}:0"}
NODE_COUNT_MAX: Final = 9
"""Limit of the nodes of a group."""
NODE_TOTAL_MAX: Final = 16
"""Limit of the nodes of all groups: a client takes at most that many addresses."""
READY_TIMEOUT_MS: Final = 120_000
STOP_TIMEOUT_MS: Final = 60_000
__all__ = ["LocalCluster", "LocalError", "NodeState", "default_directory"]

DEFAULTS: Final[Mapping[str, object]] = {"file_size_bytes": "64MiB"}
"""Settings that differ from a node's defaults: a trial must not take gigabytes at once."""
_POLL_S: Final = 0.05
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NO_ROOM: Final = StoreFullError.text.rpartition(", ")[2]
"""How a node ends its word that its disk has no room."""

Progress = Callable[[str], None]


def default_directory() -> Path:
    """Return the default directory of a person's cluster. Raises LocalError `local.no_home`."""
    try:
        return local_cluster.default_directory()
    except RuntimeError:
        what = f"user {os.getuid()} has no home directory, and HOME is not set"
        do = f"set HOME, or name a directory with --dir or {DIRECTORY_VARIABLE}"
        raise LocalError("local.no_home", what, do) from None


def local_command(verb: str, directory: Path) -> str:
    """Return the words of `qlog local VERB` for the cluster of a directory; a shell takes them."""
    with contextlib.suppress(LocalError):
        if directory == default_directory().absolute():
            return f"qlog local {verb}"
    return f"qlog local {verb} --dir {shlex.quote(str(directory))}"


class LocalCluster:
    """The cluster of one directory. In a `with` it is started and ready, and stopped at the end."""

    def __init__(self, directory: Path, cluster_id: str, nodes: dict[int, LocalNode]) -> None:
        """Make the object; for `create` and `open`."""
        self.directory: Final = directory
        self.cluster_id: Final = cluster_id
        self._nodes: Final = nodes
        self._launchers: Mapping[int, Sequence[str]] = {}
        """Words before the command of a node that runs on another host."""

    @classmethod
    def create(
        cls,
        directory: str | os.PathLike[str],
        nodes: int = 3,
        *,
        groups: int = 1,
        flush: str = "sync",
        replication: str = "raft",
        base_port: int | None = None,
        rocketmq: bool = False,
        users: bool = False,
        settings: Mapping[str, object] | None = None,
        relay: Relay | None = None,
        hosts: Sequence[NodeHost] = (),
    ) -> Self:
        """Make the directory and the settings of each node; starts no process.

        Each of the `groups` (g0, g1...) has `nodes` nodes, which are numbered through. With
        `replication` `sync_master` or `async_master` the first node of each group is its first
        master, the others are slaves. Several groups share a secret, in the file SECRET_FILE: their
        nodes believe each other by it. With `rocketmq` they are at RocketMQ's own ports, too, name
        server and broker, and a send makes its topic. With `users` they are on, and TOKEN_FILE has
        the token of the user `admin`. `settings` go into every node's file. `relay`
        puts a relay between the nodes. With `hosts`, one for each node, nodes run there, know each
        other by their names, and share a secret as well. Raises LocalError: `local.exists`,
        `local.bad_count`, `local.bad_directory`, `local.port_taken`; ConfigError for settings that
        a node refuses, before it makes any file.
        """
        root = Path(directory).absolute()
        try:
            str(root).encode()
        except UnicodeEncodeError:
            what = f"the path {os.fsencode(root)!r} is no UTF-8"
            do = "files of settings name it, and are UTF-8; use another --dir"
            raise LocalError("local.bad_directory", what, do) from None
        if _CONTROL.search(str(root)):
            what = f"the path {str(root)!r} has control characters"
            raise LocalError("local.bad_directory", what, "no text can show it; use another --dir")
        if (root / STATE_FILE).exists():
            what = f"{root} holds a local cluster already"
            raise LocalError("local.exists", what, "start that one, or use another --dir")
        if not 1 <= nodes <= NODE_COUNT_MAX:
            what = f"a local cluster of {nodes} nodes"
            raise LocalError("local.bad_count", what, f"use 1 to {NODE_COUNT_MAX}")
        if not nodes <= nodes * groups <= NODE_TOTAL_MAX:
            what = f"a local cluster of {groups} groups of {nodes}"
            raise LocalError("local.bad_count", what, f"use at most {NODE_TOTAL_MAX} nodes")
        if len(hosts) not in (0, nodes * groups):
            what = f"{len(hosts)} hosts for {nodes * groups} nodes"
            raise LocalError("local.bad_count", what, "name one host for each node, or none")
        ports = choose_ports(nodes * groups, base_port)
        if rocketmq:
            for number in range(nodes * groups):
                do = "end that process, or leave out --rocketmq"
                check_free(rocketmq_ports(number), do, whose=", one of RocketMQ's own,")
        made = {n + 1: LocalNode(*found, group=f"g{n // nodes}") for n, found in enumerate(ports)}
        for node, host in zip(made.values(), hosts, strict=False):
            node.host, node.status_host = host.name, host.status_name
        place_nameserver(made.values())
        cluster = cls(root, f"local-{os.urandom(4).hex()}", made)
        cluster._launchers = {n: host.launcher for n, host in zip(made, hosts, strict=False)}
        shared = dict(settings or {})
        has_secret = groups > 1 or bool(hosts) or users
        own_files = {name: str(root / file) for name, file in _OWN_FILES.items()}
        if users:
            shared = {"users": "on", **own_files, **shared}
        elif has_secret:  # Nodes tell the name server where they are, or others dial them.
            shared = {"secret_file": own_files["secret_file"], **shared}
        texts = {}
        for node_id in cluster._nodes:
            is_first = (node_id - 1) % nodes == 0
            own: dict[str, object] = {}
            if replication != "raft":
                own |= {"replication": replication if is_first else "slave"}
                own |= {"copies": min(2, nodes)}
            if rocketmq:
                own |= rocketmq_settings(node_id - 1)
            given = {**DEFAULTS, "flush": flush, **own, **shared}
            data = cluster.node_directory(node_id) / "data"
            texts[node_id] = node_toml(
                node_id, cluster._nodes, data, cluster.cluster_id, given, relay
            )
            _check_settings(texts[node_id], settings or {})
        if has_secret:
            _write_own_files(root, users=users)
        for node_id, text in texts.items():
            make_directory(cluster.node_directory(node_id))
            write_private(cluster.node_directory(node_id) / "node.toml", text)
        cluster._save()
        return cluster

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> Self:
        """Open the cluster of a directory. Raises LocalError `local.none`, `local.damaged`."""
        root = Path(directory).absolute()
        try:
            state = read_state(root)
        except DamagedStateError as error:
            raise LocalError(error.code, error.what, error.do) from error
        if state is None:
            do = f"run '{local_command('start', root)}', or name its directory with --dir"
            raise LocalError("local.none", f"there is no local cluster in {root}", do)
        nodes = {int(n): LocalNode.from_json(node) for n, node in state["nodes"].items()}
        cluster = cls(root, state["cluster_id"], nodes)
        for node_id, node in nodes.items():
            if node.host == HOST and not node.is_alive:
                adopt(node, cluster.node_directory(node_id) / "data")
        return cluster

    # --- Facts ---

    @property
    def node_ids(self) -> tuple[int, ...]:
        """Ids of all nodes, running or not."""
        return tuple(self._nodes)

    @property
    def member_ids(self) -> tuple[int, ...]:
        """Ids of the nodes, without those that were removed from the cluster before a stop."""
        return tuple(n for n, node in self._nodes.items() if not node.is_removed)

    @property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """The nodes of each broker group, by its name."""
        nodes_of_group: dict[str, tuple[int, ...]] = {}
        for node_id, node in self._nodes.items():
            nodes_of_group[node.group] = (*nodes_of_group.get(node.group, ()), node_id)
        return nodes_of_group

    @property
    def bootstrap(self) -> str:
        """Addresses of all nodes, for `quorumlog.connect`."""
        return ",".join(self.address(node_id) for node_id in self._nodes)

    @property
    def base_port(self) -> int:
        """Port of the first node's client service."""
        return min(self._nodes.items())[1].address_port

    @property
    def flush(self) -> str:
        """`sync` or `async`, by the first node's settings."""
        return self._setting("flush", "sync")

    @property
    def has_rocketmq(self) -> bool:
        """Whether the nodes are at RocketMQ's own ports, too."""
        return self._setting("rocketmq_listen", "") != ""

    @property
    def replication(self) -> str:
        """`raft`, or the role with which the first master of each group began."""
        return self._setting("replication", "raft")

    @property
    def token_path(self) -> Path | None:
        """File with the token of the user `admin`; None: users were not asked for."""
        path = self.directory / TOKEN_FILE
        return path if path.exists() else None

    def address(self, node_id: int) -> str:
        """Return the address of a node's client service."""
        node = self._node(node_id)
        return f"{node.host}:{node.address_port}"

    def framed_address(self, node_id: int) -> str:
        """Return the address of a node's framed client service, which is another one if the port
        was taken when the node started: its routes know."""
        node = self._node(node_id)
        return f"{node.host}:{node.framed_port}"

    def node_directory(self, node_id: int) -> Path:
        """Return the directory of a node: settings, data (`data`) and log lines (`log`)."""
        return self.directory / f"node-{node_id}"

    def log_path(self, node_id: int) -> Path:
        """Return the path of the node's log lines, of all its runs."""
        return self.node_directory(node_id) / "log"

    def exit_code(self, node_id: int) -> int | None:
        """Return the last process's exit code; None if it runs or another command started it."""
        process = self._node(node_id).process
        return None if process is None else process.exit_code

    def process(self, node_id: int) -> NodeProcess | None:
        """Return the node's last process; None if it never ran, or another command stopped it."""
        return self._node(node_id).process

    def command(self, verb: str) -> str:
        """Return the words of `qlog local VERB` for this cluster."""
        return local_command(verb, self.directory)

    def is_alive(self, node_id: int) -> bool:
        """Whether the node's process runs, paused or not."""
        return self._node(node_id).is_alive

    def status(self) -> list[NodeState]:
        """Ask every node at once, and return their states.

        A node follows no leader whose process has ended, whatever it says itself."""
        with ThreadPoolExecutor(len(self._nodes)) as pool:
            states = {state.node_id: state for state in pool.map(self._state_of, self._nodes)}
        for node_id, state in states.items():
            leader = states.get(state.leader_id or 0)
            if leader is not None and leader.state in ("dead", "stopped"):
                detail = f"node {leader.node_id} led, and has ended"
                states[node_id] = replace(state, leader_id=0, detail=detail)
        for leader in [s for s in states.values() if s.role == "leader" and s.is_ready]:
            for node_id in self.groups[leader.broker_group] if leader.members else ():
                self._nodes[node_id].is_removed = node_id not in leader.members
        for node_id, node in self._nodes.items():
            if node.is_removed:
                detail = "no member of the cluster any more"
                states[node_id] = replace(states[node_id], role=REMOVED, detail=detail)
        return list(states.values())

    def leader_id(self, group: str | None = None) -> int:
        """Return the ready leader of a group (default: the first one); 0: there is none."""
        chosen = self.groups[group] if group is not None else next(iter(self.groups.values()))
        states = [s for s in self.status() if s.node_id in chosen]
        leaders = [s for s in states if s.role == "leader" and s.is_ready]
        return max(leaders, key=lambda s: s.term or 0).node_id if leaders else 0

    # --- Commands ---

    def start(
        self,
        *node_ids: int,
        environment: Mapping[str, str] | None = None,
        module: str = "node",
    ) -> list[int]:
        """Start these nodes, by default all members; return those that did not run before.

        Returns at once: see `wait_ready`. `environment` is added to that of the nodes. `module` is
        run as `python -m` with the arguments of `node`: one that runs a node and looks into it.
        Raises LocalError `local.port_taken`, `local.other_host`.
        """
        with self._locked():
            chosen = [n for n in node_ids or self.member_ids if not self._node(n).is_alive]
            for node_id in chosen:
                node = self._node(node_id)
                if node.host != HOST and node_id not in self._launchers:
                    what = f"node {node_id} runs on host {node.host}"
                    do = "start it by the command that made this directory"
                    raise LocalError("local.other_host", what, do)
                if node.host == HOST:
                    own = rocketmq_ports(node_id - 1) if self.has_rocketmq else ()
                    do = "end that process, or make another cluster with --dir"
                    check_free((*node.ports, *own), do, whose=f" of node {node_id}")
            is_chosen = self._setting("listen_framed", "") != ""
            for node_id in chosen:
                self._node(node_id).is_killed = False
                make_directory(self.node_directory(node_id) / "data")
                # A directory that was made before there was a framed port did not choose one.
                port = self._node(node_id).framed_port
                has_port = is_chosen or not port or is_free(port)
                self._node(node_id).process = spawn(
                    module,
                    ["--config", str(self.node_directory(node_id) / "node.toml")],
                    log=self.log_path(node_id),
                    launcher=self._launchers.get(node_id, ()),
                    environment={
                        **inherited_environment(),
                        # Without effect until `qlog chaos` makes the file.
                        LINK_FAULTS_VARIABLE: str(self.directory / LINK_FAULTS_FILE),
                        **({} if has_port else ANY_FRAMED_PORT),
                        **(environment or {}),
                    },
                )
            self._save()
            return chosen

    def wait_ready(
        self,
        timeout_ms: int = READY_TIMEOUT_MS,
        *,
        node_ids: tuple[int, ...] = (),
        progress: Progress | None = None,
    ) -> int:
        """Wait until these nodes (default: all that run) are ready and one leads; return the
        leader. Those that were removed from the cluster are not waited for.

        With several groups each group of these nodes needs a leader; the first group's is returned.

        Raises LocalError: `local.died` as soon as one of them has ended, `local.no_room` as soon as
        a group waits for room on its disks alone, `local.not_ready` with what the nodes say.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        chosen = node_ids or tuple(n for n in self._nodes if self._nodes[n].is_alive)
        if not chosen:
            do = f"start them: {self.command('start')}"
            raise LocalError("local.not_ready", "no node runs, so none becomes ready", do)
        while True:
            states = {
                s.node_id: s for s in self.status() if s.node_id in chosen and s.role != REMOVED
            }
            ready = {n: s for n, s in states.items() if s.is_ready}
            leaders = {s.broker_group: n for n, s in ready.items() if s.role == "leader"}
            ready_count = sum(s.is_ready for s in states.values())
            is_led = leaders.keys() == {s.broker_group for s in states.values()}
            if leaders and is_led and ready_count == len(states):
                return leaders[min(leaders)]
            for node_id, state in states.items():
                if state.state not in ("running", "paused"):
                    what = f"node {node_id}: {state.detail}"
                    do = f"read {self.log_path(node_id)}; docs/operations.md has the exit codes"
                    raise LocalError("local.died", what, do)
                # Slaves of a master without room know who leads, and are ready.
                own = [s for s in states.values() if s.broker_group == state.broker_group]
                waiting = [s for s in own if not s.is_ready]
                is_full = bool(waiting) and all(_NO_ROOM in one.detail for one in waiting)
                if is_full and state.broker_group not in leaders:
                    first = waiting[0]
                    reason, _, rest = first.detail.partition(_NO_ROOM)
                    what, _, do = reason.rpartition("; ")
                    what = f"node {first.node_id}: {what}{rest}"
                    raise LocalError("local.no_room", what, do + _NO_ROOM)
            if progress is not None:
                waits = [s for s in states.values() if not s.is_ready][:1]
                text = "".join(f"; node {s.node_id}: {s.detail or s.state}" for s in waits)
                progress(f"{ready_count} of {len(states)} nodes are ready" + text)
            if time.monotonic() >= deadline:
                what = f"after {timeout_ms} ms {ready_count} of {len(states)} nodes are ready"
                what += "".join(f"; node {n}: {s.detail}" for n, s in states.items() if s.detail)
                do = f"see '{self.command('status')}' and the logs, {self.directory}/node-*/log"
                raise LocalError("local.not_ready", what, do)
            time.sleep(_POLL_S)

    def stop(self, *node_ids: int, timeout_ms: int = STOP_TIMEOUT_MS) -> list[int]:
        """Stop these nodes, by default all, gracefully; return those that had to be killed."""
        with self._locked():
            chosen = [n for n in node_ids or self._nodes if self._node(n).is_alive]
            if chosen:
                self.status()  # It learns who was removed, as long as there is a leader.
            for node_id in chosen:
                self._signal(node_id, signal.SIGCONT)  # A paused node could not stop.
                self._signal(node_id, signal.SIGTERM)
            deadline = time.monotonic() + timeout_ms / 1000
            killed = []
            for node_id in chosen:
                process = self._node(node_id).process
                assert process is not None, f"node {node_id} is alive without a process"
                if not process.wait_end(max(0, int(1000 * (deadline - time.monotonic())))):
                    killed.append(node_id)
                    process.send(signal.SIGKILL)
                    process.wait_end(timeout_ms)
            for node_id in node_ids or self._nodes:
                process = self._node(node_id).process
                if process is not None and not process.is_child:
                    self._node(node_id).process = None
            self._save(ended=node_ids or self.node_ids)
            return killed

    def check_stopped(self) -> None:
        """Raise LocalError `local.running` if a node runs."""
        if running := [node_id for node_id in self._nodes if self.is_alive(node_id)]:
            one, verb = ("node", "runs") if len(running) == 1 else ("nodes", "run")
            what = f"{one} {', '.join(map(str, running))} of {self.directory} {verb}"
            raise LocalError("local.running", what, f"stop it first: {self.command('stop')}")

    def purge(self, *, keeps_logs: bool = False) -> None:
        """Delete the cluster with its messages; what else is in the directory stays.

        `keeps_logs`: the logs of events of its nodes do, too. Raises LocalError `local.running`."""
        with self._locked():
            self.check_stopped()
            for node_id in self._nodes:
                directory = self.node_directory(node_id)
                doomed = directory / "data" if keeps_logs else directory
                if doomed.is_symlink():  # What it leads to is not ours.
                    doomed.unlink()
                elif doomed.exists():
                    shutil.rmtree(doomed)
            # The list of nodes goes last: a purge that breaks off can be repeated.
            for name in (*_OWN_FILES.values(), TOKEN_FILE, LINK_FAULTS_FILE, STATE_FILE, LOCK_FILE):
                (self.directory / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.directory.rmdir()
            if self.directory.parent.name == HOME_DIRECTORY:  # Unless contexts are there.
                self.directory.parent.rmdir()

    def kill(self, node_id: int) -> bool:
        """End a node as a crash would (SIGKILL) and wait for its end; return whether it ran."""
        with self._locked():
            was_alive = self._signal(node_id, signal.SIGKILL)
            process = self._node(node_id).process
            if process is not None:
                process.wait_end(STOP_TIMEOUT_MS)
            if was_alive:
                self._node(node_id).is_killed = True
                self._save()
            return was_alive

    def restart(self, node_id: int, environment: Mapping[str, str] | None = None) -> None:
        """Stop a node gracefully if it runs, and start it."""
        self.stop(node_id)
        self.start(node_id, environment=environment)

    def pause(self, node_id: int) -> None:
        """Stop a node's process from running (SIGSTOP), connections open."""
        process = self._node(node_id).process
        if process is not None and process.send(signal.SIGSTOP):
            process.wait_paused(STOP_TIMEOUT_MS)

    def resume(self, node_id: int) -> None:
        """Let a paused node run again."""
        self._signal(node_id, signal.SIGCONT)

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- Parts ---

    def _setting(self, name: str, default: str) -> str:
        path = self.node_directory(min(self._nodes)) / "node.toml"
        try:
            return str(tomllib.loads(read_user_text(path)).get(name, default))
        except (UserFileError, ValueError) as error:
            why = error.what if isinstance(error, UserFileError) else str(error)
            do = "correct it, or remove the directory after ending what runs in it"
            raise LocalError("local.damaged", f"{path} cannot be used: {why}", do) from error

    def _node(self, node_id: int) -> LocalNode:
        if node_id not in self._nodes:
            what = f"there is no node {node_id} in {self.directory}"
            raise LocalError(
                "local.no_node", what, f"use one of {', '.join(map(str, self._nodes))}"
            )
        return self._nodes[node_id]

    def _signal(self, node_id: int, number: signal.Signals) -> bool:
        process = self._node(node_id).process
        return process is not None and process.send(number)

    def _state_of(self, node_id: int) -> NodeState:
        node = self._node(node_id)
        process = node.process
        state: State = "stopped"
        if process is not None:
            state = "running" if process.is_alive else "dead"
            is_clean = process.exit_code is None and has_stopped(self.log_path(node_id))
            if process.exit_code == 0 or (state == "dead" and is_clean and not node.is_killed):
                state = "stopped"
        http = f"{node.status_host}:{node.http_port}"
        described = NodeState(
            node_id,
            state,
            process.pid if process is not None and state == "running" else None,
            self.address(node_id),
            f"{node.host}:{node.peer_port}",
            http,
            str(self.node_directory(node_id)),
            node.group,
        )
        if state != "running" or process is None:
            return replace(described, detail=self._end_of(node_id, state))
        console = node_process(self.node_directory(node_id) / "data").get("console_address")
        described = replace(described, console_address=console or "")
        if process.is_paused:
            resume = f"{self.command('resume')} --node {node_id}"
            return replace(described, state="paused", detail=f"it goes on after {resume}")
        answer = ask(http, "/status", self.node_directory(node_id) / "data")
        origin = "runs, not started by qlog local; " if process.is_strange else ""
        if answer is None or answer.get("pid") != process.pid:
            return replace(described, detail=f"{origin}does not answer yet")
        names = ("role", "term", "leader_id", "commit_index", "applied_index")
        given = {name: answer[name] for name in (*names, "members")}
        detail = f"{origin}{answer['detail']}"
        return replace(described, is_ready=answer["ready"], detail=detail, **given)

    def _end_of(self, node_id: int, state: State) -> str:
        log = self.log_path(node_id)
        if state == "stopped":
            return "stopped" if log.exists() else "was never started"
        code = -signal.SIGKILL if self._node(node_id).is_killed else self.exit_code(node_id)
        return end_of(log, code)

    def _save(self, ended: tuple[int, ...] = ()) -> None:
        """Write the nodes; the processes of those that ended are expected to be gone."""
        nodes = {n: node.to_json() for n, node in self._nodes.items()}
        for node_id in ended:
            nodes[node_id] |= {"pid": None, "started": None}
        state = {"cluster_id": self.cluster_id, "nodes": nodes}
        path = self.directory / STATE_FILE
        temporary = path.with_suffix(".tmp")
        write_private(temporary, json.dumps(state, indent=2))
        temporary.replace(path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock with which one command at a time changes the cluster."""
        with open(self.directory / LOCK_FILE, "w", opener=open_private) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _write_own_files(root: Path, *, users: bool) -> None:
    """Write the secret of the nodes, and with `users` the first user, its token and keys."""
    make_missing(root)
    write_private(root / SECRET_FILE, f"{os.urandom(32).hex()}\n")
    if users:
        token = new_token()
        write_private(root / TOKEN_FILE, f"{token}\n")
        write_private(root / FIRST_USER_FILE, first_user_text("admin", digest_of(token)))
        for file in (USERS_KEY_FILE, NAMESERVER_SECRET_FILE):
            write_private(root / file, f"{os.urandom(32).hex()}\n")


def _check_settings(text: str, settings: Mapping[str, object]) -> None:
    """Check the settings file of a node as the node does. Raises ConfigError.

    An error in one of `settings` names no file."""
    from node.config.load import ConfigError, load

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "node.toml"
        write_private(path, text)
        try:
            load(path, environment={})
        except ConfigError as error:
            problems = [
                one._replace(origin="--setting" if one.key in settings else "node.toml")
                for one in error.problems
                if one.key in settings or one.key not in _OWN_FILES  # Ours are not there yet.
            ]
            if problems:
                raise ConfigError(tuple(problems)) from None
