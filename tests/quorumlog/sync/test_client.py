"""The blocking client: the same names and arguments, and that it works from plain threads."""

import asyncio
import inspect
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import quorumlog
from quorumlog import errors, sync
from quorumlog.consume import raw
from quorumlog.consume.consumer import Consumption
from quorumlog.sync.loop_thread import loop_thread, run_until_stopped
from tests.patience import PATIENCE_S, wait_for
from tests.quorumlog.fake_cluster import FakeCluster, threaded_cluster

PAIRS = [
    (quorumlog.Client, sync.Client),
    (quorumlog.Producer, sync.Producer),
    (quorumlog.Delivery, sync.Delivery),
    (quorumlog.PullConsumer, sync.PullConsumer),
    (quorumlog.GroupConsumer, sync.GroupConsumer),
    (quorumlog.PopConsumer, sync.PopConsumer),
    (quorumlog.Admin, sync.Admin),
    (quorumlog.Transaction, sync.Transaction),
    (quorumlog.TransactionalProducer, sync.TransactionalProducer),
    (quorumlog.ConsumeTransaction, sync.ConsumeTransaction),
    (raw.Raw, sync.Raw),
]
# What only makes sense there: hooks between the two, and attributes that are set by __init__.
ASYNC_ONLY = {
    *("end", "incarnation_in", "send_entries"),
    *("next_ready", "next_message", "next_batch_of", "fill", "batch_ready", "take_back", "in_hand"),
}


ATTRIBUTES = {
    sync.Client: ("client_id",),
    sync.GroupConsumer: ("auto_commit",),
    sync.Transaction: ("broker_group", "decision", "receipts", "transaction_id"),
    sync.TransactionalProducer: ("checks_count", "producer_group"),
    sync.ConsumeTransaction: ("receipts",),
}
"""Properties here; there they are attributes of each object."""


def public(cls: type) -> dict[str, Any]:
    return {
        name: inspect.getattr_static(cls, name)
        for name in dir(cls)
        if not name.startswith("_") and name not in ASYNC_ONLY
    }


@pytest.mark.parametrize(("there", "here"), PAIRS, ids=lambda c: c.__name__)
def test_the_surface_is_the_same(there: type, here: type) -> None:
    ours = public(here)
    for name in ATTRIBUTES.get(here, ()):
        ours.pop(name)
    assert ours.keys() == public(there).keys()
    for name, method in public(there).items():
        if not inspect.isfunction(method):
            continue
        assert inspect.getdoc(ours[name]), f"{here.__name__}.{name} has no documentation"
        expected = [(p.name, p.kind, p.default) for p in parameters(method)]
        assert [(p.name, p.kind, p.default) for p in parameters(ours[name])] == expected, name
        assert not inspect.iscoroutinefunction(inspect.unwrap(ours[name], stop=lambda f: True))


def parameters(method: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(method).parameters.values())[1:]


def test_connect_has_the_same_arguments() -> None:
    there, here = inspect.signature(quorumlog.connect), inspect.signature(sync.connect)
    assert there.parameters == here.parameters


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with threaded_cluster() as cluster:
        yield cluster


def test_all_of_it_works_without_asyncio(cluster: FakeCluster) -> None:
    with sync.connect(cluster.bootstrap) as client:
        assert client.admin.create_topic("new", queue_count=2).queue_count == 2
        with client.producer() as producer:
            receipt = producer.send("orders", b"0", queue_id=0, key="k")
            deliveries = [producer.enqueue("orders", b"%d" % i, queue_id=0) for i in range(1, 50)]
            later = producer.send_nowait("orders", b"50", queue_id=0)
            producer.flush()
            assert [d.receipt().queue_offset for d in deliveries] == list(range(1, 50))
            assert later.is_done
            assert later.result().queue_offset == 50
            assert [r.index for r in producer.send_batch("new", [b"a", b"b"])] != []
            assert producer.stats().acked_count == 53
        assert client.get_message(receipt.message_id).body == b"0"
        bodies = [m.body for m in client.consume("orders", queues=[0], until="end")]
        assert bodies == [b"%d" % i for i in range(51)]
        with client.pull_consumer("orders", queues=[0]) as consumer:
            assert next(consumer).body == b"0"
            assert consumer.offsets() == {0: 1}
            consumer.seek(0, 40)
            assert next(consumer).body == b"40"
        batches = list(client.pull_consumer("orders", queues=[0], until="end").batches())
        assert sum(map(len, batches)) == 51
        with pytest.raises(errors.UnknownTopicError):
            client.pull("none", 0, 0)
        assert client.stats().calls > 0
        assert client.route("orders").topics["orders"].queue_count == 4
    with pytest.raises(errors.ClosedError):
        client.pull("orders", 0, 0)


