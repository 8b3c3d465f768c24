"""What a world puts in the place of Python's modules: simulated by name, or refused by name."""

import asyncio
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

import pytest

from node.monitoring import shared_page
from node.peers import acceptor
from node.replication import lives
from quorumlog.cluster import routes
from simulation.world import World, is_of_a_node


def test_a_module_refuses_by_name_what_is_not_simulated() -> None:
    with World(1):
        held: Any = vars(routes)["random"]
        with pytest.raises(NotImplementedError, match=r"random\.gauss is not simulated"):
            held.gauss(0, 1)


@pytest.mark.parametrize(
    ("module", "name"),
    [(time, "clock_gettime"), (threading, "enumerate"), (socket, "socketpair"), (os, "fork")],
)
def test_a_function_by_itself_is_refused_by_name(module: ModuleType, name: str) -> None:
    with World(1) as world:
        part = world.parts()[getattr(module, name)]
        with pytest.raises(NotImplementedError, match=rf"{module.__name__}\.{name} is not simul"):
            part()


@pytest.mark.parametrize(
    "real",
    [time.thread_time, time.process_time, threading.Lock, os._exit, os.urandom, random.uniform],
)
def test_a_function_by_itself_is_simulated(real: Any) -> None:
    with World(1) as world:
        assert world.parts()[real] is not real


def test_processor_time_of_a_page_is_time_of_the_world() -> None:
    initialize: Any = shared_page.SharedPage.__init__
    assert initialize.__defaults__ == (time.thread_time,)
    with World(1) as world:
        (cpu_s,) = initialize.__defaults__
        world.run_s(7)
        assert cpu_s() == 7.0
    assert initialize.__defaults__ == (time.thread_time,)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("quorumlog.client", True),
        ("qlog", False),
        ("qlog.messages", False),
        ("quorumlog.consume.sync_commit", True),
        ("node.__main__", False),
    ],
)
def test_modules_are_left_out_by_whole_names(module: str, expected: bool) -> None:
    assert is_of_a_node(module) is expected


def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def _held() -> Any:
    """Return the module `socket` as a node holds it."""
    return vars(acceptor)["socket"]


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (lambda: _loop().create_connection(asyncio.Protocol, "host1", 7, ssl=True), "ssl"),
        (
            lambda: _loop().create_connection(
                asyncio.Protocol, "host1", 7, local_addr=("host1", 8)
            ),
            "local_addr",
        ),
        (lambda: _loop().create_server(asyncio.Protocol, sock=cast(Any, object())), "sock"),
        (lambda: _held().create_server(("::1", 0), family=socket.AF_INET6), "family"),
        (lambda: _loop().getaddrinfo("host1", 7, family=socket.AF_INET6), "family"),
        (
            lambda: (
                _held()
                .create_server(("0.0.0.0", 0))
                .setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            ),
            "option",
        ),
        (lambda: vars(lives)["ThreadPoolExecutor"](1, initializer=print), "initializer"),
    ],
)
def test_a_parameter_that_is_not_simulated_is_refused(ask: Callable[[], Any], what: str) -> None:
    async def main() -> int:
        with pytest.raises(NotImplementedError, match=rf"{what}\b.* not simulated"):
            await ask()
        return 0

    with World(1) as world:
        process = world.add_machine().run("node", main)
        world.run_s(1)
        assert process.error is None
        assert process.exit_code == 0
