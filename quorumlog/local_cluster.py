"""Where the cluster of `qlog local` is, for programs that have no server code.

Owns the directory's name, the codes of its errors, the identity of a process, and the look for a
cluster that runs. What else is in `local.json` is `deploy.local`'s.
"""

import json
import os
import sys
from pathlib import Path
from typing import Final, NamedTuple

DIRECTORY_VARIABLE: Final = "QUORUMLOG_LOCAL_DIR"
HOME_DIRECTORY: Final = ".quorumlog"
"""Below the home directory of a person, for the local cluster and the contexts."""
STATE_FILE: Final = "local.json"
_IS_LINUX: Final = sys.platform.startswith("linux")

CAUSES: Final = {
    "local.bad_count": "a local cluster has few nodes, and each group as many as the others",
    "local.bad_directory": "the nodes cannot keep their files there",
    "local.bad_port": "each node needs four ports in a row, and other ports are not free to choose",
    "local.damaged": "another program wrote the file, or the disk lost a part of it",
    "local.died": "the process of the node has ended, and its log says why",
    "local.exists": "a directory holds one cluster",
    "local.failed": "a command of 'qlog local' failed, and its text says why",
    "local.no_home": "the default directory is in the home directory",
    "local.no_node": "the cluster was made without that node",
    "local.no_room": "the disk has less free space than a node needs",
    "local.none": "'qlog local start' has made none there",
    "local.not_running": "only a node that runs can be killed, paused and resumed",
    "local.not_ready": "a node is ready when it has a leader and has caught up with it",
    "local.other_host": "this machine starts and ends the nodes of its own only",
    "local.port_taken": "a node needs its own ports",
    "local.running": "its files are in use",
}
"""Causes of the errors of a local cluster, by code."""


def default_directory() -> Path:
    """Return the default directory of a person's cluster: one for all working directories.

    Raises RuntimeError for a user without a home directory."""
    return Path(os.environ.get(DIRECTORY_VARIABLE) or Path.home() / HOME_DIRECTORY / "local")


class LocalServers(NamedTuple):
    """The cluster in the default directory."""

    addresses: str
    is_running: bool
    """Whether a node of it runs."""


class DamagedStateError(Exception):
    """The file of the local cluster is not what `qlog local` wrote; its path."""


def known_servers() -> LocalServers | None:
    """Return the cluster in the default directory; None: there is none.

    Raises DamagedStateError: commands must not go to another cluster then."""
    try:
        path = default_directory() / STATE_FILE
        state = json.loads(path.read_text("utf-8"))
        nodes = state["nodes"].values()
        is_up = any(node["pid"] and is_running(node["pid"], node["started"]) for node in nodes)
        return LocalServers(",".join(f"{n['host']}:{n['address_port']}" for n in nodes), is_up)
    except (FileNotFoundError, RuntimeError):  # Without a home there is no such cluster either.
        pass
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise DamagedStateError(str(path)) from error
    return None


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
