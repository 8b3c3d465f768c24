"""Whoever holds on to connections of the HTTP port: probes are answered all the same."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from node.monitoring.http_connections import (
    CONNECTION_COUNT_MAX,
    REQUEST_SIZE_BYTES_MAX,
)
from tests.loopback import host_and_port
from tests.node.processes import SingleNode
from tests.node.services.bounds.half_senders import metric, resident_size_bytes
from tests.patience import PATIENCE_S, wait_for

STRANGER_COUNT = 300
PROBE_COUNT = 25
ELSEWHERE = "127.0.0.2"
"""Another address of this machine, for an attack that does not come from where probes come from."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SingleNode]:
    with SingleNode(tmp_path_factory.mktemp("http") / "data") as node:
        yield node


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SingleNode]:
    """A node that gives a connection little time."""
    directory = tmp_path_factory.mktemp("brief") / "data"
    with SingleNode(directory, {"http_ms_max": 2_000}) as node:
        yield node


def http_address(node: SingleNode) -> tuple[str, int]:
    return host_and_port(node.node_json()["http_address"])


@contextmanager
def strangers(node: SingleNode, source: str, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                socket.create_connection(
                    http_address(node),
                    timeout=PATIENCE_S,
                    source_address=(source, 0),
                )
            )
            for _ in range(count)
        ]


def probes_are_answered(node: SingleNode) -> None:
    for _ in range(PROBE_COUNT):
        for page in ("/live", "/ready"):
            assert node.http(page)[0] == 200
    assert node.http("/metrics")[0] == 200


def is_closed(link: socket.socket) -> bool:
    link.setblocking(False)
    try:
        return not link.recv(1)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize("source", ["127.0.0.1", ELSEWHERE])
def test_silent_connections_do_not_keep_probes_out(node: SingleNode, source: str) -> None:
    """300 of them turned every page into a 503 for as long as they stayed."""
    with strangers(node, source, STRANGER_COUNT):
        probes_are_answered(node)
        assert metric(node, "http_connections") <= CONNECTION_COUNT_MAX
        assert metric(node, "http_connections_limit") == CONNECTION_COUNT_MAX
        assert metric(node, 'http_closed_total{reason="no_room"}') > 0


@pytest.mark.long
def test_a_silent_connection_ends_after_its_time(brief: SingleNode) -> None:
    before = metric(brief, 'http_closed_total{reason="too_slow"}')
    with strangers(brief, ELSEWHERE, 3) as links:
        wait_for("the end of all of them", lambda: all(map(is_closed, links)))
    assert metric(brief, 'http_closed_total{reason="too_slow"}') == before + 3


def test_an_attack_from_elsewhere_drives_out_nobody_here(node: SingleNode) -> None:
    """The one that goes is of the address with most of them, however old another is."""
    with strangers(node, "127.0.0.1", 1) as (mine,), strangers(node, ELSEWHERE, STRANGER_COUNT):
        assert metric(node, "http_connections") <= CONNECTION_COUNT_MAX
        mine.sendall(b"GET /live HTTP/1.1\r\nhost: here\r\n\r\n")
        assert mine.recv(4096).startswith(b"HTTP/1.1 200")


@contextmanager
def attacking(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run an attack beside the test until it ends."""
    is_over = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work(is_over)
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    assert not failed


@pytest.mark.long
def test_slow_requests_do_not_keep_probes_out(node: SingleNode) -> None:
    """A byte now and then on each of 300 connections, begun again when one is closed."""

    def drip(is_over: threading.Event) -> None:
        text = b"GET /live HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 1_000
        links: dict[int, tuple[socket.socket, int]] = {}
        while not is_over.wait(0.05):
            for number in range(STRANGER_COUNT):
                try:
                    if number not in links:
                        links[number] = (
                            socket.create_connection(http_address(node)),
                            0,
                        )
                    link, at = links[number]
                    link.send(text[at : at + 1])
                    links[number] = (link, at + 1)
                except OSError:
                    links.pop(number)[0].close()
        for link, _ in links.values():
            link.close()

    before = metric(node, 'http_closed_total{reason="no_room"}')
    with attacking(drip):
        wait_for(
            "a table that was full",
            lambda: metric(node, 'http_closed_total{reason="no_room"}') > before,
        )
        probes_are_answered(node)


@pytest.mark.long
def test_pipelined_requests_that_nobody_reads_cost_bounded_memory(node: SingleNode) -> None:
    """One request is answered, what follows it is not read, and the rest is bounded in bytes."""
    before = resident_size_bytes(node)
    request = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"

    def flood(is_over: threading.Event) -> None:
        while not is_over.is_set():
            with strangers(node, ELSEWHERE, 100) as links:
                for link in links:
                    link.setblocking(False)
                    try:
                        link.sendall(request * 2_000)
                    except OSError:
                        pass

    with attacking(flood):
        probes_are_answered(node)
    assert resident_size_bytes(node) - before < 64 << 20
    probes_are_answered(node)


def test_each_connection_is_answered_once(node: SingleNode) -> None:
    request = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"
    with strangers(node, "127.0.0.1", 1) as (link,):
        link.sendall(request * 3)
        answer = b""
        while data := link.recv(4096):
            answer += data
    assert answer.count(b"HTTP/1.1 200") == 1
    assert b"connection: close" in answer


def test_a_request_without_an_end_is_cut(node: SingleNode) -> None:
    before = metric(node, 'http_closed_total{reason="too_large"}')
    much = b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * REQUEST_SIZE_BYTES_MAX
    with strangers(node, "127.0.0.1", 1) as (link,), pytest.raises(ConnectionError):
        link.sendall(much * 100)
    assert metric(node, 'http_closed_total{reason="too_large"}') == before + 1


@pytest.mark.long
def test_bad_requests_are_counted_and_logged_now_and_then(node: SingleNode) -> None:
    lines_before = node.log_path.read_text().splitlines()
    before = metric(node, 'http_closed_total{reason="bad_request"}')
    for _ in range(500):
        with strangers(node, "127.0.0.1", 1) as (link,):
            link.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
            assert link.recv(100).startswith(b"HTTP/1.1 400")
    assert metric(node, 'http_closed_total{reason="bad_request"}') == before + 500
    lines = node.log_path.read_text().splitlines()[len(lines_before) :]
    assert len(lines) < 10
    shown: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert shown
