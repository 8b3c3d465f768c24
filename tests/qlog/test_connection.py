"""Where commands look for the cluster, and how signals end them."""

import asyncio
import gc
import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
from pathlib import Path
from threading import Thread

import click
import pytest
from click.testing import CliRunner

from deploy.local import LocalCluster
from deploy.local_process import free_ports
from qlog import CliError, main
from qlog.connection import (
    CA_VARIABLE,
    CERTIFICATE_VARIABLE,
    DEFAULT_SERVER,
    KEY_VARIABLE,
    SERVER_VARIABLE,
    addresses,
    beside,
    confirm,
    server_option,
    stop_on_signals,
    tls_files,
    until,
)
from qlog.transport import TRANSPORT_VARIABLE, transport, transport_option
from quorumlog.command_errors import ExitCode
from quorumlog.errors import InvalidRequestError
from quorumlog.local_cluster import DIRECTORY_VARIABLE, STATE_FILE, started_at
from tests.node.processes import SingleNode
from tests.patience import PATIENCE_S
from tests.qlog.running import PROGRAM
from tests.quorumlog.fake_cluster import fake_cluster


@click.command()
@server_option
def show(server: str | None) -> None:
    """Print what arrives."""
    click.echo(repr(server))


def test_the_server_comes_from_the_option_then_from_the_environment() -> None:
    environment = {SERVER_VARIABLE: "b:2"}
    assert CliRunner().invoke(show, ["-s", "a:1"], env=environment).stdout == "'a:1'\n"
    assert CliRunner().invoke(show, [], env=environment).stdout == "'b:2'\n"
    assert CliRunner().invoke(show, [], env={SERVER_VARIABLE: None}).stdout == "None\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":1",
        "host:x",
        "host:0",
        "h:65536",
        "h:²",
        "a:1,",
        "http://a:1",
        "a:1;b:2",
    ],
)
def test_a_malformed_address_is_named(text: str) -> None:
    with pytest.raises(CliError, match="is no address of a server") as caught:
        addresses(text)
    assert caught.value.explanation.exit_code == 2


def test_addresses_are_taken_as_given() -> None:
    assert addresses("127.0.0.1:1, [::1]:2") == "127.0.0.1:1,[::1]:2"


def test_tls_needs_a_certificate_with_its_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert tls_files(None).credentials() is None
    for name in (CERTIFICATE_VARIABLE, KEY_VARIABLE):
        with monkeypatch.context() as only:
            only.setenv(name, str(tmp_path / "a.pem"))
            with pytest.raises(CliError, match="only one of"):
                tls_files(None)
    monkeypatch.setenv(CA_VARIABLE, str(tmp_path / "none.pem"))
    with pytest.raises(InvalidRequestError, match="there is no such file"):
        tls_files(None).credentials()


