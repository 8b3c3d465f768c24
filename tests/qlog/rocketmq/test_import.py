"""Copies from a source to a target: whole, cut, repeated, beside each other, and refused."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from node.errors.common import OutcomeUnknownError
from node.peers.security.tls import client_port_context
from node.rocketmq.protocol.properties import ADDED, IMPORTED_FROM
from qlog import main
from qlog.connection import SERVER_VARIABLE
from qlog.rocketmq import target as target_module
from qlog.rocketmq import topics as topics_module
from qlog.rocketmq.records import Mark, messages_in
from qlog.rocketmq.shapes import SETTINGS, TABLE, SourceError, document_of
from qlog.rocketmq.source import RocketSource
from qlog.rocketmq.target import TargetError, queues_of_topic
from qlog.server.authority import Authority
from quorumlog.errors import NotFoundError
from quorumlog.pb.common_pb2 import Delays
from quorumlog.pb.log_pb2 import AppendRequest, AppendResponse
from quorumlog.records.compression import CompressedMessage
from store import format as fmt
from store.errors import LimitExceededError
from store.record.message import encode_message, encode_properties
from tests.node.broker_fakes import configure, request
from tests.node.rocketmq.guards import SECRET, guard_of
from tests.node.rocketmq.remoting.clients import Gateway
from tests.node.rocketmq.remoting.codes import COMMIT
from tests.qlog.rocketmq.clusters import Clusters, clusters_at
from tests.qlog.running import check_keys

NAMES = ("g0-n1", "g0-n2", "g0-n3")
PLACES = (("g0-n1", 0), ("g0-n1", 1), ("g0-n2", 0), ("g0-n3", 0))
"""The queues of topic orders in the source, in the order of the target's."""


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch has three messages or so."""
    monkeypatch.setattr(target_module, "BATCH_SIZE_BYTES", 600)
    monkeypatch.setattr(topics_module, "BATCH_SIZE_BYTES", 600)


async def fill(source: Gateway, lo: int, hi: int) -> None:
    """Send messages [lo, hi) to each queue of topic orders."""
    client = await source.client()
    for name, queue in PLACES:
        for n in range(lo, hi):
            text = f"{name}/{queue}/{n}"
            sent = await client.send(text.encode(), queue=queue, name=name, KEYS=text, TAGS="a")
            assert sent.code == 0, sent.remark


async def check(clusters: Clusters, count: int) -> None:
    """Assert that the target has each message once, in order, in the queue of its source."""
    queues = await clusters.target.messages("orders", len(PLACES))
    for (name, queue), messages in zip(PLACES, queues, strict=True):
        texts = [f"{name}/{queue}/{n}" for n in range(count)]
        assert [message.body.decode() for message in messages] == texts
        for n, message in enumerate(messages):
            assert (message.key, message.tag) == (texts[n], "a")
            mark = Mark.of(message.properties)
            assert mark is not None
            assert (mark.broker, mark.queue_id, mark.offset) == (name, queue, n)


async def test_all_of_a_message_is_copied_and_a_second_run_copies_what_is_new(
    tmp_path: Path,
) -> None:
    async with clusters_at(tmp_path) as clusters:
        await fill(clusters.source, 0, 3)
        client = await clusters.source.client()
        more = {"colour": "grün", "UNIQ_KEY": "0A0B"}
        await client.send(b"\x00packed", queue=1, sys_flag=1, **more)
        copies, _ = await clusters.copy()
        (row,) = copies.topics
        assert (row.topic, row.queue_count, row.message_count) == ("orders", 4, 13)
        assert not copies.refused
        last = (await clusters.target.messages("orders", 4))[1][3]
        properties = dict(last.properties)
        properties.pop(IMPORTED_FROM)
        assert properties == more | ADDED
        assert isinstance(last, CompressedMessage)
        assert (last.stored_body, last.sys_flag & 1, last.born_unix_ms) == (
            b"\x00packed",
            1,
            1_700_000_000_000,
        )
        assert last.born_host[0] == "127.0.0.1"
        copies, _ = await clusters.copy()
        assert [row.message_count for row in copies.topics] == [0]
        await client.send(b"later", queue=1)
        copies, _ = await clusters.copy()
        assert [row.message_count for row in copies.topics] == [1]
        assert [len(queue) for queue in await clusters.target.messages("orders", 4)] == [3, 5, 3, 3]


def cut_at(clusters: Clusters, batch: int, then: Callable[[], object]) -> None:
    """Store a batch, do something, and lose the answer."""
    target, count = clusters.target, 0
    append = target.append

    async def cut(request: AppendRequest) -> AppendResponse:
        nonlocal count
        count += 1
        is_cut = count == batch
        response = await append(request)
        if is_cut:
            then()
            raise OutcomeUnknownError(1, 1)
        return response

    target.append = cut


@pytest.mark.parametrize("batch", [1, 5])
async def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path: Path, batch: int) -> None:
    async with clusters_at(tmp_path) as clusters:
        await fill(clusters.source, 0, 9)
        task = asyncio.create_task(clusters.copy())
        cut_at(clusters, batch, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        stored = sum(map(len, await clusters.target.messages("orders", 4)))
        assert 0 < stored < 36
        copies, _ = await clusters.copy()
        assert copies.topics[0].message_count == 36 - stored
        await check(clusters, 9)


async def test_lost_answers_and_two_runs_at_once_store_each_message_once(tmp_path: Path) -> None:
    async with clusters_at(tmp_path) as clusters:
        await fill(clusters.source, 0, 9)
        cut_at(clusters, 3, lambda: None)
        results = await asyncio.gather(clusters.copy(), clusters.copy())
        assert not any(copies.refused for copies, _ in results)
        await check(clusters, 9)


async def test_a_batch_that_another_run_stored_with_other_bounds_is_not_stored_again(
    tmp_path: Path,
) -> None:
    async with clusters_at(tmp_path) as clusters:
        await fill(clusters.source, 0, 5)
        client = clusters.target.client
        source = RocketSource([f"127.0.0.1:{clusters.source.port}"])
        queues = await source.queues("orders")
        early, late = [await queues_of_topic(client, "orders", queues, "") for _ in range(2)]
        for first, second, queue in zip(early, late, queues, strict=True):
            messages, _ = await source.pull(queue, 0)
            await first.append(messages[:2])
            await second.append(messages)  # It knows of none.
            await first.append(messages)
        await check(clusters, 5)
        with pytest.raises(TargetError, match="brokers or queues of the source changed"):
            await queues_of_topic(client, "orders", queues[::-1], "")
        source.close()


async def test_a_topic_that_was_deleted_is_copied_again(tmp_path: Path) -> None:
    async with clusters_at(tmp_path) as clusters:
        await fill(clusters.source, 0, 4)
        for _ in range(3):
            copies, _ = await clusters.copy()
            assert copies.topics[0].message_count == 16
            await check(clusters, 4)
            await clusters.target.client.admin.delete_topic("orders")


async def test_how_far_a_copy_is_outlives_the_messages_that_it_stored(tmp_path: Path) -> None:
    async with clusters_at(tmp_path) as clusters:
        await fill(clusters.source, 0, 3)
        await clusters.copy()
        node, store = clusters.target.node, clusters.target.node.log.store
        await clusters.target.client.admin.create_topic("busy", queue_count=1)
        while len(store.log.files.files) < 4:
            await node.broker.produce.append(request(0, 20, topic="busy"))
        for _ in range(2):
            store.log.delete_first()
            store.engine.queues.correct_min_offsets(store.log.min_position)
        for added in (0, 1, 0):
            hi = sum(store.reads.queue_range("orders", 0)[1:])
            await fill(clusters.source, hi, hi + added)
            copies, _ = await clusters.copy()
            assert (copies.topics[0].message_count, copies.refused) == (4 * added, [])
        queues = await clusters.target.messages("orders", 4)
        assert [[m.body.decode() for m in queue] for queue in queues] == [
            [f"{name}/{queue}/3"] for name, queue in PLACES
        ]


async def test_a_message_that_is_not_taken_holds_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fmt, "PROPERTIES_SIZE_BYTES_MAX", 400)
    async with clusters_at(tmp_path) as clusters:
        client, target = await clusters.source.client(), clusters.target
        full = "x" * (400 - len("UNIQ_KEY_0_a__") - len(encode_properties(ADDED)))
        bodies = (b"0", b"large", b"2", b"full", b"4", b"large", b"full")
        copied = {IMPORTED_FROM: "b/0/5"}  # Of an earlier copy; a mark of this one has no room.
        marked = copied | {"a": full[len(encode_properties(copied)) :]}
        for n, body in enumerate(bodies):
            properties: dict[str, Any] = {"a": full} if body == b"full" else {}
            properties = marked if n == 6 else properties
            sent = await client.send(body, queue=0, UNIQ_KEY=str(n), **properties)
            assert sent.code == 0, sent.remark
        append = target.append

        async def strict(request: AppendRequest) -> AppendResponse:
            if b"large" in request.records:
                raise LimitExceededError("batch", 5, 4)
            return await append(request)

        target.append = strict
        for count in (5, 0):
            copies, _ = await clusters.copy()
            assert copies.topics[0].message_count == count
            assert [refused.name for refused in copies.refused] == ["orders"] * (count > 0)
            (queue, *_) = await target.messages("orders", 4)
            assert [m.body for m in queue] == [body for body in bodies if body != b"large"]
        assert copies.topics[0].queues[0].offset_of(7) == 5


async def test_groups_are_made_and_moved_and_never_back(tmp_path: Path) -> None:
    async with clusters_at(tmp_path) as clusters:
        admin = clusters.target.client.admin
        await fill(clusters.source, 0, 6)
        client = await clusters.source.client()
        queue = {"consumerGroup": "readers", "topic": "orders", "queueId": "0", "bname": "g0-n2"}
        await client.ask(COMMIT, queue | {"commitOffset": "4"})
        delays = Delays(delay_ms=[7_000, 9_000])
        own = {"retry_count_max": 3, "retry_delays": delays, "is_orderly": True}
        await configure(clusters.source.node, "readers", **own)
        with pytest.raises(NotFoundError):
            await admin.group_settings("readers")
        _, (group,) = await clusters.copy()
        assert (group.group, group.is_new, group.stored_count) == ("readers", True, 1)
        settings = await admin.group_settings("readers")
        assert (settings.retry_count_max, settings.is_orderly) == (3, True)
        assert list(settings.retry_delays_ms) == [7_000, 9_000]
        offsets = await admin.fetch_offsets("readers")
        ((moved, offset),) = offsets.items()
        assert (moved.queue_id, offset) == (2, 4)
        await admin.commit_offsets("readers", {moved: 6})
        await client.ask(COMMIT, queue | {"commitOffset": "5"})
        _, (group,) = await clusters.copy()
        assert (group.is_new, group.stored_count) == (False, 0)
        assert (await admin.fetch_offsets("readers"))[moved] == 6


async def test_a_foreign_message_and_another_count_of_queues_are_refused(tmp_path: Path) -> None:
    async with clusters_at(tmp_path) as clusters:
        await fill(clusters.source, 0, 2)
        client = clusters.target.client
        await client.admin.create_topic("orders", queue_count=3)
        copies, _ = await clusters.copy()
        (refused,) = copies.refused
        assert refused.what == "topic orders has 3 queues here and 4 in the source"
        await client.admin.create_topic("orders", queue_count=4)
        await clusters.copy()
        async with client.producer() as producer:
            await producer.send("orders", b"mine", queue_id=2)
        await fill(clusters.source, 2, 3)
        copies, _ = await clusters.copy()
        (refused,) = copies.refused
        assert "ends with a message that was not copied" in refused.what
        assert [len(queue) for queue in await clusters.target.messages("orders", 4)] == [2, 2, 3, 2]


async def run_import(clusters: Clusters, *options: object) -> Result:
    """Copy with the command."""
    source = f"127.0.0.1:{clusters.source.port}"
    words = ["--transport", "grpc", "rocketmq", "import", source, *map(str, options)]
    environment = {SERVER_VARIABLE: clusters.target.address}
    return await asyncio.to_thread(CliRunner().invoke, main, words, env=environment)


async def test_the_command_reports_and_its_code_tells_of_refusals(tmp_path: Path) -> None:
    async with clusters_at(tmp_path) as clusters:
        await fill(clusters.source, 0, 2)
        result = await run_import(clusters, "-o", "json")
        report = json.loads(result.stdout)
        check_keys(report, "rocketmq", "import")
        assert (result.exit_code, report["topics"][0]["message_count"]) == (0, 8)
        result = await run_import(clusters, "--topic", "bills", "--topic", "orders")
        assert result.exit_code == 1
        assert "refused: topic bills is unknown" in result.stdout
        assert (await run_import(clusters, "-o", "nothing")).exit_code == 2


async def test_a_source_with_access_keys_and_tls_is_read(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    node_files = authority.files("node")._replace(ca=authority.path)
    tls = client_port_context(node_files, require_client_certificate=False)
    keys, wrong = tmp_path / "keys", tmp_path / "wrong"
    roles = ("reader", "producer-consumer:TOOLS_CONSUMER")  # Pulls name a group of tools.
    keys.write_text(f"# of the source\nreader {SECRET}\n")
    wrong.write_text("reader another-secret\n")
    async with clusters_at(tmp_path, guard=guard_of({"reader": roles}), tls=tls) as clusters:
        await clusters.source.node.append(0, 5)

        for keys_file, ca_file, why in (
            (wrong, authority.path, "access key 'reader' is unknown, or its secret is another one"),
            (keys, other.path, "certificate verify failed"),
            (authority.path, authority.path, "words, and not a key and a secret"),
            (keys, keys, "cannot be used"),
            (keys, authority.path, ""),
        ):
            options = ("--source-keys", keys_file, "--source-ca", ca_file)
            done = await run_import(clusters, *options)
            assert (done.exit_code == 0) == (why == ""), done.output
            assert why in done.stderr
        queues = await clusters.target.messages("orders", 4)
        assert sum(len(queue) for queue in queues) == 5


def test_bodies_of_hostile_brokers_are_typed_errors() -> None:
    assert document_of(b'{"a":{0:"x:1",-1:{"b":"{2:3}"}}}', "here", SETTINGS) == {
        "a": {"0": "x:1", "-1": {"b": "{2:3}"}}
    }
    for body in (b"", b"[]", b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(SourceError):
            document_of(body, "here", TABLE)
    record = encode_message("orders", 0, b"x", queue_offset=7)
    assert len(messages_in(record, "orders", 7, "here", 1)) == 1
    for topic, offset in (("others", 7), ("orders", 8)):
        with pytest.raises(SourceError):
            messages_in(record, topic, offset, "here", 1)
    packed = encode_message("orders", 0, b"x", queue_offset=7, sys_flag=0x80)
    with pytest.raises(SourceError, match="BatchCQ"):
        messages_in(packed, "orders", 7, "here", 1)