def test_a_group_commits_exactly_what_was_processed(cluster: FakeCluster) -> None:
    with sync.connect(cluster.bootstrap) as client:
        producer = client.producer()
        for i in range(10):
            producer.enqueue("orders", b"%d" % i, queue_id=0)
        producer.flush()
        with client.group_consumer("g", "orders") as consumer:
            assert [next(consumer).body for _ in range(4)] == [b"0", b"1", b"2", b"3"]
            assert len(consumer.assignment()) == 4
        assert cluster.offsets["g", "orders", 0] == 4
        for message in client.consume("orders", group="g"):
            if message.body == b"7":
                break
        assert cluster.offsets["g", "orders", 0] == 7
        with client.group_consumer("g", "orders") as consumer:
            assert next(consumer).body == b"7"


def test_the_rest_of_a_batch_comes_before_the_next(cluster: FakeCluster) -> None:
    with sync.connect(cluster.bootstrap) as client:
        with client.producer(batch_count_max=5) as producer:
            for i in range(20):
                producer.enqueue("orders", b"%d" % i, queue_id=0)
        with client.pull_consumer("orders", queues=[0], batch_count_max=5, until="end") as consumer:
            assert [next(consumer).body for _ in range(2)] == [b"0", b"1"]
            left = [message.body for batch in consumer.batches() for message in batch]
            assert left == [b"%d" % i for i in range(2, 20)]
            with pytest.raises(StopIteration):
                next(consumer)


@pytest.mark.parametrize("takes_batches", [False, True])
def test_what_its_caller_never_got_is_handed_out_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, takes_batches: bool
) -> None:
    """As a handler of signals that raises, Ctrl-C among them: in the wait, and behind it."""

    def interrupted(method: Any) -> Any:
        def call(*args: Any) -> Any:
            answer = method(*args)
            if answer is not None and is_armed[0]:
                is_armed[0] = False
                raise KeyboardInterrupt
            return answer

        return call

    is_armed, bodies = [False], list[bytes]()
    for method in ("next_ready", "batch_ready"):
        monkeypatch.setattr(Consumption, method, interrupted(getattr(Consumption, method)))
    with sync.connect(cluster.bootstrap) as client:
        with client.producer(batch_count_max=1) as producer:
            for number in range(9):
                producer.send("orders", b"%d" % number, queue_id=0)
        for consumer in (
            client.pull_consumer("orders", queues=[0], batch_count_max=3),
            client.group_consumer("g", "orders", batch_count_max=3, auto_commit=False),
        ):
            with consumer:
                monkeypatch.setattr(loop_thread, "call", interrupted(loop_thread.call))
                for attempt in itertools.count():
                    if len(bodies) == 9:
                        break
                    is_armed[0] = attempt % 3 < 2
                    try:
                        batch = consumer.next_batch() if takes_batches else [next(consumer)]
                    except KeyboardInterrupt:
                        continue
                    assert batch is not None
                    bodies += [message.body for message in batch]
                    assert sum(consumer._inner.offsets().values()) == len(bodies)
                monkeypatch.undo()
            assert bodies == [b"%d" % number for number in range(9)]
            bodies.clear()


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that take turns within a few steps, and so meet where they can."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


@pytest.mark.usefixtures("hasty_threads")
def test_threads_that_iterate_over_one_consumer_share_the_messages(cluster: FakeCluster) -> None:
    with sync.connect(cluster.bootstrap) as client:
        with client.producer() as producer:
            for i in range(400):
                producer.enqueue("orders", b"%d" % i, queue_id=i % 4)
        with (
            client.pull_consumer("orders", until="end", batch_count_max=7) as consumer,
            ThreadPoolExecutor(4) as pool,
        ):
            parts = [pool.submit(lambda: [m.body for m in consumer]) for _ in range(4)]
            bodies = [body for part in parts for body in part.result(PATIENCE_S)]
        assert sorted(bodies, key=int) == [b"%d" % i for i in range(400)]


def test_calls_of_other_threads_end_when_the_client_is_closed(cluster: FakeCluster) -> None:
    client = sync.connect(cluster.bootstrap)
    client.start()
    consumer = client.pull_consumer("orders")
    cluster.waits_total = 0
    with ThreadPoolExecutor(3) as pool:
        calls: list[Future[Any]] = [
            pool.submit(client.pull, "orders", 0, 0, wait_ms=60_000),
            pool.submit(next, consumer),
            pool.submit(loop_thread.call, asyncio.Event().wait()),
        ]
        wait_for("both to wait", lambda: cluster.waits_total >= 2)
        client.close()
        assert isinstance(calls[0].exception(PATIENCE_S), errors.ClosedError)
        assert isinstance(calls[1].exception(PATIENCE_S), errors.ClosedError | StopIteration)
        assert isinstance(calls[2].exception(PATIENCE_S), errors.ClosedError)
    with pytest.raises(errors.ClosedError):
        client.route()


