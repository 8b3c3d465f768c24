"""What an argument may be: the words for one that may not, and whom it does not harm."""

import asyncio
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy
import pytest

import quorumlog
from quorumlog import arguments, errors, sync
from quorumlog.arguments import ArgumentChecks, check_for, checked, shown
from quorumlog.records import batch
from quorumlog.records.queues import Queue
from tests.quorumlog import surface
from tests.quorumlog.fake_cluster import connect, fake_cluster, producing

SURROGATE = "a\ud800"


# The whole surface.


def test_every_public_call_has_arguments_to_be_tested_with() -> None:
    """A call that is new here needs an entry in tests/quorumlog/surface.py."""
    for call in surface.calls():
        for name in call.required:
            has_argument = name in surface.SENSIBLE or f"{call}.{name}" in surface.SPECIAL
            assert has_argument, f"{call}: tests/quorumlog/surface.py has nothing for {name}"
    # The search itself must not go blind.
    names = {str(call) for call in surface.calls()}
    assert len(names) > 140
    for name in ("connect", "sync.connect", "Client.pull", "sync.Admin.drain", "Producer.send"):
        assert name in names
    assert {"PopConsumer.ack", "NameServers.put", "testing.Cluster.kill", "Raw.append"} <= names
    assert not names & surface.INTERNAL


def test_every_asynchronous_call_looks_at_its_arguments() -> None:
    for call in surface.calls():
        if call.owner.startswith("sync.") or str(call) == "sync.connect":
            continue  # They hand everything to the calls of the same name.
        assert hasattr(call.function, "plan"), f"{call} looks at nothing"
        checks = {} if call.function.plan is None else call.function.plan.checks
        missing = [name for name, check in checks.items() if check is None and name != "self"]
        assert not missing, f"{call} takes anything as {missing}"


def test_a_parameter_without_a_range_is_noticed() -> None:
    @checked
    class New:
        def call(self, unheard_of: int) -> None: ...

    with pytest.raises(AssertionError, match="no range of unheard_of"):
        New().call(1)


