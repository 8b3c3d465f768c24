"""A real three-node cluster for the tests of users: processes, files, kill and restart.

Owns the life of the processes, a block long, on loopback, on ports that are free, in one directory.
Must not know the inside of a node, and imports no server code: each step is a run of `qlog local`,
so a package `deploy` or a module `store` of the user's own is not in its way.

    async with quorumlog.testing.cluster() as cluster:
        async with cluster.client() as client:
            await client.admin.create_topic("orders")
            await client.producer().send("orders", b"hello")
            await cluster.kill(await cluster.leader_id())
"""

import asyncio
import functools
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar

from quorumlog import sync
from quorumlog.arguments import checked, checked_call
from quorumlog.client import connect
from quorumlog.errors import InvalidRequestError, QuorumlogError
from quorumlog.run_guard import VARIABLE, new_mark, start_guard
from quorumlog.sync.wrappers import into

_P = ParamSpec("_P")
_T = TypeVar("_T")
_ENDED: Final = 0, 1
"""Exit codes of a command that did its work; 1 is a finding, as a node that is not ready."""
_ROOT: Final = str(Path(__file__).parents[1])
_marks: Final[dict[Path, str]] = {}
"""Marks of the clusters that run, by directory: their nodes end with this process."""


def _client_of(made_by: Callable[Concatenate[str, _P], _T]) -> Callable[Concatenate[Any, _P], _T]:
    """Return a method that connects to the nodes; it has the other arguments of `connect`."""

    def client(self: "Nodes", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        kwargs.setdefault("cluster_id", self.cluster_id)
        return made_by(self.bootstrap, *args, **kwargs)

    signature = inspect.signature(made_by)
    owner, *others = signature.parameters.values()
    owner = owner.replace(name="self", annotation=owner.empty)
    functools.update_wrapper(client, made_by).__name__ = "client"
    client.__signature__ = signature.replace(parameters=[owner, *others])  # type: ignore[attr-defined]
    return client


def _awaited(
    method: Callable[Concatenate[Any, _P], _T],
) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]:
    """Return the method for programs with asyncio: it needs of its object what all `Nodes` have."""

    async def call(self: "Nodes", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await asyncio.to_thread(method, self, *args, **kwargs)

    functools.update_wrapper(call, method)
    return call


@checked
class Nodes:
    """Nodes of a running cluster, named by their ids, from 1."""

    def __init__(self, directory: Path) -> None:
        """Ask for the nodes of a directory. Raises QuorumlogError `local.none`."""
        self.directory: Final = directory
        """Directory with `node-N/`: the settings, the log lines and the data of a node."""
        states = self._states()
        self._addresses: Final = {state["node_id"]: str(state["address"]) for state in states}
        self.bootstrap: Final = ",".join(self._addresses.values())
        """Addresses of all nodes, for `quorumlog.connect` and for `qlog --server`."""
        self.cluster_id: Final = str(states[0]["cluster_id"])
        self.node_ids: Final = tuple(self._addresses)
        """Ids of all nodes, running or not."""
        groups: dict[str, tuple[int, ...]] = {}
        for state in states:
            name = state["broker_group"]
            groups[name] = (*groups.get(name, ()), state["node_id"])
        self.broker_groups: Final = groups
        """The nodes of each broker group, by its name."""

    def address(self, node_id: int) -> str:
        """Return host:port of a node's client service."""
        return self._addresses[self._named(node_id)]

    def _named(self, node_id: int) -> int:
        """Return the id of a node. Raises InvalidRequestError if the cluster has no such node."""
        if node_id not in self.node_ids:
            node_ids = ", ".join(map(str, self.node_ids))
            raise InvalidRequestError(f"there is no node {node_id}; use one of {node_ids}")
        return node_id

    def _local(self, command: str, node_id: int, *options: str) -> None:
        _local(self.directory, command, "--node", str(self._named(node_id)), *options)

    def _states(self) -> list[dict[str, Any]]:
        states: list[dict[str, Any]] = json.loads(_local(self.directory, "status", "-o", "json"))
        return states


@checked
class SyncCluster(Nodes):
    """A running cluster, for programs without asyncio. Nodes are named by their ids, from 1."""

    client = _client_of(sync.connect)

    def leader_id(self, broker_group: str | None = None) -> int:
        """Return the leader of the first broker group, or of this one; 0: there is none."""
        if broker_group is not None and broker_group not in self.broker_groups:
            names = ", ".join(self.broker_groups)
            text = f"there is no broker group {broker_group!r}; use one of {names}"
            raise InvalidRequestError(text)
        chosen = self.broker_groups[broker_group or next(iter(self.broker_groups))]
        states = [one for one in self._states() if one["node_id"] in chosen and one["is_ready"]]
        leaders = [(one["term"] or 0, one["node_id"]) for one in states if one["role"] == "leader"]
        return int(max(leaders, default=(0, 0))[1])

    def wait_ready(self, timeout_ms: int = 120_000) -> int:
        """Wait until all running nodes are ready and one leads; return the leader."""
        return int(_local(self.directory, "wait", "--timeout", f"{timeout_ms}ms"))

    def kill(self, node_id: int) -> None:
        """End a node as a crash would (SIGKILL). Its files stay."""
        self._local("kill", node_id)

    def stop(self, node_id: int) -> None:
        """Stop a node gracefully: it hands leadership over first."""
        self._local("stop", node_id)

    def restart(self, node_id: int, *, wait: bool = True) -> None:
        """Start a node, after stopping it if it runs, and wait until it is ready."""
        self._local("restart", node_id, *([] if wait else ["--no-wait"]))

    def pause(self, node_id: int) -> None:
        """Stop a node from running (SIGSTOP); its connections stay open."""
        self._local("pause", node_id)

    def resume(self, node_id: int) -> None:
        """Let a paused node run again."""
        self._local("resume", node_id)


class Cluster(Nodes):
    """A running cluster. Nodes are named by their ids, from 1."""

    client = _client_of(connect)
    leader_id = _awaited(SyncCluster.leader_id)
    wait_ready = _awaited(SyncCluster.wait_ready)
    kill = _awaited(SyncCluster.kill)
    stop = _awaited(SyncCluster.stop)
    restart = _awaited(SyncCluster.restart)
    pause = _awaited(SyncCluster.pause)
    resume = _awaited(SyncCluster.resume)


def _local(directory: Path, command: str, *options: str) -> str:
    """Run a command of `qlog local` and return what it printed.

    Raises QuorumlogError with the code of the command's error: `local.` and a name."""
    path = os.environ.get("PYTHONPATH")
    # -P, and our own directory first: what a program has there of the same name is not ours.
    ours = {"PYTHONPATH": os.pathsep.join((_ROOT, path))} if path else {}
    ours |= {VARIABLE: _marks[directory]} if directory in _marks else {}
    words = [sys.executable, "-P", "-m", "qlog", "local", command, "--dir", str(directory)]
    ended = subprocess.run(
        [*words, *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, **ours},
    )
    if ended.returncode in _ENDED:
        return ended.stdout
    if ended.stderr.startswith("{"):  # As the result would be.
        said = json.loads(ended.stderr)
        raise QuorumlogError(f"{said['what']}; {said['do']}", code=said["code"] or "local.failed")
    lines = dict(re.findall(r"^ *(error|why|do): +(.*)$", ended.stderr, re.M))
    code = re.search(r"\blocal\.[a-z_]+\b", lines.get("why", ""))
    what, do = lines.get("error", ended.stderr.strip()), lines.get("do", f"see {directory}")
    raise QuorumlogError(f"{what}; {do}", code=code[0] if code else "local.failed")


@checked_call
@contextmanager
def sync_cluster(
    nodes: int = 3,
    *,
    broker_groups: int = 1,
    directory: str | Path | None = None,
    flush: Literal["sync", "async"] = "sync",
    settings: Mapping[str, object] | None = None,
) -> Iterator[SyncCluster]:
    """Run a cluster of child processes, ready when the block begins, killed when it ends.

    Each of the `broker_groups` has `nodes` nodes. Without a `directory` a temporary one is used,
    and removed. `settings` are those of a node (`qlog config show`). The start takes about three
    seconds. Raises QuorumlogError with a code of `local.` for a cluster that cannot be started.
    """
    home = Path(directory or tempfile.mkdtemp(prefix="quorumlog-")).absolute()
    try:
        if (home / "local.json").exists():  # Its nodes would be killed at the end.
            text = f"{home} holds a local cluster already; use another directory"
            raise QuorumlogError(text, code="local.exists")
        given = {"nodes": nodes, "broker-groups": broker_groups, "flush": flush}
        options = [f"--{name}={value}" for name, value in given.items()]
        options += [f"--setting={name}={json.dumps(v)}" for name, v in (settings or {}).items()]
        with _guarded(home, is_own=directory is None):
            try:
                _local(home, "start", *options)
                yield SyncCluster(home)
            finally:
                # A graceful stop of all would take longer, and a kill leaves in the files what a
                # crash leaves, which is all that was promised.
                if (home / "local.json").exists():
                    _local(home, "kill", "--all")
    finally:
        if directory is None:
            shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _guarded(home: Path, *, is_own: bool) -> Iterator[None]:
    """Have the nodes that are started meanwhile end when this process is killed; remove a directory
    of our own then."""
    if sys.platform != "linux":
        yield
        return
    mark = _marks[home] = new_mark()
    with start_guard(mark, *[str(home)] * is_own) as guard:
        try:
            yield
        finally:
            guard.kill()
            del _marks[home]


@asynccontextmanager
async def _awaited_block(within: AbstractContextManager[SyncCluster]) -> AsyncIterator[Cluster]:
    entering = asyncio.create_task(asyncio.to_thread(within.__enter__))
    try:
        made = await asyncio.shield(entering)
        yield await asyncio.to_thread(Cluster, made.directory)
    finally:
        await asyncio.wait([entering])  # Also if the block is cancelled before it begins.
        await asyncio.to_thread(within.__exit__, None, None, None)


cluster = into(_awaited_block, sync_cluster)
cluster.__name__ = cluster.__qualname__ = "cluster"
