"""Topics, routes, queries and the commands behind them."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from node.broker.read import queries
from node.config.limits import Limits
from node.errors import common as errors
from node.errors.translation import describe
from node.state.state import COMMAND_TOPIC
from quorumlog.pb import common_pb2
from quorumlog.pb.admin_pb2 import (
    DescribeTopicRequest,
    ListTopicsRequest,
)
from quorumlog.pb.common_pb2 import QueueId
from quorumlog.pb.log_pb2 import (
    GetMessageRequest,
    GroupRoute,
    NodeAddress,
    OffsetByTimeRequest,
    QueryByKeyRequest,
    QueueOffsetsRequest,
    RecordsResponse,
    RouteRequest,
)
from store.errors import LimitExceededError, Outcome, StoreFullError, TopicNameError
from store.record.message import Message, encode_message, message_id
from tests.node.broker_fakes import Fixture, node_with, request
from tests.node.commands import SMALL_LIMITS
from tests.store.records import messages, numbers

LOCAL = common_pb2.CONSISTENCY_LOCAL


async def create(node: Fixture, topic: str, **how: Any) -> tuple[int, int]:
    info = await node.create_topic(topic, **how)
    return info.queue_count, info.permission


# --- Topics ---


@node_with(topics={})
async def test_a_topic_is_created_changed_listed_and_deleted(node: Fixture) -> None:
    assert await create(node, "b") == (4, 6)
    assert await create(node, "a", queue_count=2, permission=4) == (2, 4)
    assert await create(node, "a") == (2, 4), "what is not said does not change"
    assert await create(node, "a", queue_count=3) == (3, 4)
    listed = await node.broker.topics.list_topics(ListTopicsRequest())
    assert [(t.topic, t.queue_count) for t in listed.topics] == [("a", 3), ("b", 4)]
    await node.delete_topic("a")
    listed = await node.broker.topics.list_topics(ListTopicsRequest(with_system=True))
    assert {COMMAND_TOPIC, "b"} <= {t.topic for t in listed.topics}
    assert "a" not in {t.topic for t in listed.topics}


@node_with(topics=dict.fromkeys(("bills", "Orders", "orders2", "reorders"), 1))
async def test_topics_come_in_pages_of_those_with_a_text(node: Fixture) -> None:
    async def page(after: str) -> list[str]:
        request = ListTopicsRequest(containing="ORD", after=after, max_count=2)
        answer = await node.broker.topics.list_topics(request)
        assert (answer.matched_count, answer.topic_count) == (3, 4)
        return [topic.topic for topic in answer.topics]

    assert await page("") == ["Orders", "orders2"]
    assert await page("orders2") == ["reorders"]
    assert await page("reorders") == []


async def test_topics_that_may_not_be_are_refused(node: Fixture) -> None:
    cases: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"topic": ""}, TopicNameError),
        ({"topic": "a b"}, TopicNameError),
        ({"topic": "x" * 128}, TopicNameError),
        ({"topic": "rmq_sys_x"}, errors.ReservedTopicError),
        ({"topic": "TBW102"}, errors.ReservedTopicError),
        ({"topic": "a", "permission": 8}, errors.BadRequestError),
        ({"topic": "orders", "queue_count": 3}, errors.BadRequestError),
        ({"topic": "orders", "must_be_new": True}, errors.TopicExistsError),
        ({"topic": "a", "queue_count": 1025}, errors.LimitReachedError),
    ]
    for how, kind in cases:
        with pytest.raises(kind):
            await node.create_topic(**how)
    with pytest.raises(errors.TopicExistsError, match=r"topic create orders .*--exist-ok"):
        await node.create_topic(topic="orders", must_be_new=True)
    with pytest.raises(errors.ReservedTopicError):
        await node.delete_topic(COMMAND_TOPIC)
    with pytest.raises(errors.UnknownTopicError):
        await node.delete_topic("nobody")
    assert len(node.broker.context.state.topics) == 1


@node_with(topics={})
async def test_of_two_that_create_a_new_topic_at_once_one_wins(node: Fixture) -> None:
    """Both pass the leader's check; the order in the log decides."""
    outcomes = await asyncio.gather(
        create(node, "a", queue_count=2, must_be_new=True),
        create(node, "a", queue_count=3, must_be_new=True),
        return_exceptions=True,
    )
    assert outcomes[0] == (2, 6)
    assert isinstance(outcomes[1], errors.TopicExistsError)
    assert node.machine.state.topics["a"].queue_count == 2
    assert node.broker.context.state.refused_count == 1


@node_with(topics={}, limits=SMALL_LIMITS)
async def test_a_limit_of_the_state_is_told_to_the_caller(node: Fixture) -> None:
    outcomes = await asyncio.gather(
        *(create(node, name, queue_count=1) for name in "abcde"), return_exceptions=True
    )
    assert [isinstance(one, Exception) for one in outcomes] == [False] * 4 + [True]
    assert isinstance(outcomes[4], errors.LimitReachedError)


