"""What a process finds around it (variables, streams, home, limits) neither breaks nor changes it.

One node is started in surroundings that are hostile all at once; a row of the table is a process.
docs/operations.md, "Surroundings", says the same for people.
"""

import ast
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from deploy.local_nodes import FRAMED_PORT_DISTANCE
from node.runtime.channel_options import CHANNEL_OPTIONS
from quorumlog.cluster.channels import _OPTIONS
from tests.loopback import host_and_port
from tests.patience import PATIENCE_S

ROOT: Final = Path(__file__).parents[2]
DESCRIPTORS: Final = 300
NOWHERE: Final = "http://127.0.0.1:9"
PROXIES: Final = {f"{name}_proxy": NOWHERE for name in ("http", "https", "grpc", "all")}
SERVICE: Final = {
    "QUORUMLOG_SERVICE_HOST": "10.3.104.46",
    "QUORUMLOG_SERVICE_PORT_GRPC": "8081",
    "QUORUMLOG_PORT": "tcp://10.3.104.46:8081",
    "QUORUMLOG_PEERS_PORT_8082_TCP_ADDR": "10.3.104.46",
}
ASCII: Final = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "TZ": "Not/There"}
NO_HOME: Final = "import pwd; pwd.getpwuid = {}.__getitem__; from qlog import main; main()"
FORK: Final = """
import os, sys
from quorumlog import sync
def said(call):
    try:
        call()
    except BaseException as error:
        return getattr(error, "code", repr(error))
with sync.connect(os.environ["QUORUMLOG_SERVER"]) as client, client.producer() as producer:
    producer.send("t", "parent")
    if not (child := os.fork()):
        calls = (lambda: producer.send("t", "child"), lambda: client.admin.list_topics(),
                 client.close, lambda: sync.connect("127.0.0.1:1"))
        found = {said(call) for call in calls}
        os._exit(found != {"client.forked"})
    assert not os.waitpid(child, 0)[1]
    producer.send("t", "parent")
"""
SDK: Final = """
import asyncio, os, quorumlog
from quorumlog import sync
server = os.environ["QUORUMLOG_SERVER"]
for start in (sync.connect(server).start, lambda: asyncio.run(quorumlog.connect(server).start())):
    try:
        start()
    except quorumlog.QuorumlogError as error:
        print(error.code)
"""
BAD_POLLING: Final = "client.bad_polling\n"
NO_DESCRIPTORS: Final = "client.no_descriptors\n"
SERVE: Final = "config check --node-id 1 --directory d"
ROWS: Final[tuple[tuple[str, dict[str, str], str, int, str], ...]] = (
    # name, variables, words of a shell, exit code, what it says
    ("proxies", PROXIES, "qlog topic list", 0, ""),
    ("proxies, over gRPC", PROXIES, "qlog --transport grpc produce t </dev/null", 0, ""),
    ("a Service of our name", SERVICE, f"qlog {SERVE}", 0, ""),
    ("and a misspelt variable", {"QUORUMLOG_PORTS": "1"}, f"qlog {SERVE}", 1, "QUORUMLOG_PORTS"),
    ("and a port that is none", {"QUORUMLOG_PORT": "1"}, f"qlog {SERVE}", 1, "QUORUMLOG_PORT"),
    ("ascii in", ASCII, "echo grün | qlog produce t", 0, ""),
    ("ascii out", ASCII, "qlog consume t --until end | grep -qx grün", 0, ""),
    ("old polling", {"GRPC_POLL_STRATEGY": "epollex"}, "qlog topic list", 2, "GRPC_POLL_STRATEGY"),
    ("no polling", {"GRPC_POLL_STRATEGY": "none"}, "qlog topic list", 2, "GRPC_POLL_STRATEGY"),
    ("for the SDK", {"GRPC_POLL_STRATEGY": "x,none,poll"}, 'python -c "$SDK"', 0, 2 * BAD_POLLING),
    ("the first that it has", {"GRPC_POLL_STRATEGY": "poll,none"}, "qlog topic list", 0, ""),
    ("no docstrings", {"PYTHONOPTIMIZE": "2"}, "qlog topic list", 3, "PYTHONOPTIMIZE"),
    ("no assertions", {"PYTHONOPTIMIZE": "1"}, "qlog topic list", 0, ""),
    ("gRPC is chatty", {"GRPC_VERBOSITY": "debug", "GRPC_TRACE": "http"}, "qlog topic list", 0, ""),
    ("no home", {"HOME": ""}, 'env -u HOME python -c "$NO_HOME" local start', 3, "set HOME"),
    ("a home that takes nothing", {"HOME": "/proc"}, "qlog local start", 2, "/proc/.quorumlog"),
    ("no directory", {}, "mkdir gone && cd gone && rmdir ../gone && qlog topic list", 0, ""),
    ("few descriptors", {}, "ulimit -n 40; qlog topic list", 0, ""),
    ("fewer", {}, "ulimit -n 24; qlog topic list", 3, "ulimit -n"),
    ("no descriptors", {}, "ulimit -n 12; echo x | qlog produce t", 3, "ulimit -n"),
    ("few for the SDK", {}, 'ulimit -n 24; python -c "$SDK"', 0, 2 * NO_DESCRIPTORS),
    ("fewer for the SDK", {}, 'ulimit -n 12; python -c "$SDK"', 0, 2 * NO_DESCRIPTORS),
    ("no stdin", {}, "qlog topic list <&-", 0, ""),
    ("no stdin, which is read", {}, "qlog produce t <&-", 3, "stdin is closed"),
    ("stdin is a directory", {}, "qlog produce t </", 1, "is a directory"),
    ("no stdout", {}, "qlog topic list >&-", 3, "stdout is closed"),
    ("stdout takes nothing", {}, "qlog topic list >/dev/full", 3, "No space left"),
    ("no stderr", {}, "qlog topic list 2>&-", 0, ""),
    ("no stream", {}, "qlog topic list <&- >&- 2>&-", 3, ""),
    ("a fork", {}, 'python -c "$FORK"', 0, ""),
)  # fmt: skip


