"""Any argument in any public call, on a real node, beside others who use the same objects.

Each example hands one or two arguments of no use to one call, in the same turn in which others have
messages under way in the same producer. Whatever it is told, the message of the others arrives, is
pulled by the same client and read by the same consumers.
"""

import asyncio
import contextlib
import inspect
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import quorumlog
from deploy.local import LocalCluster
from quorumlog import errors, sync, testing
from quorumlog.cluster import nameserver
from tests.patience import PATIENCE_S
from tests.quorumlog import surface
from tests.quorumlog.surface import Call

pytestmark = pytest.mark.long
TOPIC: Final = "orders"  # Of those who behave; calls get "spare".
CALL_S: Final = 5.0
CALL_MS: Final = 1_500  # Of a call that asks what nobody answers.
OTHERS_MS: Final = 30_000
"""Of the calls of somebody else, which a busy machine must not fail: a consumer stays failed."""
EXAMPLES_MAX: Final = 10


class RudeError(Exception):
    """What a callback of a program raises."""


def rude(*_args: Any, **_named: Any) -> Any:
    raise RudeError


class Odd:
    """An object that is nothing, and says so."""

    def __repr__(self) -> str:
        raise RudeError


def odd_message(**odd: Any) -> quorumlog.OutgoingMessage:
    return quorumlog.OutgoingMessage(**{"body": b"x", **odd})


STRANGE: Final[tuple[Any, ...]] = (
    *(None, True, False, math.nan, math.inf, -math.inf, 0.5, -1, 0, 1, 1e300, 1j, ...),
    *(2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**400),
    *("", " ", "\0", "a\0b", "\x01\x02", "\ud800", "a\udfff", "ä€😀", "x" * 300, "x" * 5_000_000),
    *("first", "@", "@9" * 9, "@" + "9" * 30, "9" * 5_000, "%RETRY%spare", "rmq_sys_quorumlog"),
    *("linearizable", "local", "commit", "unknown", "(" * 500, "a >"),
    *("1.2.3.4:99999", ":", "host:-1"),
    *(b"", b"\xff\xfe", bytearray(b"x"), memoryview(b"xy"), [], {}, (), set(), [None], [[]]),
    *(["\ud800"], [2**70], [-1], ["a", 1], {"a": None}, {"\ud800": "b"}, {("a", -1): 1}, {1: 2}),
    *({("orders", 2**40): 0}, {("orders", 0): 2**70}, [("orders", "0")], [("orders",)], [Odd()]),
    *(Odd(), Odd, rude, object(), RudeError, quorumlog.Queue("spare", 2**40), iter([1])),
    *(quorumlog.Queue("\ud800", 0), quorumlog.Queue("spare", 0, "\ud800"), range(10)),
    *(odd_message(body=None), odd_message(queue_id=2**31), [odd_message(topic="\ud800")]),
    *(("orders", 1), [("orders", 1)], quorumlog.Queue("orders", 1)),
    *([odd_message(flag=1.5)], [odd_message(properties=5)], [odd_message(key=5)]),
)
values = st.sampled_from(STRANGE) | st.text(max_size=5) | st.integers() | st.floats()


class Environment:
    """A node of its own, and one of each object that has public calls."""

    def __init__(self, directory: Path) -> None:
        settings = {"file_size_bytes": "4MiB", "batch_size_bytes_max": "1MiB"}
        self.cluster = LocalCluster.create(directory, 1, settings=settings)
        self.cluster.start()
        self.cluster.wait_ready()
        self.bootstrap = self.cluster.bootstrap
        self.unused = LocalCluster.create(directory / "unused", 1)
        self.runner = asyncio.Runner()
        self.sent_count = 0
        self.runner.run(self._begin())
        self.blocking = sync.connect(self.bootstrap, timeout_ms=CALL_MS)
        self.blocking.start()
        self.made = self._all_made()

    async def _begin(self) -> None:
        self.client = quorumlog.connect(self.bootstrap, timeout_ms=CALL_MS)
        await self.client.start()
        for topic in (TOPIC, "spare"):
            await self.client.admin.create_topic(topic, queue_count=4)
        self.producer = self.client.producer(timeout_ms=OTHERS_MS)
        await self.producer.send("spare", b"first", queue_id=1)
        (self.received,) = await self.pop_consumer().receive(1, wait=5)
        self.others = quorumlog.connect(self.bootstrap, timeout_ms=OTHERS_MS)
        await self.others.start()
        self.pull = self.others.pull_consumer(TOPIC, queues=[0])
        await self.pull.start()
        self.broker_group = self.client._cluster.home

    def pop_consumer(self) -> quorumlog.PopConsumer:
        return self.client.pop_consumer("popping", "spare")

    def local_work(self, _transaction: object) -> Any:
        async def decide() -> str:
            return "rollback"

        return decide()

    def _all_made(self) -> dict[str, Any]:
        """By the class whose calls they have; a function makes one that a call may have ended."""
        client, blocking = self.client, self.blocking
        check = surface.SENSIBLE["check"](self)
        return {
            "": None,
            "Admin": client.admin,
            "Client": client,
            "ConsumeTransaction": lambda: client.transaction("consuming"),
            "GroupConsumer": lambda: client.group_consumer("members", "spare"),
            "NameServers": nameserver.NameServers(self.bootstrap, timeout_ms=3_000),
            "PopConsumer": self.pop_consumer(),
            "Producer": self.producer,
            "PullConsumer": lambda: client.pull_consumer("spare"),
            "Raw": client.raw,
            "TransactionalProducer": client.transactional_producer("work", check),
            "sync.Admin": blocking.admin,
            "sync.Client": blocking,
            "sync.ConsumeTransaction": lambda: blocking.transaction("consuming"),
            "sync.GroupConsumer": lambda: blocking.group_consumer("members", "spare"),
            "sync.PopConsumer": blocking.pop_consumer("popping", "spare"),
            "sync.Producer": blocking.producer(timeout_ms=OTHERS_MS),
            "sync.PullConsumer": lambda: blocking.pull_consumer("spare"),
            "sync.Raw": blocking.raw,
            "sync.TransactionalProducer": blocking.transactional_producer("work", check),
            "testing.Cluster": testing.Cluster(self.unused.directory),
            "testing.SyncCluster": testing.SyncCluster(self.unused.directory),
        }

    def close(self) -> None:
        """End everything, also when something cannot be closed."""
        try:
            with contextlib.suppress(errors.QuorumlogError):
                self.blocking.close()
            with contextlib.suppress(errors.QuorumlogError):
                self.runner.run(self.client.close())
            self.runner.run(self.others.close())
            self.runner.run(self.made["NameServers"].__aexit__(None, None, None))
            self.runner.close()
        finally:
            self.cluster.stop()
            self.unused.stop()


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    made = Environment(tmp_path_factory.mktemp("arguments") / "c")
    yield made
    made.close()


