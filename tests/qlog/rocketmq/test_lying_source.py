"""A source that lies: the import ends with a typed error, and holds and stores nothing of it."""

import asyncio
import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from node.rocketmq.remoting import channel
from qlog import main
from qlog.connection import SERVER_VARIABLE
from qlog.rocketmq import groups, records, source, topics
from qlog.rocketmq.shapes import SourceError
from store.record.message import encode_message
from tests.node.rocketmq.remoting.codes import ALL_GROUPS, CLUSTER, MAX, PULL, ROUTE, TOPICS
from tests.qlog.rocketmq.clusters import target_at
from tests.qlog.rocketmq.lying_source import Lie, frame, route, said, source_with
from tests.qlog.running import PROGRAM

HOSTILE = "\x1b]0;owned\x07\x1b[2J[red]\u202e\x9b1m\nerror: forged"
HERE = "127.0.0.1:1"


class Case(NamedTuple):
    """A lie, the exit code, and a part of the three lines."""

    lies: dict[int, Lie]
    code: int
    why: str


def _record(offset: int, properties: dict[str, str] | None = None) -> bytes:
    return encode_message("t", 0, b"x", properties or {}, queue_offset=offset)


def _pulled(*record_bytes: bytes, next_offset: int) -> dict[int, Lie]:
    return {PULL: said(b"".join(record_bytes), nextBeginOffset=str(next_offset))}