@node_with(topics={"orders": 20})
async def test_a_topic_is_described_with_its_queues(node: Fixture) -> None:
    receipt = await node.append(0, 3)
    topic = await node.broker.topics.describe_topic(DescribeTopicRequest(topic="orders"))
    assert (topic.info.queue_count, len(topic.queues)) == (20, 20)
    first, second = topic.queues[:2]
    assert (first.min_offset, first.max_offset) == (0, 3)
    assert first.last_store_unix_ms == receipt.store_unix_ms
    assert (second.queue_id, second.max_offset, second.last_store_unix_ms) == (1, 0, 0)
    with pytest.raises(errors.UnknownTopicError):
        await node.broker.topics.describe_topic(DescribeTopicRequest(topic="nobody"))


async def test_only_the_leader_speaks_of_topics(node: Fixture) -> None:
    node.driver.lose(2)
    for call in (
        create(node, "a"),
        node.delete_topic("orders"),
        node.broker.topics.list_topics(ListTopicsRequest()),
        node.broker.topics.describe_topic(DescribeTopicRequest(topic="orders")),
        node.broker.put_member(1, "h:1", ""),
    ):
        with pytest.raises(errors.NotLeaderError):
            await call


# --- Commands ---


@node_with(topics={}, limits=replace(Limits(), command_entry_size_bytes_max=300))
async def test_commands_of_one_turn_share_entries_up_to_a_limit(node: Fixture) -> None:
    before = node.driver.append_count
    await asyncio.gather(*(create(node, f"t{n}") for n in range(10)))
    assert node.driver.append_count == before + 5
    assert node.broker.own_appends.command_count == 0
    assert len(node.machine.state.topics) == 10
    with pytest.raises(LimitExceededError):
        await node.broker.put_member(1, "h" * 400, "")


@node_with(limits=replace(Limits(), append_timeout_ms=200, command_count_max=2))
async def test_commands_fail_as_their_entry_does(node: Fixture) -> None:
    node.driver.failure = StoreFullError("log", 9, 1)
    with pytest.raises(StoreFullError):
        await create(node, "a")
    node.driver.is_holding = True
    with pytest.raises(errors.AppendTimeoutError) as caught:
        await create(node, "a")
    assert describe(caught.value).outcome is Outcome.UNKNOWN
    second = await node.written(create(node, "b"))
    with pytest.raises(errors.BusyError, match="commands under way: 2 held"):
        await create(node, "c")
    node.driver.lose(2)
    node.driver.decide(1)
    with pytest.raises(errors.NotAppliedError):
        await second
    assert set(node.machine.state.topics) == {"orders", "a"}
    assert node.broker.own_appends.command_count == 0


# --- Routes ---


async def test_a_route_says_what_a_client_needs(node: Fixture) -> None:
    await node.broker.put_member(3, "host3:8083", "host3:40911")
    request = RouteRequest(topics=["nobody", "orders", COMMAND_TOPIC])
    route = await node.broker.route(request)
    assert (route.cluster_id, route.node_id, route.leader_id) == ("cluster", 1, 1)
    addresses = {n.node_id: n.address for n in route.nodes}
    assert addresses == {1: "host1:8081", 2: "host2:8082", 3: "host3:8083"}
    topics = {t.topic: (t.queue_count, t.permission) for t in route.topics}
    assert topics == {"orders": (4, 6), COMMAND_TOPIC: (1, 4)}
    assert route.batch_size_bytes_max == node.broker.produce.batch_size_bytes_max
    assert route.body_size_bytes_max > 0
    node.driver.lose(2)
    route = await node.broker.route(RouteRequest(cluster_id="cluster"))
    assert (route.leader_id, route.term) == (2, node.driver.term), "any node says who leads"
    assert not route.topics
    with pytest.raises(errors.WrongClusterError):
        await node.broker.route(RouteRequest(cluster_id="other"))


async def test_a_route_names_the_other_groups(node: Fixture) -> None:
    other = GroupRoute(group="g1", kind="raft", term=3, leader_id=4)
    other.nodes.append(NodeAddress(node_id=4, address="host4:8081"))
    route = await node.broker.route(RouteRequest(topics=["orders"]))
    assert (route.group, list(route.groups)) == ("g0", [])
    names: list[str] = []

    def others(topics: Iterable[str]) -> list[GroupRoute]:
        names.extend(topics)
        return [other]

    node.broker.other_groups = others
    route = await node.broker.route(RouteRequest(topics=["orders"]))
    assert list(route.groups) == [other]
    assert names == ["orders"]
    assert route.leader_id == 1, "its own group is not among them"


# --- Queries ---


async def by_id(node: Fixture, text: str) -> RecordsResponse:
    return await node.broker.queries.get_message(GetMessageRequest(message_id=text))


async def by_key(node: Fixture, key: str, **how: Any) -> RecordsResponse:
    query = QueryByKeyRequest(**{"topic": "orders", "key": key, **how})
    return await node.broker.queries.query_by_key(query)