def test_irreversible_commands_need_a_yes_without_a_terminal() -> None:
    result = CliRunner().invoke(main, ["topic", "delete", "orders", "-s", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "error: it needs a confirmation: Delete topic orders and all its messages?",
        "  why: stdin is no terminal, and a command that cannot be undone needs --yes there",
        "  do:  run it again with --yes",
    ]
    confirm("?", is_confirmed=True)


def test_a_no_changes_nothing_and_is_no_interrupt() -> None:
    ours, theirs = os.openpty()
    program = "from qlog import main; main(prog_name='qlog')"
    words = ["topic", "delete", "orders", "-s", "127.0.0.1:1"]
    with open(ours, "wb", buffering=0) as terminal, open(theirs, "rb", buffering=0) as stdin:
        terminal.write(b"n\n")
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            stdin=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("nothing was changed\n")


@pytest.mark.parametrize("is_client", [False, True])
@pytest.mark.parametrize("words", [(), ("-s", "127.0.0.1:1")])
def test_the_local_cluster_is_named_where_no_address_was_given_and_no_node_answers(
    words: tuple[str, ...], is_client: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qlog.connection.is_server_missing", lambda: is_client)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (DIRECTORY_VARIABLE, SERVER_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("qlog.connection.DEFAULT_SERVER", "127.0.0.1:1")
    stderr = CliRunner().invoke(main, ["topic", "list", *words, "--timeout", "100ms"]).stderr
    do = stderr.splitlines()[-1]
    assert do.endswith("check that nodes run there")
    way = "name nodes with --server" if is_client else "start nodes here with 'qlog local start'"
    assert (f"{way}, or check" in do) is (not words)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    stderr = CliRunner().invoke(main, ["topic", "list"]).stderr
    start = "" if is_client else "start one: qlog local start, or "
    assert stderr.endswith(f"  do:  {start}name nodes: --server 127.0.0.1:1\n")


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x09", b""])
def test_a_port_of_another_protocol_is_called_so(answer: bytes) -> None:
    def close(other: socketserver.BaseRequestHandler) -> None:
        other.request.recv(100)
        other.request.sendall(answer)

    handler = type("Closing", (socketserver.BaseRequestHandler,), {"handle": close})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        words = ["topic", "list", "-s", f"127.0.0.1:{server.server_address[1]}", "--timeout", "1s"]
        _, why, do = CliRunner().invoke(main, words).stderr.splitlines()
        server.shutdown()
    assert "speaks another protocol than gRPC" in why
    assert do == "  do:  name the port of listen, 8081 unless set"


async def test_signals_set_events_one_after_the_other() -> None:
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(stop.requested.wait(), PATIENCE_S)
        assert not stop.forced.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.forced.wait(), PATIENCE_S)
        assert stop.requested.is_set()


async def test_work_ends_by_itself_or_when_told_and_a_helper_with_it_or_before() -> None:
    ended = []

    async def forever(name: str) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)
        return name

    async def fail() -> None:
        raise ValueError("broken")

    async def helper() -> None:
        await forever("helper")

    async def late() -> str:
        for _ in range(10):
            await asyncio.sleep(0)
        return "done"

    event = asyncio.Event()
    assert await until(event, asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ValueError, match="broken"):
        await until(event, fail())
    event.set()
    await until(event, forever("told"))
    assert ended == ["told"], "the work was not waited for"
    assert await beside(helper(), asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ValueError, match="broken"):
        await beside(fail(), forever("work"))
    assert await beside(asyncio.sleep(0), late()) == "done"
    assert ended == ["told", "helper", "work"]


async def test_of_two_that_fail_at_once_the_work_is_heard_and_the_helper_dropped() -> None:
    async def fail(why: str) -> None:
        raise ValueError(why)

    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, met: reported.append(met))
    with pytest.raises(ValueError, match="work"):
        await beside(fail("helper"), fail("work"))
    gc.collect()
    assert not reported


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_both_commands(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert "_QLOG_COMPLETE" in result.stdout
    assert "_QUORUMLOG_COMPLETE" in result.stdout


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("topic cr", ["create"]),
        ("explain client.dead", ["client.deadline"]),
        ("context use ", ["default"]),
        ("local kill --dir {} --node 1", ["1", "12"]),
    ],
)
def test_the_shell_gets_completions(words: str, shown: list[str], tmp_path: Path) -> None:
    LocalCluster.create(tmp_path, 1)
    state = json.loads((tmp_path / STATE_FILE).read_text())
    nodes = dict.fromkeys(("1", "12", "2"), state["nodes"]["1"])
    (tmp_path / STATE_FILE).write_text(json.dumps({**state, "nodes": nodes}))
    program = "from qlog import main; main(prog_name='qlog')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "_QLOG_COMPLETE": "bash_complete",
            "XDG_CONFIG_HOME": str(tmp_path),
            "COMP_WORDS": f"qlog {words.format(tmp_path)}",
            "COMP_CWORD": str(len(words.split(" "))),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [f"plain,{name}" for name in shown]


def test_a_shell_that_does_not_number_its_words_gets_no_traceback() -> None:
    environment = {"_QLOG_COMPLETE": "bash_complete", "COMP_WORDS": "qlog to", "COMP_CWORD": "x"}
    result = CliRunner(env=environment).invoke(main, prog_name="qlog")
    assert (result.exit_code, result.stderr) == (0, "")


