"""Where the cluster of `qlog local` is, for programs that have no server code.

Owns the directory's name, the codes of its errors, the form of `local.json`, the identity of a
process, and the look for a cluster that runs.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

from quorumlog.user_files import UserFileError, read_user_file

DIRECTORY_VARIABLE: Final = "QUORUMLOG_LOCAL_DIR"
HOME_DIRECTORY: Final = ".quorumlog"
"""Below the home directory of a person, for the local cluster and the contexts."""
STATE_FILE: Final = "local.json"
TOKEN_FILE: Final = "admin.token"
"""With the token of the user admin, if users are on."""
NODE_FILE: Final = "node.json"  # As `node.runtime.node_file` has it.
HOST: Final = "127.0.0.1"
_IS_LINUX: Final = sys.platform.startswith("linux")

CAUSES: Final = {
    "local.bad_count": "a local cluster has few nodes, and each group as many as the others",
    "local.bad_directory": "a local cluster cannot have its files there",
    "local.bad_port": "each node needs five ports in a row, and other ports are not free to choose",
    "local.damaged": "another program wrote the file, or the disk lost a part of it",
    "local.died": "the process of the node has ended, and its log says why",
    "local.exists": "a directory holds one cluster",
    "local.failed": "a command of 'qlog local' failed, and its text says why",
    "local.no_home": "the default directory is in the home directory",
    "local.no_node": "the cluster was made without that node",
    "local.no_room": "the disk has less free space than a node needs",
    "local.no_server": "the package quorumlog has what clients need, quorumlog-server has the rest",
    "local.none": "'qlog local start' has made none there",
    "local.not_running": "only a node that runs can be killed, paused and resumed",
    "local.not_ready": "a node is ready when it has a leader and has caught up with it",
    "local.other_host": "this machine starts and ends the nodes of its own only",
    "local.port_taken": "a node needs its own ports",
    "local.running": "its files are in use",
}
"""Causes of the errors of a local cluster, by code."""


_PORT: Final = ((int,), True)
_TEXT: Final = ((str,), False)
_FORM: Final[dict[str, tuple[tuple[type, ...], bool]]] = {
    **dict.fromkeys(("address_port", "peer_port", "http_port"), _PORT),
    "nameserver_port": ((int,), False),
    **dict.fromkeys(("group", "host", "status_host"), _TEXT),
    **dict.fromkeys(("is_removed", "is_killed"), ((bool,), False)),
    "pid": ((int, type(None)), True),
    "started": ((str, type(None)), True),
}
"""Types of the values of a node, and whether each is needed."""


def default_directory() -> Path:
    """Return the default directory of a person's cluster: one for all working directories.

    Raises RuntimeError for a user without a home directory."""
    return Path(os.environ.get(DIRECTORY_VARIABLE) or Path.home() / HOME_DIRECTORY / "local")


class LocalServers(NamedTuple):
    """The cluster in the default directory; empty addresses: the directory has none."""

    addresses: str
    is_running: bool
    """Whether a node of it runs."""


class DamagedStateError(Exception):
    """The file of the local cluster is not what `qlog local` wrote, or cannot be read: code, what,
    what to do."""

    def __init__(self, code: str, what: str, do: str) -> None:
        super().__init__(code, what, do)
        self.code, self.what, self.do = code, what, do


def known_servers() -> LocalServers | None:
    """Return the cluster in the default directory; None: there is none, no variable names one, and
    the directory is not there, not even as a link to a disk that is missing.

    Raises DamagedStateError: commands must not go to another cluster then."""
    try:
        directory = default_directory()
    except RuntimeError:  # Without a home there is no such cluster either.
        return None
    state = read_state(directory)
    if state is None:
        is_meant = os.environ.get(DIRECTORY_VARIABLE) or os.path.lexists(directory)
        return LocalServers("", is_running=False) if is_meant else None
    nodes = state["nodes"].items()
    return LocalServers(
        ",".join(f"{node.get('host', HOST)}:{node['address_port']}" for _, node in nodes),
        any(
            _runs(node) or _runs(node_process(directory / f"node-{node_id}" / "data"))
            for node_id, node in nodes
        ),
    )


def read_state(directory: Path) -> dict[str, Any] | None:
    """Return what `local.json` of a directory has; None: there is none.

    Raises DamagedStateError for what is no state of a cluster, or cannot be read."""
    path = directory / STATE_FILE
    try:
        state = json.loads(read_user_file(path))
    except UserFileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        code = "local.bad_directory" if error.__cause__ else "local.damaged"
        raise DamagedStateError(code, f"{path}: {error.what}", error.do) from error
    except (ValueError, RecursionError):
        fault = "it is no JSON"
    else:
        fault = _fault(state)
    if fault:
        what = f"{path} is not what 'qlog local' wrote: {fault}"
        do = "remove the directory after ending what runs in it"
        raise DamagedStateError("local.damaged", what, do)
    return state  # type: ignore[no-any-return]


def _fault(state: object) -> str:
    """Return what a state lacks; empty: nothing."""
    nodes = state.get("nodes") if isinstance(state, dict) else None
    if not isinstance(nodes, dict) or not nodes:
        return "it names no nodes"
    if not isinstance(state, dict) or not isinstance(state.get("cluster_id"), str):
        return "it names no cluster"
    for node_id, node in nodes.items():
        if not node_id.isdecimal() or not isinstance(node, dict):
            return f"{node_id[:20]!r} is no node"
        for name, (kinds, is_needed) in _FORM.items():
            if (is_needed or name in node) and type(node.get(name)) not in kinds:
                return f"{name} of node {node_id} is missing or of another kind"
    return ""


def node_process(data: Path) -> dict[str, Any]:
    """Return `pid` and `started` of the process that `node.json` of a data directory names, which
    any command may have started; empty: it names none."""
    try:
        found = json.loads(read_user_file(data / NODE_FILE))
        return found if isinstance(found["pid"], int) else {}
    except (UserFileError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _runs(process: dict[str, Any]) -> bool:
    return bool(process.get("pid")) and is_running(process["pid"], process.get("started", ""))


def is_running(pid: int, started: str) -> bool:
    """Whether the process that started then runs, paused or not. Never true for another one."""
    try:
        is_same = started_at(pid) == started
        return is_same and not (_IS_LINUX and _fields(pid)[0] == "Z")
    except ProcessLookupError:
        return False


def started_at(pid: int) -> str:
    """Return the start time of a process. Raises ProcessLookupError.

    On Linux in ticks since boot, with the boot's id: the time of day may be set meanwhile.
    """
    if not _IS_LINUX:
        import psutil  # Where a node runs it is there.

        try:
            return str(psutil.Process(pid).create_time())
        except psutil.NoSuchProcess as error:
            raise ProcessLookupError(pid) from error
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    return f"{boot_id}:{_fields(pid)[19]}"


def _fields(pid: int) -> list[str]:
    """Return the fields of a process in Linux, from its state on. Raises ProcessLookupError."""
    try:
        # The name in parentheses may contain any text; the fields are behind the last one.
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except FileNotFoundError as error:
        raise ProcessLookupError(pid) from error
