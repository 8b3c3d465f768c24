"""Delayed links: late, in order, and gone when they are cut."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from bench.delayed_links import DelayedLinks
from tests.patience import PATIENCE_S

DELAY_MS = 30.0


@pytest.fixture
def target() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        yield listener


@pytest.fixture
def links() -> Iterator[DelayedLinks]:
    with DelayedLinks(DELAY_MS) as links:
        yield links


def relay(links: DelayedLinks, target: socket.socket, source: int = 1, to: int = 2) -> int:
    return links.relay(source, to, target.getsockname()[1])


def accept(target: socket.socket) -> socket.socket:
    connection, _ = target.accept()
    connection.settimeout(PATIENCE_S)
    return connection


def dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def read_exactly(source: socket.socket, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        part = source.recv(size_bytes - len(data))
        assert part, f"the link ended after {len(data)} of {size_bytes} bytes"
        data += part
    return data


def is_reset(source: socket.socket) -> bool:
    try:
        return source.recv(1) == b""
    except ConnectionError:
        return True


def is_refused(port: int) -> bool:
    """A reset may come while the connection is still being made."""
    try:
        with dial(port) as source:
            return is_reset(source)
    except ConnectionError:
        return True


@pytest.mark.long
def test_both_directions_are_late_and_in_order(links: DelayedLinks, target: socket.socket) -> None:
    with dial(relay(links, target)) as source, accept(target) as there:
        began = time.perf_counter()
        for n in range(100):
            source.sendall(n.to_bytes(2, "big"))
        assert read_exactly(there, 200) == b"".join(n.to_bytes(2, "big") for n in range(100))
        there.sendall(b"back")
        assert read_exactly(source, 4) == b"back"
        assert (time.perf_counter() - began) * 1e3 >= 2 * DELAY_MS


def test_more_than_a_link_holds_arrives_whole(links: DelayedLinks, target: socket.socket) -> None:
    data = bytes(range(256)) * (96 << 10)  # 24 MiB: more than is held on the way.
    with dial(relay(links, target)) as source, accept(target) as there:
        sender = threading.Thread(target=source.sendall, args=(data,))
        sender.start()
        assert read_exactly(there, len(data)) == data
        sender.join(PATIENCE_S)


def test_bytes_sent_before_a_close_arrive(links: DelayedLinks, target: socket.socket) -> None:
    with dial(relay(links, target)) as source, accept(target) as there:
        source.sendall(b"last words")
        source.close()
        assert read_exactly(there, 10) == b"last words"
        assert is_reset(there)


def test_a_cut_drops_what_is_on_its_way_and_refuses_until_joined(target: socket.socket) -> None:
    with DelayedLinks(60_000) as links:  # Nothing arrives within the test.
        port, other = relay(links, target), relay(links, target, 2, 3)
        with dial(port) as source, accept(target) as there:
            source.sendall(b"never to arrive")
            links.cut(1)
            assert is_reset(there)
            assert is_reset(source)
            assert is_refused(port)
        with dial(other), accept(target):
            pass  # It has nothing to do with node 1.
        links.join(1)
        with dial(port), accept(target):
            pass


def test_a_node_that_is_down_resets_who_dials_it(
    links: DelayedLinks, target: socket.socket
) -> None:
    port = relay(links, target)
    target.close()
    assert is_refused(port)