def test_a_plan_that_two_threads_make_at_once_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its names would be there twice, and every later call be looked at by the wrong ones."""

    def send(topic: str, body: Any, local: str) -> None: ...

    plan = ArgumentChecks(send)
    others = iter([lambda: plan.checks])

    def interrupted(name: str, annotation: Any) -> Any:
        if name == "topic":
            next(others, dict)()  # Another thread comes in here.
        return check_for(name, annotation)

    monkeypatch.setattr(arguments, "check_for", interrupted)
    plan.check(("orders", 5, "work"), {})
    with pytest.raises(errors.WrongTypeError, match="local is 5"):
        plan.check(("orders", "body", 5), {})


# What is said.

BAD: Sequence[tuple[str, Any, Any, str]] = [
    ("queue_id", int, 2**31, "queue_id is 2147483648; use 0 to 2147483647"),
    ("queue_id", int, -1, "queue_id is -1; use 0 to 2147483647"),
    ("queue_id", int, "1", "queue_id is '1', a str; use a whole number"),
    ("queue_id", int, 1.0, "queue_id is 1.0, a float; use a whole number"),
    ("queue_id", int, True, "queue_id is True, a bool; use a whole number"),
    ("queue_id", int, None, "queue_id is None, a NoneType; use a whole number"),
    ("queue_id", int | None, object, "a type; use a whole number"),
    ("delay", float, math.nan, "delay is nan; use 0 to 100000000000"),
    ("delay", float, -math.inf, "delay is -inf; use 0 to 100000000000"),
    ("delay", float, "1", "delay is '1', a str; use a number"),
    ("delay", float, 1j, "delay is 1j, a complex; use a number"),
    ("topic", str, b"orders", "topic is b'orders', a bytes; use text"),
    ("topic", str, "x" * 256, "topic has 256 characters; use 255 at most"),
    ("key", str, SURROGATE, "which is no valid text (surrogates not allowed at character 1)"),
    ("force", bool, 1, "force is 1, a int; use True or False"),
    ("start", Literal["first", "end"], "begin", "start is 'begin'; use one of 'first', 'end'"),
    ("start", Literal["first", "end"], 0, "start is 0, a int; use 'first' or 'end'"),
    ("tags", Sequence[str], "abc", "tags is 'abc', a str; use a list"),
    ("tags", Sequence[str], [1], "tags is 1, a int; use text"),
    ("tags", Sequence[str], iter("a"), "use a list"),
    ("tags", Sequence[str], ["a", "*"], "tags is '*'; use no tags for all messages"),
    ("tags", Sequence[str], ["Aa || BB"], "'Aa || BB'; use each tag alone: ['Aa', 'BB']"),
    ("topics", str | Sequence[str], 5, "topics is 5, a int; use text or a list"),
    ("topics", str | Sequence[str], ["a", 5], "topics is 5, a int; use text"),
    ("files", Mapping[str, str], [], "files is [], a list; use a dict"),
    ("files", Mapping[str, str], {"a": 1}, "files is 1, a int; use text"),
    ("offsets", Mapping[Queue, int], {("a", 0): 2**63}, "offsets is 9223372036854775808; use 0"),
    ("offsets", Mapping[Queue, int], {"a": 0}, "use a Queue, or a pair of topic and queue id"),
    ("offsets", Mapping[Queue, int], {("a", -1): 0}, "queue_id is -1; use 0"),
    ("check", Callable[[int], int], "no", "check is 'no', a str; use a function"),
    ("position", int | str, "9" * 5_000, "position is '9999"),
    ("position", int | str, "@0001-01-01T00:00:00+23:59x", "+23:59x'; use an offset"),
    ("consistency", quorumlog.Consistency | str, "soon", "'soon' is unknown; use one of leader"),
    ("decision", quorumlog.Decision | str, "maybe", "decision is 'maybe'; use one of commit"),
    ("directory", str, "a\0b", "use a path without 0x00"),
    ("message", quorumlog.PopMessage, "m", "message is 'm', a str; use a PopMessage"),
    ("credentials", ArgumentChecks, 1, "credentials is 1, a int; use a ArgumentChecks"),
]


@pytest.mark.parametrize(("name", "annotation", "value", "said"), BAD)
def test_an_error_says_which_argument_what_is_wrong_and_what_to_use(
    name: str, annotation: Any, value: Any, said: str
) -> None:
    check = check_for(name, annotation)
    assert check is not None
    with pytest.raises(errors.InvalidRequestError) as caught:
        check(name, value)
    assert said in str(caught.value)
    assert "; use" in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert caught.value.code in ("client.bad_argument", "client.wrong_type")
    assert isinstance(caught.value, TypeError) is (caught.value.code == "client.wrong_type")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy), copy.code) == (
        type(caught.value),
        str(caught.value),
        caught.value.code,
    )


@pytest.mark.parametrize(
    ("name", "annotation", "value"),
    [
        ("queue_id", int, 2**31 - 1),
        ("queue_id", int | None, None),
        ("delay", float, 1),
        ("delay", float, Fraction(1, 2)),
        ("delay", float | None, numpy.int64(5)),
        ("invisible", float, numpy.float32(0.5)),
        ("topic", str, "ä€😀"),
        ("tags", Sequence[str], {"a", "b"}),
        ("topics", str | Sequence[str], ["a"]),
        ("offsets", Mapping[Queue, int], {Queue("a", 0, "g"): 2**63 - 1}),
        ("position", int | str, "@2026-01-31T12:00:00Z"),
        ("check", Callable[[int], int], print),
    ],
)
def test_usable_arguments_are_taken(name: str, annotation: Any, value: Any) -> None:
    check = check_for(name, annotation)
    assert check is not None
    check(name, value)


OFFSETS = "use an offset from 0 to 9223372036854775807, 'first', 'end', '-100', or '@TIME'"
PLACES: Mapping[Any, str] = {
    **dict.fromkeys((-3, 2**63, "ende", "@soon", "-0"), OFFSETS),
    **dict.fromkeys((1.5, True, b"end"), "; use a whole number or text"),
}
TIMES: Mapping[Any, str] = {
    **dict.fromkeys((-1, 0, 2**40), "use 1 to 86400000"),
    **dict.fromkeys((1.5, "1"), "; use a whole number"),
}
OF_A_PRODUCER: Mapping[Any, str] = dict.fromkeys((-1, 0, 2**40), "use 1 to 30000, that of")


@pytest.mark.parametrize(
    ("call", "name", "wrongs"),
    [
        (lambda client, **bad: anext(client.consume("t", **bad)), "position", PLACES),
        (lambda client, **bad: anext(client.consume("t", **bad)), "until", PLACES),
        (lambda client, **bad: anext(client.consume("t", group="g", **bad)), "position", PLACES),
        (lambda client, **bad: client.pull_consumer("t", **bad), "until", PLACES),
        (lambda client, **bad: client.group_consumer("g", "t", **bad), "position", PLACES),
        (lambda client, **bad: client.pull_consumer("t").seek(0, **bad), "position", PLACES),
        (lambda _client, **bad: quorumlog.connect("h:1", **bad), "timeout_ms", TIMES),
        (lambda client, **bad: client.producer(**bad), "timeout_ms", TIMES),
        (lambda client, **bad: client.transaction("g", **bad), "timeout_ms", TIMES),
        (
            lambda client, **bad: client.producer().send("t", b"", **bad),
            "timeout_ms",
            OF_A_PRODUCER,
        ),
    ],
)
async def test_a_bad_argument_is_named_with_what_to_write(
    call: Callable[..., Any], name: str, wrongs: Mapping[Any, str]
) -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        for wrong, said in wrongs.items():
            with pytest.raises(errors.InvalidRequestError) as refused:
                await call(client, **{name: wrong})
            assert str(refused.value).startswith(f"{name} is {wrong!r}"), refused.value
            assert said in str(refused.value)


def test_a_value_is_shown_whatever_it_is() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown(Rude()) == "<Rude, its repr raises RuntimeError>"
    assert shown("x" * 1_000).endswith("... (1002 characters)")
    assert shown(10**5_000) == "<int, its repr raises ValueError>"
    assert shown(SURROGATE).encode()


# Whom it does not harm.

OF_A_MESSAGE: Mapping[str, Sequence[Any]] = {
    "queue_id": (2**31, -1, "0", 1.5),
    "flag": (None, 2**31, "1"),
    "body": (5, None, [1, 2], SURROGATE),
    "key": (5, SURROGATE),
    "tag": (b"t",),
    "properties": (5, {1: "a"}, {"a": 1}, {"a": SURROGATE}),
    "topic": (None, b"orders", ["orders"], SURROGATE),
    "broker_group": (5, SURROGATE),
    "delay": (math.nan, "1", -1),
    "level": (0, "1"),
    "deliver_at": (1e12,),
    "message_group": (5, SURROGATE),
}


@pytest.mark.parametrize("option", OF_A_MESSAGE)
async def test_a_message_of_no_use_is_refused_and_others_leave(option: str) -> None:
    """What others have queued in the same turn arrives, and the producer goes on."""

    async with producing() as (cluster, producer):
        before = producer.send_nowait("orders", b"before", queue_id=0)
        for wrong in OF_A_MESSAGE[option]:
            given = {"topic": "orders", "body": b"x", option: wrong}
            for send in (producer.send, producer.enqueue):
                with pytest.raises(errors.QuorumlogError, match="; "):
                    await send(**given)
            with pytest.raises(errors.QuorumlogError, match="; "):
                producer.send_nowait(**given)
            if option not in ("flag", "message_group"):
                body = given.pop("body")
                with pytest.raises(errors.QuorumlogError, match="; "):
                    await producer.send_batch(bodies=[body], **given)
        after = producer.send_nowait("orders", b"after", queue_id=0)
        assert [(await one).queue_offset for one in (before, after)] == [0, 1]
        assert cluster.bodies() == [b"before", b"after"]


@pytest.mark.parametrize("bodies", [5, "text", b"bytes", iter([b"a"]), {"a": 1}])
async def test_a_batch_is_a_list(bodies: Any) -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        for delay in (None, 1):
            with pytest.raises(errors.WrongTypeError, match="use a list of bodies"):
                await client.producer().send_batch("orders", bodies, delay=delay)


async def test_a_message_that_cannot_be_encoded_fails_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Should one ever get past the checks: those beside it in its batch arrive, in order."""
    encode = batch.encode_entries

    def choke(entries: Any, *rest: Any, **how: Any) -> Any:
        if any(entry[3] == b"poison" for entry in entries):
            raise ZeroDivisionError
        return encode(entries, *rest, **how)

    monkeypatch.setattr("quorumlog.produce.delivery.encode_entries", choke)

    async with producing() as (cluster, producer):
        bodies = [b"1", b"2", b"poison", b"3"]
        sent = [producer.send_nowait("orders", body, queue_id=0) for body in bodies]
        with pytest.raises(errors.InternalError, match="ZeroDivisionError") as caught:
            await sent.pop(2)
        assert caught.value.outcome is errors.Outcome.NOT_APPLIED
        assert [(await one).queue_offset for one in sent] == [0, 1, 2]
        with pytest.raises(errors.InternalError):
            await producer.send_batch("orders", [b"4", b"poison"])
        await producer.send("orders", b"5")
        assert cluster.bodies() == [b"1", b"2", b"3", b"5"]