def test_a_callback_cannot_close_its_client(cluster: FakeCluster) -> None:
    """It runs in the thread that all clients share, and would end it for the others."""
    said: list[str] = []
    with sync.connect(cluster.bootstrap) as client:
        other = sync.connect(cluster.bootstrap)

        def strategy(_client_id: str, queues: Any, _client_ids: Any) -> Any:
            for call in (client.close, other.start, client.route):
                try:
                    call()
                except errors.InvalidRequestError as error:
                    said.append(error.code)
            return list(queues)

        with client.group_consumer("g", "orders", strategy=strategy) as consumer:
            assert len(consumer.assignment()) == 4
        assert said[:3] == ["client.blocking_call"] * 3
        assert client.route().leader_id == 1


def test_the_thread_ends_also_when_a_callback_breaks_in_its_last_moment() -> None:
    """A loop that is left by an exception forgets that it was told to stop."""

    def end_program() -> None:
        raise SystemExit

    loop = asyncio.new_event_loop()
    stopped = loop.create_future()
    loop.call_soon(stopped.set_result, None)
    loop.call_soon(end_program)
    thread = threading.Thread(target=run_until_stopped, args=(loop, stopped), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    loop.close()


def test_several_threads_may_start_use_and_close_one_client(cluster: FakeCluster) -> None:
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            client = sync.connect(cluster.bootstrap)
            for start in [pool.submit(client.start) for _ in range(4)]:
                start.result(PATIENCE_S)
            producer = client.producer()
            receipts = list(pool.map(producer.send, ["orders"] * 40, [b"x"] * 40))
            assert len({receipt.message_id for receipt in receipts}) == 40
            delivery = producer.send_nowait("orders", b"x")
            for close in [pool.submit(client.close) for _ in range(4)]:
                close.result(PATIENCE_S)
                assert delivery.is_done
    assert len(cluster.bodies()) == 5 * 41


def test_what_is_closed_with_its_client_may_be_closed_again(cluster: FakeCluster) -> None:
    with sync.connect(cluster.bootstrap) as client:
        made: list[Any] = [
            client.producer(),
            client.transactional_producer("p", lambda _: "commit"),
            client.pull_consumer("orders", until="end"),
            client.group_consumer("g", "orders"),
            client.pop_consumer("g", "orders"),
        ]
        reader = client.consume("orders")
        client.producer().send("orders", b"x")
        next(reader)
    for one in [*made, reader, client]:
        one.close()
    made[0].abort()


_PROGRAM = """
import sys
from quorumlog import errors, sync

class Repository:
    def __init__(self, call):
        self.call = call

    def __del__(self):
        try:
            self.call()
            print("done")
        except errors.ClosedError:
            print("refused")

client = sync.connect(sys.argv[1])
client.start()
client.producer().send_batch("orders", [b"1", b"2"], queue_id=0)
readers = [
    client.consume("orders"),
    client.consume("orders", group="g"),
    client.pull_consumer("orders").batches(),
]
for reader in readers:
    next(reader)
member = client.group_consumer("h", "orders")
next(member), next(member)
producer = client.producer(linger_ms=60_000)
producer.enqueue("orders", b"late")
kept = [Repository(call) for call in (client.close, producer.close, producer.flush, client.route)]
raise ValueError("the program's own")
"""


def test_a_program_that_ends_closes_what_is_open_and_ends(cluster: FakeCluster) -> None:
    """The thread of all clients stands still from then on: whoever waits for it waits for ever."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, cluster.bootstrap],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr.count("Traceback")) == (1, 1), done.stderr
    assert "the program's own" in done.stderr
    assert sorted(done.stdout.split()) == ["done", "done", "refused", "refused"]
    assert cluster.bodies() == [b"1", b"2", b"late"]
    assert cluster.offsets["h", "orders", 0] == 1, "the message in hand was not processed"


def test_the_thread_ends_with_the_last_client(cluster: FakeCluster) -> None:
    def threads() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name == "quorumlog-sync"]

    first, second = sync.connect(cluster.bootstrap), sync.connect(cluster.bootstrap)
    first.start()
    second.start()
    assert len(threads()) == 1
    first.close()
    first.close()
    assert second.route().leader_id == 1
    second.close()
    assert threads() == []
    with pytest.raises(errors.UnavailableError):
        sync.connect("127.0.0.1:1", connect_timeout_ms=50).start()
    assert threads() == []