async def finish(result: Any) -> None:
    """Use what a call has made, and end it."""
    if inspect.isawaitable(result):
        result = await result
    if inspect.isasyncgen(result):
        try:
            await anext(result, None)
        finally:
            await result.aclose()
        return
    if hasattr(result, "__aenter__") and not isinstance(result, quorumlog.Client):
        async with result:
            pass
    elif hasattr(result, "close"):
        try:
            if hasattr(result, "start"):
                await result.start()
        finally:
            await result.close()


def finish_blocking(result: Any) -> None:
    """The same without asyncio."""
    if inspect.isgenerator(result):
        try:
            next(result, None)
        finally:
            result.close()
    elif hasattr(result, "__enter__"):
        with result:
            pass


def accept(error: BaseException, call: Call, strange: dict[str, Any]) -> None:
    """An error of ours, with words of ours; else the test fails."""
    if isinstance(error, RudeError | TimeoutError):
        return  # The callback's own error, and a call that waits as long as it was told to.
    assert isinstance(error, errors.QuorumlogError), f"{call}({strange}): {error!r}"
    assert error.code, call
    assert len(str(error)) > 10, call
    assert not isinstance(error, errors.InternalError), f"{call}({strange}): {error!r}"
    if isinstance(error, errors.InvalidRequestError) and error.code.startswith("client."):
        assert "; " in str(error), f"{call}({strange}) does not say what to do: {error}"


def target_of(env: Environment, call: Call) -> tuple[Any, Any]:
    """The object that has the call, if one has, and what is called."""
    if not call.owner:
        return None, call.function
    made = env.made[call.owner]
    made = made() if inspect.isfunction(made) else made
    return made, getattr(made, call.name)


def is_blocking(call: Call) -> bool:
    return str(call).startswith(("sync.", "testing.Sync", "testing.sync"))


async def make_call(env: Environment, call: Call, strange: dict[str, Any]) -> None:
    named = {**surface.arguments(call, env), **strange}
    try:
        made, function = target_of(env, call)
        try:
            is_cluster = (
                call.function.__name__ == "sync_cluster"
            )  # It would start one, where nothing is wrong.
            if is_blocking(call):
                result = variadic(call, function, named)
                if not is_cluster:
                    finish_blocking(result)
                return
            async with asyncio.timeout(CALL_S):
                result = variadic(call, function, named)
                if not is_cluster:
                    await finish(result)
        finally:
            if made is not env.made.get(call.owner) and hasattr(made, "close"):
                closing = made.close()
                if inspect.isawaitable(closing):
                    await closing
    except Exception as error:  # noqa: BLE001 - `accept` says which are expected.
        accept(error, call, strange)


def variadic(call: Call, function: Any, named: dict[str, Any]) -> Any:
    """Call it; what it takes as `*topics` is handed over by its place."""
    rest = [
        p.name
        for p in inspect.signature(call.function).parameters.values()
        if p.kind is p.VAR_POSITIONAL
    ]
    by_place = [named.pop(name) for name in rest]
    return function(*by_place, **named)


async def with_others(env: Environment, call: Call, strange: dict[str, Any]) -> None:
    """Make the call while a message of somebody else waits to leave, and look for that one."""
    body = b"%08d" % env.sent_count
    env.sent_count += 1
    producer: Any = env.made["sync.Producer"] if is_blocking(call) else env.producer
    waiting = producer.send_nowait(TOPIC, body, queue_id=0)
    await make_call(env, call, strange)
    async with asyncio.timeout(PATIENCE_S):
        if is_blocking(call):
            batch = env.blocking.pull(TOPIC, 0, waiting.receipt().queue_offset)
        else:
            batch = await env.others.pull(TOPIC, 0, (await waiting).queue_offset)
        assert batch.bodies()[0] == body
        while (await anext(env.pull)).body != body:
            pass  # Of an example that has failed.


def strange_arguments(call: Call) -> st.SearchStrategy[dict[str, Any]]:
    names = st.lists(st.sampled_from(call.parameters), min_size=1, max_size=2, unique=True)
    made = names.flatmap(lambda chosen: st.fixed_dictionaries(dict.fromkeys(chosen, values)))
    return made.filter(lambda strange: strange.get("undo") is not False)  # That would drain.


@pytest.mark.parametrize("call", surface.calls(), ids=str)
def test_no_argument_harms_another_call(env: Environment, call: Call) -> None:
    @settings(
        max_examples=EXAMPLES_MAX,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(strange_arguments(call))
    def examine(strange: dict[str, Any]) -> None:
        env.runner.run(with_others(env, call, strange))

    examine()
    assert env.cluster.is_alive(1), "the node has ended"
