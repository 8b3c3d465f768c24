"""Tables of RocketMQ given out and taken over: what changes, and what is refused."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from node.broker.topics.config_files import GROUPS, NAMES, OFFSETS, TOPICS
from node.config.limits import Limits
from node.errors.common import TopicNotReadableError
from node.errors.groups import AlreadyResentError
from node.state.tables.topic_types import TopicSettings
from quorumlog.pb.common_pb2 import Delays
from quorumlog.pb.consumer_pb2 import HeartbeatRequest
from quorumlog.pb.retry_pb2 import (
    ConfigFile,
    ExportConfigFilesRequest,
    ImportConfigFilesRequest,
    ImportConfigFilesResponse,
    ResendDeadLettersRequest,
    RetryLaterRequest,
    RetryMessage,
)
from tests.node.broker_fakes import Fixture, configure, node_at, node_with, request
from tests.patience import eventually


async def exported(node: Fixture) -> dict[str, str]:
    response = await node.broker.config_files.export_config_files(ExportConfigFilesRequest())
    return {file.name: file.text for file in response.files}


async def imported(node: Fixture, files: dict[str, str], **how: Any) -> ImportConfigFilesResponse:
    request_ = ImportConfigFilesRequest(
        files=[ConfigFile(name=name, text=text) for name, text in files.items()], **how
    )
    return await node.broker.config_files.import_config_files(request_)


def topics_of(**queue_counts: int) -> str:
    rows = {
        name: {"perm": 7, "readQueueNums": count, "writeQueueNums": count, "topicName": name}
        for name, count in queue_counts.items()
    }
    return json.dumps({"topicConfigTable": rows})


def groups_of(*names: str, **settings: Any) -> str:
    rows = {name: {"groupName": name, **settings} for name in names}
    return json.dumps({"dataVersion": {"counter": 1}, "subscriptionGroupTable": rows})


async def test_exported_tables_are_taken_over_by_another_cluster(tmp_path: Path) -> None:
    async with node_at(tmp_path / "a") as node:
        await node.broker.append(request(0, 3))
        await node.commit("readers", ("orders", 0, 2))
        delays = Delays(delay_ms=[1_000, 9_000])
        await configure(node, "readers", retry_count_max=3, retry_delays=delays)
        files = await exported(node)
        assert sorted(files) == sorted(NAMES)
        assert '"orders@readers":{0:2}' in files[OFFSETS]
        done = await imported(node, files)
        assert (done.topic_count, done.group_count, done.offset_count) == (0, 0, 0)
        assert list(done.refusals) == []
    del files[OFFSETS]
    async with node_at(tmp_path / "b", topics={}) as node:
        done = await imported(node, files)
        assert (done.topic_count, done.group_count, list(done.refusals)) == (1, 1, [])
        again = await exported(node)
        for name in (TOPICS, GROUPS):
            first, second = json.loads(files[name]), json.loads(again[name])
            assert {**first, "dataVersion": 0} == {**second, "dataVersion": 0}
        assert (await imported(node, files)).topic_count == 0


@node_with(topics={"TopicTest": 4})
async def test_files_as_rocketmq_writes_them_are_read(node: Fixture) -> None:
    for queue_id in (0, 1):
        await node.broker.append(request(0, 3, topic="TopicTest", queue_id=queue_id))
    offsets = '{"offsetTable":{"TopicTest@GID_A":{0:2,1:3},"%RETRY%GID_A@GID_A":{0:0}}}'
    topics = topics_of(**{"%RETRY%GID_A": 1, "TBW102": 8, "rmq_sys_x": 1})
    groups = groups_of("GID_A", "TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", retryMaxTimes=5)
    done = await imported(node, {TOPICS: topics, GROUPS: groups, OFFSETS: offsets})
    assert list(done.refusals) == []
    assert len(done.skipped) == 4
    assert (done.topic_count, done.group_count, done.offset_count) == (1, 1, 3)
    state = node.machine.state
    assert state.groups == {"GID_A": {"TopicTest": {0: 2, 1: 3}, "%RETRY%GID_A": {0: 0}}}
    assert state.topics["%RETRY%GID_A"] == TopicSettings(1, 6)


@node_with(topics={})
async def test_unused_settings_are_named_for_each_topic_and_group(node: Fixture) -> None:
    def row(**more: Any) -> dict[str, Any]:
        return {"perm": 6, "readQueueNums": 4, "writeQueueNums": 4, "attributes": {}, **more}

    topics = {
        "plain": row(order=False, topicFilterType="SINGLE_TAG", topicSysFlag=0),
        "fifo": row(order=True, attributes={"message.type": "FIFO", "cleanup.policy": "DELETE"}),
        "narrow": row(readQueueNums=2, attributes=None),
        "TBW102": row(order=True),
    }
    groups = {
        "plain": {"groupName": "plain", "brokerId": 0, "retryMaxTimes": 3, "attributes": {}},
        "other": {"groupRetryPolicy": {"type": "EXPONENTIAL"}, "consumeTimeoutMinute": 30},
        "CID_RMQ_SYS_X": {"brokerId": 4},
    }
    files = {
        TOPICS: json.dumps({"topicConfigTable": topics}),
        GROUPS: json.dumps({"dataVersion": {"counter": 1}, "subscriptionGroupTable": groups}),
    }
    said = [
        'topics.json: fifo: has no effect here: attributes={"cleanup.policy":"DELETE"}, order=true',
        "topics.json: narrow: has no effect here: readQueueNums=2",
        "subscriptionGroup.json: other: has no effect here: "
        'consumeTimeoutMinute=30, groupRetryPolicy={"type":"EXPONENTIAL"}',
    ]
    for is_dry_run, count in ((True, 3), (False, 3), (False, 0)):
        done = await imported(node, files, is_dry_run=is_dry_run)
        assert (list(done.refusals), list(done.warnings)) == ([], said)
        assert done.topic_count == count
    assert list((await imported(node, await exported(node))).warnings) == []


@node_with(topics={})
async def test_an_answer_says_how_many_more_warnings_there_are(node: Fixture) -> None:
    count = 1_004
    rows = {
        f"t{n:04}": {"perm": 6, "readQueueNums": 1, "writeQueueNums": 1, "order": True}
        for n in range(count)
    }
    files = {TOPICS: json.dumps({"topicConfigTable": rows})}
    done = await imported(node, files, is_dry_run=True)
    assert len(done.warnings) == 1_000
    assert done.warnings[998].startswith("topics.json: t0998: ")
    assert done.warnings[999] == "and 5 more"


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"other.json": "{}"}, "not one of"),
        ({TOPICS: "{"}, "not such a table"),
        ({TOPICS: "[]"}, "not such a table"),
        ({TOPICS: "[" * 100_000 + "]" * 100_000}, "nested more than 64 deep"),
        ({GROUPS: '{"a":' * 2_000 + "1" + "}" * 2_000}, "nested more than 64 deep"),
        ({OFFSETS: "[" * 65 + "]" * 65}, "nested more than 64 deep"),
        ({TOPICS: '{"topicConfigTable":{"a":{"perm":6,"writeQueueNums":1e999}}}'}, "not such a"),
        ({OFFSETS: '{"offsetTable":{"orders@g":{0:1e999}}}'}, "not such a table"),
        ({TOPICS: '{"topicConfigTable":{"a":{}}}'}, "topics.json: a: writeQueueNums is missing"),
        ({TOPICS: topics_of(**{"no name": 1})}, "no name"),
        ({TOPICS: topics_of(orders=3)}, "can only grow"),
        ({TOPICS: topics_of(wide=2_000)}, "queues of a topic"),
        ({GROUPS: groups_of("no name")}, "no name for a group"),
        ({GROUPS: groups_of("g", retryMaxTimes=99_999)}, "retry_count_max"),
        ({OFFSETS: '{"offsetTable":{"orders@g":{0:4}}}'}, "behind the end"),
        ({OFFSETS: '{"offsetTable":{"nowhere@g":{0:0}}}'}, "does not exist"),
        ({OFFSETS: '{"offsetTable":{"orders@g":{9:0}}}'}, "has no queue 9"),
        ({OFFSETS: '{"offsetTable":{"orders":{0:0}}}'}, "orders: it is not TOPIC@GROUP"),
        ({TOPICS: '{"topicConfigTable":{"a":{},"a":{}}}'}, "'a' is there twice"),
    ],
)
async def test_a_bad_row_refuses_the_whole_import(
    node: Fixture, files: dict[str, str], reason: str
) -> None:
    await node.broker.append(request(0, 3))
    before = node.machine.image()
    good = {TOPICS: topics_of(fine=1), GROUPS: groups_of("fine")}
    done = await imported(node, {**good, **files})
    assert len(done.refusals) == 1
    assert reason in done.refusals[0]
    assert node.machine.image() == before


WRONG: tuple[Any, ...] = (None, [], {}, "6", 1.5, True, -1, 2**63, "\ud800")


@pytest.mark.parametrize("value", WRONG, ids=repr)
@node_with(topics={"x": 1})
async def test_a_value_of_another_kind_is_refused_with_file_entry_and_field(
    node: Fixture, value: Any
) -> None:
    topic: Any = {"perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
    of_group = ("groupName", "retryMaxTimes", "consumeEnable", "groupRetryPolicy")
    rows: list[tuple[str, str, Any]] = [
        *((TOPICS, f, {**topic, f: value}) for f in (*topic, "topicName", "attributes")),
        *((GROUPS, field, {field: value}) for field in of_group),
        (OFFSETS, "0", {"0": value}),
        *((file, "the entry", value) for file in (TOPICS, GROUPS, OFFSETS)),
    ]
    right: list[tuple[Any, str, str]] = [
        *((None, file, f) for file, f in ((TOPICS, "topicName"), (TOPICS, "attributes"))),
        *((None, GROUPS, field) for field in of_group),
        *(({}, GROUPS, field) for field in ("groupRetryPolicy", "the entry")),
        *(({}, file, f) for file, f in ((TOPICS, "attributes"), (OFFSETS, "the entry"))),
        (True, GROUPS, "consumeEnable"),
    ]
    name_of = {TOPICS: "topicConfigTable", GROUPS: "subscriptionGroupTable", OFFSETS: "offsetTable"}
    for file, field, row in rows:
        entry = "x@g" if file == OFFSETS else "x"
        text = json.dumps({name_of[file]: {entry: row}})
        done = await imported(node, {file: text}, is_dry_run=True)
        is_empty_topic = (value, file, field) == ({}, TOPICS, "the entry")
        said = "writeQueueNums" if is_empty_topic else field
        wanted = [] if (value, file, field) in right else [f"{file}: {entry}: {said} is "]
        assert [one[: len(wanted[0])] for one in done.refusals] == wanted, (field, value)
    for file, name in name_of.items():
        if value != {}:
            done = await imported(node, {file: json.dumps({name: value})}, is_dry_run=True)
            assert f"{file}: not such a table: {name} is " in done.refusals[0]


@node_with(limits=Limits(in_flight_count_max=1))
async def test_a_resend_behind_another_learns_that_it_was_done(node: Fixture) -> None:
    """The last look is in the order of the log, also for a call that had to wait for room."""
    await node.broker.append(request(0, 1))
    message = RetryMessage(topic="orders", offset=0, is_dead=True)
    call = RetryLaterRequest(group="readers", messages=[message])
    await node.broker.retry.retry_later(call)
    send = ResendDeadLettersRequest(group="readers", offsets=[0])
    node.driver.is_holding = True
    resend = node.broker.dead_letters.resend_dead_letters
    tasks = [asyncio.ensure_future(resend(send)) for _ in range(2)]
    await eventually(lambda: len(node.broker.produce.parked) == 1, "a parked call")
    node.driver.release()
    first, second = await asyncio.gather(*tasks, return_exceptions=True)
    assert not isinstance(first, BaseException)
    assert isinstance(second, AlreadyResentError)


async def test_a_member_may_not_name_a_topic_that_nobody_may_read(node: Fixture) -> None:
    await node.create_topic("deaf", permission=2)
    with pytest.raises(TopicNotReadableError):
        await node.broker.groups.heartbeat(
            HeartbeatRequest(group="g", client_id="c", topics=["deaf"])
        )