def offsets_of(response: RecordsResponse) -> list[int]:
    return [message.queue_offset for message in messages(response.records)]


async def test_a_message_is_found_by_its_id(node: Fixture) -> None:
    host, position = ("127.0.0.1", 0), (await node.append(0, 3)).position
    assert numbers((await by_id(node, message_id(host, position))).records) == [0]
    node.driver.is_holding = True
    future = node.broker.append_nowait(request(3, 4))
    unseen = message_id(host, node.driver.pending[0].prepared.result.record_positions[0])
    wrong = [message_id(host, position + 1), message_id(host, 1 << 40), unseen]
    for text in (*wrong, message_id(("127.0.0.9", 0), position)):
        with pytest.raises(errors.MessageNotFoundError):
            await by_id(node, text)
    with pytest.raises(errors.BadRequestError):
        await by_id(node, "zz")
    node.driver.release()
    await future
    assert (await by_id(node, unseen)).record_count == 1


async def test_messages_are_found_by_key(node: Fixture) -> None:
    for number in (1, 2, 1, 1):
        await node.append(number, number + 1)
    response = await by_key(node, "key0001")
    assert numbers(response.records) == [1, 1, 1]
    assert offsets_of(response) == [0, 2, 3]
    assert offsets_of(await by_key(node, "key0001", max_count=2)) == [2, 3], "the newest"
    assert (await by_key(node, "key0001", hi_unix_ms=1)).record_count == 0
    for key in ("", "key0001 key0002"):
        with pytest.raises(errors.BadRequestError):
            await by_key(node, key)
    with pytest.raises(errors.UnknownTopicError):
        await by_key(node, "k", topic="nobody")


@node_with(limits=replace(Limits(), query_size_bytes_max=1))
async def test_the_answer_of_a_query_is_bounded(node: Fixture) -> None:
    await node.append(1, 2)
    await node.append(1, 2)
    response = await by_key(node, "key0001")
    assert offsets_of(response) == [1], "one at least"
    following = {"next_position": response.next_position, "max_count": 1}
    response = await by_key(node, "key0001", **following)
    assert offsets_of(response) == [0]
    assert not response.HasField("next_position"), "no others"


async def test_a_query_that_stops_among_other_keys_says_where_it_goes_on(
    node: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_STEP_COUNT_MAX", 4)
    for key in ["Aa"] + ["BB"] * 9:  # Of one hash.
        await node.put(encode_message("orders", 0, b"x", {"KEYS": key}))
    response = await by_key(node, "Aa")
    counts = [response.record_count]
    while response.HasField("next_position"):
        assert len(counts) < 10, "it does not get on"
        response = await by_key(node, "Aa", next_position=response.next_position)
        counts.append(response.record_count)
    assert sum(counts) == 1
    assert len(counts) > 2, "one call did it all"


@node_with(limits=replace(Limits(), query_size_bytes_max=10_000), file_size_bytes=1 << 20)
async def test_a_query_reads_no_more_than_it_answers(
    node: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ["Aa"] * 8 + ["BB"] * 3  # Of one hash.
    for key in keys:
        await node.put(encode_message("orders", 0, b"x" * 3_000, {"KEYS": key}))
    store, sizes_bytes = node.log.store, list[int]()
    message_at = store.reads.message_at

    def counted(position: int) -> Message:
        message = message_at(position)
        sizes_bytes.append(message.size_bytes)
        return message

    monkeypatch.setattr(store.reads, "message_at", counted)
    assert (await by_key(node, "BB")).record_count == 3
    sizes_bytes.clear()
    assert offsets_of(await by_key(node, "Aa")) == [5, 6, 7]
    assert len(sizes_bytes) == 3 + 1, "these, and one more; none of the other key"


@node_with(limits=replace(Limits(), queue_offsets_count_max=80))
async def test_queues_are_found_by_time_and_say_where_they_are(node: Fixture) -> None:
    receipt = await node.append(0, 3)
    for unix_ms, offset in ((0, 0), (receipt.store_unix_ms + 1, 3)):
        request_ = OffsetByTimeRequest(topic="orders", unix_ms=unix_ms)
        assert (await node.broker.queries.offset_by_time(request_)).offset == offset

    async def ends(*queue_ids: int, **how: Any) -> list[int]:
        queues = [QueueId(topic="orders", queue_id=queue_id) for queue_id in queue_ids]
        query = QueueOffsetsRequest(queues=queues, **how)
        return [row.max_offset for row in (await node.broker.queries.queue_offsets(query)).queues]

    assert await ends(*[1, 0] * 40) == [0, 3] * 40, "in the order asked"
    node.driver.lose(2)
    assert await ends(1, 0, consistency=LOCAL) == [0, 3]
    with pytest.raises(errors.NotLeaderError):
        await ends(1, 0)
    with pytest.raises(errors.BadRequestError):
        await ends(*[1] * 81)
    with pytest.raises(errors.UnknownQueueError):
        await ends(4, consistency=LOCAL)