async def test_a_pair_names_a_queue_wherever_a_queue_can_be_named() -> None:
    """The words for a wrong one offer "a Queue, or a pair of topic and queue id"."""

    pair: Any = ("orders", 1)
    async with fake_cluster() as cluster, connect(cluster) as client:
        await client.producer().send("orders", b"x", queue_id=1)
        (offsets,) = await client.queue_offsets("orders", [pair])
        assert (offsets.queue_id, offsets.end_offset) == (1, 1)
        assert (await client.raw.pull(pair, 0)).record_count == 1
        consumer = client.pull_consumer("orders", queues=[pair], until="end")
        assert [message.body async for message in consumer] == [b"x"]
        await consumer.seek(pair, 0)
        assert (await anext(consumer)).body == b"x"


async def test_local_work_that_says_nothing_of_use_leaves_its_transaction_open() -> None:
    """Its messages are stored, and the cluster asks for them: whoever sends again sends twice."""

    def says_nothing(_transaction: object) -> Any: ...

    def blocking(bootstrap: str) -> None:
        with sync.connect(bootstrap) as client:
            client.transactional_producer("work", str).send("orders", b"2", says_nothing)

    async with fake_cluster() as cluster, connect(cluster) as client:
        made = client.transactional_producer("work", str)
        for sent in (
            made.send("orders", b"1", says_nothing),
            asyncio.to_thread(blocking, cluster.bootstrap),
        ):
            with pytest.raises(errors.InvalidRequestError, match="work says is None") as caught:
                await sent
            assert caught.value.outcome is errors.Outcome.UNKNOWN
        assert cluster.bodies() == [b"1", b"2"]