def _one_further(ext: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    return 20, {"nextBeginOffset": str(int(ext["queueOffset"]) + 1)}, b""


def _pages() -> Lie:
    numbers = count()
    total = {"totalGroupNum": "100000"}

    def page(_: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        return 0, total, b'{"subscriptionGroupTable":{"g%d":{}}}' % next(numbers)

    return page


_MANY = _record(0, {f"p{n}": "x" for n in range(9)})
_GOOD = _record(0)
CASES = {
    "pulls without progress": Case(
        {MAX: said(offset=str(1 << 62)), PULL: _one_further}, 1, "21 pulls in a row"
    ),
    "a broker without a master holds up no other": Case(
        {CLUSTER: said({"brokerAddrTable": {"x": {"brokerAddrs": {}}}, "clusterAddrTable": {}})},
        1,
        "broker x has no master now",
    ),
    "pages of groups": Case({ALL_GROUPS: _pages()}, 3, "more than 3 pages of groups"),
    "groups": Case(
        {ALL_GROUPS: said({"subscriptionGroupTable": {str(n): {} for n in range(9)}})},
        3,
        "more than 8 groups",
    ),
    "refusals": Case(
        {TOPICS: said({"topicList": [f"/{n}" for n in range(9)]})}, 3, "more than 8 topics and"
    ),
    "queues": Case(
        {TOPICS: said({"topicList": ["t", "u"]})}, 1, "topic u has 1 queues, and 0 more"
    ),
    "values": Case(
        {ALL_GROUPS: said(b'{"g":[' + b"[]," * 300_000 + b"[]]}")}, 3, "more than 262144 values"
    ),
    "size": Case({ROUTE: said(b'"' * (2 << 20))}, 1, "at most 1048576 are read"),
    "depth": Case({TOPICS: said(b"[" * 300_000)}, 3, "nested more than 12 deep"),
    "quotes of a string without an end": Case(
        {TOPICS: said(b'{"' + rb"\"" * 2_000_000)}, 3, "a body that is no JSON"
    ),
    "a frame": Case({TOPICS: lambda _: b"\x7f\xff\xff\xf0\0\0\0\x0a"}, 3, "length 21474"),
    "answers without a request": Case(
        {TOPICS: lambda _: frame(1 << 30, 0, {}, b"") * 10}, 3, "9 commands that answer no request"
    ),
    "messages of a pull": Case(
        _pulled(*map(_record, range(5)), next_offset=5), 1, "5 messages with 0 properties"
    ),
    "properties of a pull": Case(_pulled(_MANY, next_offset=1), 1, "1 messages with 9 properties"),
    "an offset behind the end": Case(
        _pulled(_record(1 << 60), next_offset=1 << 61), 1, "of a queue that ends at 5"
    ),
    "an offset that goes back": Case(_pulled(_GOOD, next_offset=0), 1, "cannot be trusted"),
    "a record that is cut": Case(_pulled(_GOOD[:-1], next_offset=1), 1, "cannot be trusted"),
    "a size of a body": Case(
        _pulled(_GOOD[:84] + b"\x40\0\0\0" + _GOOD[88:], next_offset=1), 1, "cannot be trusted"
    ),
    "a damaged body": Case(
        _pulled(_GOOD[:88] + b"y" + _GOOD[89:], next_offset=1), 1, "cannot be trusted"
    ),
    "a queue of holes ends the run": Case({}, 0, "t"),
    "a name of another type": Case({ROUTE: said(route([], HERE))}, 1, "a name that is a"),
    "a name of many bytes": Case({TOPICS: said({"topicList": ["ü" * 128]})}, 3, "no name"),
    "a name with escapes": Case({ROUTE: said(route(HOSTILE, HERE))}, 1, "is no name"),
    "an address that is no name of a host": Case(
        {ROUTE: said(route("b", "a..b:1"))}, 1, "a..b:1 does not do GET_TOPIC_CONFIG"
    ),
    "a setting out of range": Case(
        {ALL_GROUPS: said({"subscriptionGroupTable": {"g": {"retryMaxTimes": 1 << 70}}})},
        1,
        "of another type or range",
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_lie_is_a_typed_error_and_nothing_of_it_is_stored(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, limit, value in (
        (source, "IDLE_PULL_COUNT_MAX", 20),
        (source, "PAGE_COUNT_MAX", 3),
        (source, "PULL_COUNT", 4),
        (source, "ATTEMPT_COUNT_MAX", 1),
        (groups, "GROUP_COUNT_MAX", 8),
        (topics, "REFUSED_COUNT_MAX", 8),
        (topics, "QUEUE_TOTAL_MAX", 1),
        (records, "_PROPERTY_COUNT_MAX", 8),
        (channel, "STRAY_COUNT_MAX", 8),
    ):
        monkeypatch.setattr(module, limit, value)
    lies, code, why = CASES[name]
    async with target_at(tmp_path) as target, source_with(lies) as address:
        words = ["--transport", "grpc", "rocketmq", "import", address]
        environment = {SERVER_VARIABLE: target.address}
        result = await asyncio.to_thread(CliRunner().invoke, main, words, env=environment)
        text = result.stdout + result.stderr
        assert "Traceback" not in text, text
        assert (result.exit_code, why in text) == (code, True), text
        assert ("  why: " in text and "  do:  " in text) == (code != 0), text
        assert "\x1b" not in text
        if "t" in [one.topic for one in await target.client.admin.list_topics()]:
            assert not any(await target.messages("t", 1))


async def test_an_address_that_is_silent_is_given_up() -> None:
    lost, whys = source.RocketSource([HERE], pause_s=0), list[str]()
    for _ in range(source.SILENT_CALL_COUNT_MAX + 1):
        with pytest.raises(SourceError) as refused:
            await lost.topics()
        whys.append(refused.value.explanation.why)
    assert whys.index("16 calls before it got no answer") == len(whys) - 1


async def test_hostile_texts_reach_a_terminal_as_escapes(tmp_path: Path) -> None:
    """The body of a message, and the remark of a broker."""
    async with target_at(tmp_path) as target:
        await target.client.admin.create_topic("t", queue_count=1)
        async with target.client.producer() as producer:
            await producer.send("t", HOSTILE.encode())
        async with source_with({TOPICS: said(code=1)}, remark=HOSTILE) as address:
            commands = (("consume", "t", "--until", "end"), ("rocketmq", "import", address))
            for seen in await asyncio.gather(
                *(asyncio.to_thread(_seen_on_terminal, target.address, one) for one in commands)
            ):
                for escape in ("\x1b]", "\x07", "\x1b[2J", "\u202e", "\x9b"):
                    assert escape not in seen, seen
                assert r"\x1b]0;owned\x07\x1b[2J[red]\u202e\x9b1m" in seen, seen


def _seen_on_terminal(server: str, arguments: tuple[str, ...]) -> str:
    """What `qlog` writes to a terminal."""
    reading, terminal = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "--transport", "grpc", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=subprocess.STDOUT,
        env={**os.environ, SERVER_VARIABLE: server},
    )
    os.close(terminal)
    seen = b""
    try:
        while data := os.read(reading, 65_536):
            seen += data
    except OSError:  # The process has ended.
        pass
    finally:
        os.close(reading)
        process.wait()
    return seen.decode()
