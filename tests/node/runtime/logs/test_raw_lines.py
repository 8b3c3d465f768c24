"""Every line of a log in JSON is JSON, whoever wrote it, and a flood of them is cut short."""

import contextlib
import json
import socket
import ssl
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from node.metrics import LOG_LINES
from node.runtime.logs.line_budget import INTERVAL_S, LINE_COUNT_MAX, LineBudget
from node.runtime.logs.raw_lines import LINE_SIZE_BYTES_MAX
from tests.loopback import host_and_port
from tests.node.peers.certificates import tls_settings
from tests.node.processes import SingleNode
from tests.patience import PATIENCE_S, wait_for
from tests.seeds import noise

pytestmark = pytest.mark.long

_HEAD = """
import ctypes, logging, os, sys, threading, traceback, warnings
from node.runtime.logs import form
form.configure("info", "json", bound={"node": 1})
native = ctypes.CDLL(None)
def say(text):
    native.write(2, text, len(text))
"""


def lines_of(program: str, *, code: int = 0) -> list[dict[str, Any]]:
    """Run a program whose log is JSON; all of its stderr has to be."""
    done = subprocess.run(
        [sys.executable, "-c", _HEAD + program],
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == code, done.stderr
    log_lines = [json.loads(line) for line in done.stderr.decode().splitlines()]
    assert all(line["node"] == 1 and line["time"] and line["level"] for line in log_lines)
    return log_lines


def test_any_write_to_stderr_becomes_log_lines() -> None:
    log_lines = lines_of(
        """
print("printed", file=sys.stderr)
sys.stderr.write("in ")
sys.stderr.write("parts\\nand a rest")
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()
    logging.getLogger("pysyncobj.syncobj").exception("failed to load full dump")
    logging.getLogger("asyncio").error("a task\\nwith two lines", exc_info=True)
warnings.warn("be warned")
thread = threading.Thread(target=lambda: {}["nothing"])
thread.start(); thread.join()
class Bad:
    def __del__(self): raise ValueError("ignored")
bad = Bad(); del bad
say(b"of native code\\n")
say(b"\\xff\\xfe \\x1b[31m\\n")
say(b"without an end")
"""
    )
    events = [(line["component"], line["event"]) for line in log_lines]
    for event in (
        ("stderr", "printed"),
        ("stderr", "in parts"),
        ("stderr", "ZeroDivisionError: division by zero"),
        ("pysyncobj.syncobj", "failed to load full dump"),
        ("asyncio", "a task\nwith two lines"),
        ("stderr", "KeyError: 'nothing'"),
        ("stderr", "ValueError: ignored"),
        ("native", "of native code"),
        ("native", "\ufffd\ufffd \x1b[31m"),
        ("native", "without an end"),
    ):
        assert event in events
    assert any("be warned" in text for _, text in events)
    tracebacks = [line for line in log_lines if "exception" in line]
    assert all("ZeroDivisionError" in line["exception"] for line in tracebacks)
    assert len(tracebacks) == 2


def test_the_last_words_of_a_process_are_all_there() -> None:
    log_lines = lines_of(
        """
import pathlib, tempfile
from node.runtime.fail_stop import FailStop
stop = FailStop(pathlib.Path(tempfile.mkdtemp()))
try:
    assert 3 < 2, "offset 3 > 2"
except AssertionError as error:
    stop(error)
""",
        code=70,
    )
    events = [line["event"] for line in log_lines]
    assert "AssertionError: offset 3 > 2" in events
    assert any("Nothing after it was acknowledged" in event for event in events)


def test_floods_are_cut_short_and_counted() -> None:
    log_lines = lines_of(
        """
from node.runtime.logs.line_budget import left_out
for number in range(3_000):
    say(b"flood\\n" if number else b"x" * 20_000 + b"\\n")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    logging.getLogger("node.of.ours").warning("kept %d", number)
import time
while sum(left_out.values()) < 2 * 2_900: time.sleep(0.01)
print(dict(left_out), file=sys.stderr)
"""
    )
    by_component: dict[str, list[str]] = {}
    for line in log_lines:
        by_component.setdefault(line["component"], []).append(line["event"])
    assert len(by_component["uvicorn.error"]) == LINE_COUNT_MAX
    assert len(by_component["native"]) == LINE_COUNT_MAX
    assert len(by_component["node.of.ours"]) == 3_000
    assert max(map(len, by_component["native"])) <= LINE_SIZE_BYTES_MAX
    assert "'uvicorn.error': 2950" in by_component["stderr"][0]


def test_after_a_flood_a_line_says_how_many_are_missing() -> None:
    now_s = [0.0]
    budget = LineBudget(lambda: now_s[0])
    assert [budget.take("a") for _ in range(LINE_COUNT_MAX)] == [0] * LINE_COUNT_MAX
    assert [budget.take("a") for _ in range(7)] == [None] * 7
    assert budget.take("b") == 0
    now_s[0] += INTERVAL_S
    assert [budget.take("a"), budget.take("a")] == [7, 0]


def test_lines_that_are_left_out_meanwhile_do_not_end_a_look_at_the_metrics() -> None:
    """Threads of gRPC and of native lines count, while the loop answers Prometheus."""
    counts = Counter(grpc=1, native=2)
    totals = LOG_LINES["log_lines_left_out"].read(counts)
    counts["asyncio"] += 1
    assert totals == {"grpc": 1, "native": 2}


def test_a_node_s_log_is_json_whatever_strangers_do(tmp_path: Path) -> None:
    """gRPC wrote a raw line for each failed handshake, and uvicorn one for each bad request."""
    _, given = tls_settings(tmp_path)
    flags = {name: "" if value is True else str(value) for name, value in given.items()}
    node = SingleNode(tmp_path / "data", **flags)
    garbage = (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00" + noise(300), b"\x80" * 20)
    careless = ssl.create_default_context()
    careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
    with node:
        listening = node.node_json()
        for name in ("address", "peer_address", "http_address"):
            at = host_and_port(listening[name])
            for data in garbage * 40:
                with socket.create_connection(at, timeout=PATIENCE_S) as link:
                    link.sendall(data)
        at = host_and_port(listening["address"])
        with (
            socket.create_connection(at, timeout=PATIENCE_S) as link,
            contextlib.suppress(OSError),
            careless.wrap_socket(link) as tls,
        ):
            tls.recv(1)
        wait_for("the fault", lambda: "it shows no certificate" in node.log_path.read_text())
        node.stop()
    lines = [json.loads(line) for line in node.log_path.read_text().splitlines()]
    assert len([line for line in lines if line["component"] == "native"]) <= 3 * LINE_COUNT_MAX
    [started] = [line for line in lines if line["event"] == "listening"]
    assert started["framed_address"] == "127.0.0.1" + listening["framed_address"]
    refused = [line["event"] for line in lines if line["component"] == "node.grpc"]
    assert 2 <= len(refused) <= 8
    assert "it does not speak TLS, and this side does: use TLS on both sides" in refused[0]
    assert len([line for line in lines if "http_connections" in line["component"]]) <= 8