async def test_a_transaction_does_not_end_as_unknown() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        made = client.transactional_producer("work", str)
        for end in (
            made.end(client._cluster.home, 1, quorumlog.Decision.UNKNOWN),
            client.admin.end_transaction(1, "unknown"),
        ):
            with pytest.raises(errors.InvalidRequestError, match="; use commit or rollback"):
                await end


@pytest.mark.parametrize(
    "wrong", [{"producer_group": ""}, {"linger_ms": -1}, {"compression": "rar"}]
)
async def test_a_transactional_producer_that_is_refused_leaves_nothing(
    wrong: dict[str, Any],
) -> None:
    """Else the producer within would follow the broker groups for as long as the client is."""

    async with fake_cluster() as cluster, connect(cluster) as client:
        followers = list(client._cluster.on_change)
        with pytest.raises(errors.InvalidRequestError):
            client.transactional_producer(**{"producer_group": "work", "check": str, **wrong})
        assert client._cluster.on_change == followers


async def test_a_queue_id_is_a_number_in_each_message_of_a_batch() -> None:
    class Second:
        def __index__(self) -> int:
            return 1

    async with fake_cluster() as cluster, connect(cluster) as client:
        queue_id: Any = Second()
        receipts = await client.producer().send_batch("orders", [b"a", b"b"], queue_id=queue_id)
        assert [(one.queue_id, one.queue_offset) for one in receipts] == [(1, 0), (1, 1)]


async def test_a_seek_to_nowhere_leaves_the_consumer_where_it_was() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        producer = client.producer()
        for i in range(3):
            await producer.send("orders", b"%d" % i, queue_id=0)
        consumer = client.pull_consumer("orders", queues=[0, 1])
        assert (await anext(consumer)).body == b"0"
        for offset in (2**62, 4):
            with pytest.raises(errors.OffsetOutOfRangeError) as caught:
                await consumer.seek(0, offset)
            assert (caught.value.first_offset, caught.value.end_offset) == (0, 3)
        for position in (2**63, -1, "nowhere", math.nan):
            with pytest.raises(errors.InvalidRequestError):
                await consumer.seek(0, position)  # type: ignore[arg-type]
        assert [(await anext(consumer)).body for _ in range(2)] == [b"1", b"2"]
        await consumer.seek(0, 1)
        assert (await anext(consumer)).body == b"1"


async def test_a_delivery_on_its_way_has_no_result_yet() -> None:
    async with fake_cluster() as cluster, connect(cluster) as client:
        delivery = client.producer().send_nowait("orders", b"x")
        with pytest.raises(errors.InvalidRequestError, match="await its receipt"):
            delivery.result()
        assert (await delivery).topic == "orders"