# `qlog --transport` and its variable.


@click.group()
@transport_option
def top(transport: str) -> None:
    pass


@top.command()
def print_transport() -> None:
    click.echo(transport())


def shown(*arguments: str, variable: str | None = None) -> str:
    run = CliRunner().invoke(
        top, [*arguments, "print-transport"], env={TRANSPORT_VARIABLE: variable}
    )
    assert run.exit_code == 0, run.output
    return run.output.strip()


def test_the_option_counts_before_the_variable_and_that_before_the_default() -> None:
    assert shown() == "auto"
    assert shown(variable="grpc") == "grpc"
    assert shown("--transport", "framed", variable="grpc") == "framed"


def test_an_unknown_transport_is_refused_by_name() -> None:
    run = CliRunner().invoke(top, ["--transport", "pigeon", "print-transport"])
    assert run.exit_code == 2
    assert "'pigeon' is not one of 'auto', 'framed', 'grpc'" in run.output


def test_commands_that_are_run_without_the_top_level_take_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, "grpc")
    assert transport() == "grpc"
    monkeypatch.setenv(TRANSPORT_VARIABLE, "pigeon")
    with pytest.raises(InvalidRequestError, match="transport is 'pigeon'; use one of auto, framed"):
        transport()


# How long a command looks for a cluster.


class _Looked(Exception):  # noqa: N818 - It ends the command where it would connect.
    pass


@pytest.mark.parametrize(
    ("words", "connect_ms", "timeout_ms"),
    [
        ("topic list", 2_000, 10_000),
        ("topic list --timeout 1m", 60_000, 60_000),
        ("topic list --timeout 500ms", 500, 500),
        ("check --timeout 1m", 2_000, 60_000),
        ("top --once", 2_000, 10_000),
        ("bench consume", 2_000, 30_000),
        ("pipeline latency --topic x", 2_000, 10_000),
    ],
)
def test_a_command_looks_two_seconds_for_a_node_or_as_long_as_it_may(
    monkeypatch: pytest.MonkeyPatch, words: str, connect_ms: int, timeout_ms: int
) -> None:
    given: dict[str, object] = {}

    def connect(_addresses: str, **options: object) -> None:
        given.update(options)
        raise _Looked

    monkeypatch.setattr("quorumlog.connect", connect)
    result = CliRunner().invoke(main, [*words.split(), "-s", "127.0.0.1:1"], prog_name="qlog")
    assert "_Looked" in result.output
    assert (given["connect_timeout_ms"], given["timeout_ms"]) == (connect_ms, timeout_ms)


def test_a_terminal_sees_for_whom_a_command_waits_and_a_node_that_starts_late_is_met(
    tmp_path: Path,
) -> None:
    (port,) = free_ports(1)
    words = ["topic", "list", "-s", f"127.0.0.1:{port}", "--timeout", "1m"]
    ours, theirs = os.openpty()
    with open(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stderr=theirs)
        os.close(theirs)
        said = b""
        while b"at most" not in said:
            said += terminal.read(100)
        with SingleNode(tmp_path / "n", listen=f"127.0.0.1:{port}"):
            assert process.wait(PATIENCE_S) == 0
        said += terminal.read(100)
    line = f"waiting for 127.0.0.1:{port}, 1 m at most"
    assert said == f"\r\033[K{line}\r\033[K".encode()


