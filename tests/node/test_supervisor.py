"""A real node and the socket of a service manager: what it says when, and the unit it runs by."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

from deploy.local import LocalCluster
from node.runtime.hold import hold_thread
from node.runtime.supervisor import keep_informed
from tests import missing
from tests.node.processes import SingleNode
from tests.patience import PATIENCE_S, eventually

BEAT_S = 0.02


class Manager:
    """The end of systemd: a socket with datagrams of lines."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0"))
        self.environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": str(int(2e6 * BEAT_S))}

    def message(self, timeout_s: float = PATIENCE_S) -> set[str]:
        self._socket.settimeout(timeout_s)
        return set(self._socket.recv(4096).decode().splitlines())

    def until(self, line: str) -> list[set[str]]:
        """Return the messages before the first with this line, and that one."""
        found = [self.message()]
        while line not in found[-1]:
            found.append(self.message())
        return found

    def waiting(self) -> int:
        """Take the messages that are there, and return their count."""
        count = 0
        with suppress(BlockingIOError):
            while self.message(timeout_s=0):
                count += 1
        return count

    def close(self) -> None:
        self._socket.close()


@pytest.mark.parametrize("is_abstract", [False, True])
def test_a_node_feeds_the_watchdog_until_it_stops(tmp_path: Path, is_abstract: bool) -> None:
    with ExitStack() as stack:
        manager = Manager(("@" if is_abstract else "") + str(tmp_path / "notify"))
        stack.callback(manager.close)
        node = stack.push(SingleNode(tmp_path / "data"))
        node.start(manager.environment)
        assert manager.until("READY=1")[-1] == {"READY=1", "STATUS=this node leads", "WATCHDOG=1"}
        node.signal(signal.SIGTERM)
        running = manager.until("STOPPING=1")
        assert all("READY=1" in one for one in running[:-1])
        assert "READY=1" not in running[-1]
        assert node.wait_end() == 0


async def test_a_loop_that_stands_still_feeds_no_watchdog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of its own would go on."""
    manager = Manager(str(tmp_path / "notify"))
    for name, value in manager.environment.items():
        monkeypatch.setenv(name, value)
    task = asyncio.create_task(keep_informed(lambda: "READY=1", asyncio.Event()))
    await eventually(manager.waiting, "a beat")
    hold_thread(int(20 * BEAT_S * 1000))
    assert manager.waiting() == 0
    await eventually(manager.waiting, "the next beat")
    task.cancel()
    manager.close()


def test_a_node_of_a_new_cluster_is_ready_when_it_has_met_the_others(tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    cluster = LocalCluster.create(tmp_path / "c", 2)
    try:
        cluster.start(1, environment=manager.environment)
        waiting = "STATUS=waiting: a new cluster needs to hear of node 2 first"
        alone = [*manager.until(waiting), *(manager.message() for _ in range(3))]
        assert all("WATCHDOG=1" in one and "READY=1" not in one for one in alone)
        cluster.start(2)
        manager.until("READY=1")
    finally:
        cluster.stop()
        manager.close()


def unit(*options: str, code: int = 0) -> str:
    command = [sys.executable, "-P", "-m", "qlog", "serve", "--print-unit", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


@pytest.mark.parametrize("name", ["", """it's "a" \\ b; 5%m of $HOME"""])
def test_the_unit_is_what_systemd_takes_and_finds_safe(name: str, tmp_path: Path) -> None:
    path, config = tmp_path / "quorumlog.service", tmp_path / f"{name}.toml"
    config.write_text(f"node_id = 1\ndirectory = {json.dumps(f'/srv/{name}')}\n")
    path.write_text(unit(*["--config", str(config)] if name else []))

    def analyze(*words: str) -> str:
        try:
            done = subprocess.run(
                ["systemd-analyze", *words, str(path)], capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            missing.program("systemd-analyze is not installed")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert analyze("verify") == ""
    score = re.search(r"exposure level .*: ([\d.]+)", analyze("security", "--offline=yes"))
    assert score is not None
    assert float(score[1]) < 3


def test_the_unit_starts_this_program_with_the_settings_of_a_file(tmp_path: Path) -> None:
    command = f"ExecStart={sys.executable} -P -m qlog serve --config "
    assert f"{command}/etc/quorumlog/node.toml\n" in unit()
    config = tmp_path / "own.toml"
    config.write_text('node_id = 1\ndirectory = "/srv/own data"\n')
    assert f"{command}{config}\n" in unit("--config", str(config))
    assert 'ReadWritePaths="/srv/own data"\n' in unit("--config", str(config))
    said = unit("--node-id", "1", code=2).splitlines()
    assert said[0] == "error: a unit has its settings in a file, and --node-id is an option"


@pytest.mark.parametrize(
    ("directory", "code"),
    [
        ("/var/tmp/q", 2),
        ("/tmp/data", 2),
        ("/run/data", 2),
        ("data", 2),
        ("/srv/q/../r", 2),
        ("", 78),
        ("/srv/a\nExecStartPre=+/bin/sh", 78),
        ("/", 78),
        ("/etc", 78),
        ("/proc/x", 78),
        ("/var/lib/q/../../../etc", 78),
    ],
)
def test_the_unit_refuses_a_directory_that_its_node_would_not_have(
    directory: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORUMLOG_DIRECTORY", "/srv/data")  # Of this shell alone.
    config = tmp_path / "own.toml"
    config.write_text(
        f"node_id = 1\n{f'directory = {json.dumps(directory)}' if directory else ''}\n"
    )
    what, why, _ = unit("--config", str(config), code=code).splitlines()
    assert f"directory {directory if code == 2 else ''}" in what + why


def test_the_unit_names_files_that_it_hides() -> None:
    with (
        NamedTemporaryFile("w", dir="/tmp", suffix=".toml") as file,
        NamedTemporaryFile("w", dir="/tmp") as secret,
    ):
        file.write("node_id = 1\ndirectory = '/srv/data'\n")
        file.flush()
        words = ["serve", "--print-unit", "--config", file.name]
        program = f"import sys; sys.executable = '/tmp/python'; import qlog; qlog.main({words})"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
        secret.write("s" * 32)
        secret.flush()
        file.write(f"secret_file = {secret.name!r}\n")
        file.flush()
        refused = unit("--config", file.name, code=2)
    hidden = re.findall("^note: the unit hides (.*) from its node;", done.stderr.decode(), re.M)
    assert {*hidden} >= {"/tmp/python", file.name}
    assert refused.startswith(f"error: the unit hides secret_file {secret.name} from its node\n")