def shell(
    words: str, directory: Path, variables: dict[str, str], server: str = ""
) -> subprocess.CompletedProcess[str]:
    paths = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": paths, "PYTHONPATH": str(ROOT), "NO_HOME": NO_HOME, "FORK": FORK}
    env |= {"SDK": SDK, "QUORUMLOG_SERVER": server, **variables}
    return subprocess.run(
        ["bash", "-c", words], cwd=directory, env=env, check=False, timeout=PATIENCE_S,
        capture_output=True, text=True, encoding="utf-8", errors="replace",
    )  # fmt: skip


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a node, and of the topic `t`, in surroundings that are all hostile."""
    root = tmp_path_factory.mktemp("surroundings")
    words = f"umask 0; ulimit -n {DESCRIPTORS}; qlog local start --nodes 1 --dir c -o json <&-"
    try:
        done = shell(words, root, {**PROXIES, **SERVICE, **ASCII, "HOME": "/proc"})
        assert not done.returncode, done.stderr
        (status,) = json.loads(done.stdout)
        done = shell("qlog topic create t --queues 1", root, {}, status["address"])
        assert not done.returncode, done.stderr
        open_to_others = [one for one in (root / "c").rglob("*") if one.stat().st_mode & 0o077]
        assert not open_to_others
        yield status["address"]
        assert "Too many open files" not in (root / "c/node-1/log").read_text("utf-8")
    finally:
        shell("qlog local stop --dir c", root, {})


@pytest.mark.parametrize(("variables", "words", "code", "says"), [row[1:] for row in ROWS],
                         ids=[row[0] for row in ROWS])  # fmt: skip
def test_surroundings(
    node: str, tmp_path: Path, variables: dict[str, str], words: str, code: int, says: str
) -> None:
    done = shell(words, tmp_path, variables, node)
    assert (done.returncode, says in done.stdout + done.stderr) == (code, True), done
    assert "Traceback" not in done.stderr
    assert "bug in QuorumLog" not in done.stderr


def test_strangers_at_a_port_leave_descriptors_to_the_node(node: str, tmp_path: Path) -> None:
    host, port = host_and_port(node)
    with contextlib.ExitStack() as held:
        for _ in range(2 * DESCRIPTORS):
            address = host, port + FRAMED_PORT_DISTANCE
            held.enter_context(socket.create_connection(address, PATIENCE_S))
        done = shell("echo x | qlog produce t", tmp_path, {}, node)
    assert not done.returncode, done.stderr


def test_no_code_asks_libraries_for_what_they_read_around_them() -> None:
    """Each channel has options, which forbid proxies; each key a passphrase, which is none; and no
    page is read by `urlopen`, which asks proxies."""
    faults = []
    folders = ("node", "quorumlog", "planning", "qlog", "deploy", "pipeline", "bench")
    for path in (one for folder in folders for one in (ROOT / folder).rglob("*.py")):
        text = path.read_text("utf-8")
        if not any(one in text for one in ("secure_channel(", "load_cert_chain(", "urlopen(")):
            continue
        for call in ast.walk(ast.parse(text)):
            if not isinstance(call, ast.Call):
                continue
            name = ast.unparse(call.func).rpartition(".")[2]
            named = {one.arg for one in call.keywords}
            needed = {"insecure_channel": 2, "secure_channel": 3}.get(name, 0)
            is_bare = len(call.args) < needed and "options" not in named
            asks = name == "load_cert_chain" and "password" not in named
            if is_bare or asks or name == "urlopen":
                faults.append(f"{path}:{call.lineno}: {ast.unparse(call)}")
    assert not faults
    assert ("grpc.enable_http_proxy", 0) in {*CHANNEL_OPTIONS} & {*_OPTIONS}