@pytest.mark.parametrize("words", [["topic", "create", "t"], ["produce", "orders", "--file"]])
async def test_a_terminal_sees_that_no_node_leads_and_which_do_not_answer(
    words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("x\n")
    words = [*words, *([str(tmp_path / "in")] if "--file" in words else [])]
    ours, theirs = os.openpty()
    async with fake_cluster() as cluster:
        cluster.leader_id = 0
        one, *others = (node.address for node in cluster.nodes.values())
        for node_id in (2, 3):
            await cluster.nodes[node_id].stop()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, *words, "-s", one, "--timeout", "1s"), stderr=theirs
        )
        os.close(theirs)
        said = b""
        while b"  do:  " not in said:
            said += await asyncio.to_thread(os.read, ours, 4_096)
        assert await process.wait() == ExitCode.TIMEOUT
    os.close(ours)
    waiting, _, end = said.decode().partition("error: ")
    assert "no node leads: 2 of 3 do not answer; 1 s at most" in waiting
    assert "no node led within 1000 ms\r\n" in end
    assert f"  why: {others[0]} and {others[1]} do not answer" in end
    assert "  do:  start one of them" in end


@pytest.mark.parametrize("words", ["topic list", "produce t", "consume t", "nameserver get a"])
def test_a_node_that_does_not_answer_in_time_is_a_timeout(words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        line = [*words.split(), "-s", address, "--timeout", "1ms"]
        result = CliRunner().invoke(main, line, input="x", prog_name="qlog")
    assert result.exit_code == ExitCode.TIMEOUT, result.output
    assert address in result.stderr
    assert "unknown" not in result.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no local cluster in "),
        ("FIFO", "it is a FIFO, and no file"),
        ("/dev/zero", "it is a device, and no file"),
        ("{", "it is no JSON"),
        ('{"nodes": []}', "it names no nodes"),
        ('{"nodes": {"1": {}}}', "it names no cluster"),
        ('{"nodes": {"1": {}}, "cluster_id": "c"}', "address_port of node 1 is missing or of"),
    ],
)
def test_without_a_state_of_the_local_cluster_no_other_one_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, words: str
) -> None:
    file = tmp_path / STATE_FILE
    if content == "FIFO":
        os.mkfifo(file)
    elif content == "/dev/zero":
        file.symlink_to(content)
    elif content is not None:
        file.write_text(content)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    for command in (["topic", "list"], ["local", "status"]):
        result = CliRunner().invoke(main, command, env={SERVER_VARIABLE: None}, prog_name="qlog")
        assert result.exit_code in (3, 4), result.output
        assert words in result.stderr
    monkeypatch.delenv(DIRECTORY_VARIABLE)
    monkeypatch.delenv(SERVER_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    assert addresses(None) == DEFAULT_SERVER
    (tmp_path / "home/.quorumlog").mkdir(parents=True)
    (tmp_path / "home/.quorumlog/local").symlink_to(tmp_path / "a missing disk")
    with pytest.raises(CliError, match="there is no local"):
        addresses(None)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(file / "below"))
    with pytest.raises(CliError, match=r"it cannot be read|there is no local"):
        addresses(None)


@pytest.mark.parametrize("words", ["local purge --yes", "local start", "chaos pause"])
def test_an_empty_directory_is_not_the_default_one(tmp_path: Path, words: str) -> None:
    LocalCluster.create(tmp_path, 1)
    environment = {DIRECTORY_VARIABLE: str(tmp_path)}
    result = CliRunner().invoke(main, [*words.split(), "--dir", ""], env=environment)
    assert result.exit_code == ExitCode.USAGE, result.output
    assert "it is empty" in result.stderr
    assert (tmp_path / STATE_FILE).exists()


def test_a_stopped_local_cluster_is_not_another_one_that_has_its_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SERVER_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as strange:
        cluster = LocalCluster.create(tmp_path, 1)
        file = tmp_path / STATE_FILE
        state = json.loads(file.read_text())
        state["nodes"]["1"]["address_port"] = port = strange.getsockname()[1]
        file.write_text(json.dumps(state))
        data = cluster.node_directory(1) / "data"
        data.mkdir()
        for started in ("an earlier process", started_at(os.getpid())):
            node = {"pid": os.getpid(), "started": started}
            (data / "node.json").write_text(json.dumps(node))
            if "earlier" in started:
                with pytest.raises(CliError, match="is stopped") as caught:
                    addresses(None)
                assert caught.value.explanation.do == "start it: qlog local start"
        assert addresses(None) == f"127.0.0.1:{port}"
