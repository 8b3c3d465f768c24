"""Messages given back: the entry that moves them, how often, dead letters, and who is refused."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from node.broker.append.own_appends import OwnAppends
from node.broker.records.delayed import LEVEL_DELAYS_MS, delivered, held
from node.config.limits import Limits
from node.errors.common import (
    BadRequestError,
    BusyError,
    LimitReachedError,
    ReservedTopicError,
    SequenceReusedError,
    TopicNotReadableError,
    TopicNotWritableError,
    UnknownGroupError,
    UnknownQueueError,
    UnknownTopicError,
)
from node.errors.delay import DelayedFullError
from node.errors.groups import (
    GroupDisabledError,
    GroupOrderlyError,
    MessageExpiredError,
    TopicForbiddenError,
)
from node.state.tables.topic_types import TopicSettings
from quorumlog.pb.common_pb2 import Delays, TopicNames
from quorumlog.pb.consumer_pb2 import GroupOffset
from quorumlog.pb.retry_pb2 import (
    GetGroupSettingsRequest,
    ListDeadLettersRequest,
    ListDeadLettersResponse,
    ResendDeadLettersRequest,
    ResendDeadLettersResponse,
    RetryLaterRequest,
    RetryLaterResponse,
    RetryMessage,
)
from store.record.message import decode_message, encode_message
from tests.node.broker_fakes import Fixture, configure, hidden, node_with
from tests.node.commands import SMALL_LIMITS, commit
from tests.node.delayed import delayed, send
from tests.patience import eventually

RETRY, DEAD = "%RETRY%readers", "%DLQ%readers"


def given_back(*offsets: int, **how: Any) -> RetryLaterRequest:
    """Messages of queue 0 of orders, unless told otherwise."""
    of = {name: how.pop(name) for name in ("topic", "delay_ms", "is_dead") if name in how}
    of.setdefault("topic", "orders")
    how.setdefault("group", "readers")
    return RetryLaterRequest(messages=[RetryMessage(offset=o, **of) for o in offsets], **how)


def committed(offset: int, topic: str = "orders") -> GroupOffset:
    return GroupOffset(topic=topic, offset=offset)


async def listed(node: Fixture, offset: int = 0) -> ListDeadLettersResponse:
    request = ListDeadLettersRequest(group="readers", offset=offset)
    return await node.broker.dead_letters.list_dead_letters(request)


async def resend(node: Fixture, *offsets: int, **how: Any) -> ResendDeadLettersResponse:
    request = ResendDeadLettersRequest(group="readers", offsets=offsets, **how)
    return await node.broker.dead_letters.resend_dead_letters(request)


async def deliver(node: Fixture, level: int) -> int:
    """Put what is held on a level into the retry topic, as its time has come; return its offset."""
    _lo, hi = node.log.store.reads.queue_range("SCHEDULE_TOPIC_XXXX", level - 1)
    page = node.log.store.reads.pull("SCHEDULE_TOPIC_XXXX", level - 1, hi - 1, max_count=1)
    own = OwnAppends(node.broker.context)
    await own.write(delivered(page.data)[1], [])
    return node.log.store.reads.queue_range(RETRY, 0)[1] - 1


async def test_a_message_waits_for_its_time_and_says_where_it_came_from(node: Fixture) -> None:
    node.broker.context.unix_ms = lambda: 5_000_000
    await node.append(0, 3)
    origin = hidden(node, "orders")[1]
    answer = await node.broker.retry.retry_later(given_back(1, offsets=[committed(2)]))
    assert (answer.retried_count, answer.dead_count) == (1, 0)

    page = node.log.store.reads.pull("SCHEDULE_TOPIC_XXXX", 2, 0)
    assert held(page.data) == (RETRY, 0, 5_010_000)
    moved = decode_message(page.data)
    assert moved.body == origin.body
    assert moved.reconsume_times == 1
    assert moved.properties["RETRY_TOPIC"] == "orders"
    assert moved.properties["ORIGIN_MESSAGE_ID"] == origin.message_id
    assert node.machine.state.groups["readers"]["orders"] == {0: 2}
    assert node.machine.state.topics[RETRY] == TopicSettings(1, 6)
    assert node.machine.state.refused_count == 0


async def test_the_pauses_are_those_of_the_published_table(node: Fixture) -> None:
    await node.append(0, 1)
    where: dict[str, Any] = {"topic": "orders"}
    offset = 0
    for attempt in range(16):
        answer = await node.broker.retry.retry_later(given_back(offset, **where))
        assert answer.retried_count == 1
        level = min(3 + attempt, 18)
        offset, where = await deliver(node, level), {"topic": RETRY}
        last = hidden(node, RETRY)[-1]
        assert last.reconsume_times == attempt + 1
        assert last.properties["RETRY_TOPIC"] == "orders"
    assert [LEVEL_DELAYS_MS[level - 1] for level in (3, 4, 5, 18)] == [
        10_000, 30_000, 60_000, 7_200_000,
    ]  # fmt: skip
    answer = await node.broker.retry.retry_later(given_back(offset, topic=RETRY))
    assert (answer.retried_count, answer.dead_count) == (0, 1)
    (dead,) = hidden(node, DEAD)
    assert (dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (17, "orders")
    assert dead.properties["ORIGIN_MESSAGE_ID"] == hidden(node, "orders")[0].message_id


async def test_settings_of_the_group_and_the_call_say_when_and_how_often(node: Fixture) -> None:
    node.broker.context.unix_ms = lambda: 1_000
    await node.append(0, 4)
    await configure(node, "readers", retry_count_max=2, retry_delays=Delays(delay_ms=[7, 70]))
    await node.broker.retry.retry_later(given_back(0))
    await node.broker.retry.retry_later(given_back(1, delay_ms=500))
    timed = hidden(node, "rmq_sys_wheel_timer")
    assert [m.properties["TIMER_OUT_MS"] for m in timed] == ["1007", "1500"]

    answer = await node.broker.retry.retry_later(given_back(2, attempt_count_max=1))
    assert answer.dead_count == 1
    answer = await node.broker.retry.retry_later(given_back(3, is_dead=True))
    assert answer.dead_count == 1
    settings = await node.broker.group_settings.get_group_settings(
        GetGroupSettingsRequest(group="readers")
    )
    assert settings.retry_count_max == 2


async def test_a_repeated_call_gets_the_first_answer(node: Fixture) -> None:
    await node.append(0, 2)
    how: dict[str, Any] = {"producer_id": 7, "offsets": [committed(1)], "is_dead": True}
    first = await node.broker.retry.retry_later(given_back(0, **how))
    await configure(node, "readers", is_consume_enabled=False)  # A new one is refused.
    again = await node.broker.retry.retry_later(given_back(0, **how))
    assert again.is_duplicate
    again.is_duplicate = False
    assert again == first
    with pytest.raises(SequenceReusedError):
        await node.broker.retry.retry_later(given_back(0, 1, **how))
    with pytest.raises(GroupDisabledError):
        await node.broker.retry.retry_later(given_back(0, sequence=1, **how))
    assert len(hidden(node, DEAD)) == 1
    assert node.broker.retry.dead_total == 1


@pytest.mark.parametrize("keeps", [False, True])
async def test_a_lost_leader_leaves_all_of_an_entry_or_nothing(node: Fixture, keeps: bool) -> None:
    await node.append(0, 2)
    call = given_back(0, producer_id=7, offsets=[committed(1)], is_dead=True)
    await configure(node, "readers", retry_count_max=16)
    await node.broker.own_appends.submit(commit("readers", ("orders", 0, 0)))
    task = await node.written(node.broker.retry.retry_later(call))
    node.driver.lose()
    node.driver.decide(1 if keeps else 0)
    node.driver.is_holding = False
    node.driver.lead()
    if keeps:
        first: RetryLaterResponse | BaseException = await task
    else:
        (first,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(first, Exception)
        assert hidden(node, DEAD) == []
        assert node.machine.state.groups["readers"]["orders"] == {0: 0}
    again = await node.broker.retry.retry_later(call)
    assert again.is_duplicate == keeps
    assert len(hidden(node, DEAD)) == 1
    assert node.machine.state.groups["readers"]["orders"] == {0: 1}


async def test_dead_letters_go_back_once(node: Fixture) -> None:
    await node.append(0, 4)
    await node.broker.retry.retry_later(given_back(0, 1, 2, is_dead=True))
    calls = [resend(node, 2, 0), resend(node, 2, 0)]
    first, second = await asyncio.gather(*calls, return_exceptions=True)
    assert not isinstance(first, BaseException)
    assert (list(first.resent), list(first.already_resent)) == ([0, 2], [])
    assert isinstance(second, BusyError)
    again = await resend(node, 2, 0)
    assert (again.index, list(again.resent), list(again.already_resent)) == (-1, [], [0, 2])
    assert [m.body for m in hidden(node, "orders")[4:]] == [hidden(node, "orders")[0].body]
    (sent,) = hidden(node, "orders", 2)
    assert (sent.body, sent.reconsume_times) == (hidden(node, "orders")[2].body, 0)
    assert "RETRY_TOPIC" not in sent.properties
    listing = await listed(node)
    assert (listing.record_count, list(listing.resent)) == (3, [0, 2])
    assert (listing.next_offset, listing.min_offset, listing.max_offset) == (3, 0, 3)
    assert (await listed(node, 9)).record_count == 0
    assert node.broker.dead_letters.resent_total == 2


async def die_large(node: Fixture, *topics: str) -> None:
    """Make dead letters, two of which are larger than a batch."""
    body = b"x" * (node.broker.produce.batch_size_bytes_max // 2)
    for number, topic in enumerate(topics):
        await node.put(encode_message(topic, 0, body))
        offset = topics[:number].count(topic)
        await node.broker.retry.retry_later(given_back(offset, topic=topic, is_dead=True))


@node_with(topics={"orders": 1, "gone": 1})
async def test_letters_that_can_go_are_sent_in_pieces_and_the_others_are_named(
    node: Fixture,
) -> None:
    await die_large(node, "orders", "gone", "orders", "orders")
    await node.delete_topic("gone")
    sent: list[list[int]] = []
    left = [0, 1, 2, 3, 4]
    while left:
        answer = await resend(node, *left, in_pieces=True)
        sent.append(list(answer.resent))
        kept = {letter.offset: letter.code for letter in answer.kept}
        left = [offset for offset in left if offset not in {*answer.resent, *kept}]
        assert answer.already_resent == []
    assert sent == [[0], [2, 3]], "what stays was read, too"
    assert kept == {4: "node.no_such_offset"}
    again = await resend(node, 0, 1, 2, in_pieces=True)
    assert (again.index, list(again.resent), list(again.already_resent)) == (-1, [], [0, 2])
    assert [(one.offset, one.code) for one in again.kept] == [(1, "node.unknown_topic")]
    assert "'gone'" in again.kept[0].reason
    assert len(hidden(node, "orders")) == 3 + 3


@node_with(topics={"gone": 1})
async def test_letters_that_stay_are_read_in_pieces_too(node: Fixture) -> None:
    await die_large(node, *["gone"] * 5)
    await node.delete_topic("gone")
    answer = await resend(node, *range(5), in_pieces=True)
    assert [letter.offset for letter in answer.kept] == [0, 1, 2]
    assert (answer.index, list(answer.resent)) == (-1, [])


async def test_a_resend_that_was_cut_off_can_be_made_again(node: Fixture) -> None:
    await node.append(0, 1)
    await node.broker.retry.retry_later(given_back(0, is_dead=True))
    for keep_count in (0, 1):
        task = await node.written(resend(node, 0))
        node.driver.lose()
        node.driver.decide(keep_count)
        await asyncio.gather(task, return_exceptions=True)
        node.driver.is_holding = False
        node.driver.lead()
    assert list((await resend(node, 0)).already_resent) == [0]
    assert len(hidden(node, "orders")) == 2


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (given_back(), BadRequestError),
        (given_back(*range(257)), BadRequestError),
        (given_back(0, group="no name"), BadRequestError),
        (given_back(0, delay_ms=259_200_001), BadRequestError),
        (given_back(0, topic="other"), UnknownTopicError),
        (given_back(0, topic="deaf"), TopicNotReadableError),
        (given_back(0, topic="rmq_sys_quorumlog"), ReservedTopicError),
        (given_back(0, topic="%RETRY%others"), ReservedTopicError),
        (given_back(0, topic=DEAD), ReservedTopicError),
        (given_back(4), MessageExpiredError),
        (given_back(-1), MessageExpiredError),
        (given_back(0, offsets=[committed(1, "other")]), UnknownTopicError),
        (given_back(0, offsets=[committed(-1)]), BadRequestError),
        (given_back(0, offsets=[committed(1), committed(2)]), BadRequestError),
        (
            given_back(0, offsets=[GroupOffset(topic="orders", queue_id=4, offset=1)]),
            UnknownQueueError,
        ),
    ],
)
async def test_a_bad_call_is_refused_and_changes_nothing(
    node: Fixture, call: RetryLaterRequest, kind: type[Exception]
) -> None:
    await node.append(0, 4)
    await node.create_topic("deaf", permission=2)
    before = node.machine.image()
    with pytest.raises(kind):
        await node.broker.retry.retry_later(call)
    assert node.machine.image() == before


async def test_settings_forbid(node: Fixture) -> None:
    await node.append(0, 1)
    await configure(node, "readers", forbidden_topics=TopicNames(topics=["orders"]))
    with pytest.raises(TopicForbiddenError):
        await node.broker.retry.retry_later(given_back(0))
    await configure(node, "readers", forbidden_topics=TopicNames(), is_orderly=True)
    with pytest.raises(GroupOrderlyError):
        await node.broker.retry.retry_later(given_back(0))
    await configure(node, "readers", is_orderly=False, is_consume_enabled=False)
    with pytest.raises(GroupDisabledError):
        await node.broker.retry.retry_later(given_back(0))
    with pytest.raises(UnknownGroupError):
        await node.broker.group_settings.get_group_settings(GetGroupSettingsRequest(group="nobody"))


@node_with(limits=SMALL_LIMITS)
async def test_limits_of_groups_hold_before_anything_moves(node: Fixture) -> None:
    await node.append(0, 1)
    for group in "abc":
        await node.broker.retry.retry_later(given_back(0, group=group, is_dead=True))
    with pytest.raises(LimitReachedError):
        await node.broker.retry.retry_later(given_back(0, group="d", is_dead=True))
    assert "%DLQ%d" not in node.machine.state.topics
    assert len(node.machine.state.topics) == 7


async def test_bad_resends_are_refused(node: Fixture) -> None:
    await node.append(0, 2)
    for call in (resend(node, 0), listed(node)):
        with pytest.raises(UnknownGroupError):
            await call
    await node.broker.retry.retry_later(given_back(0, is_dead=True))
    with pytest.raises(MessageExpiredError):
        await resend(node, 0, 1)
    with pytest.raises(BadRequestError):
        await resend(node)
    await node.create_topic("orders", permission=4)
    with pytest.raises(TopicNotWritableError):
        await resend(node, 0)
    await node.delete_topic("orders")
    with pytest.raises(UnknownTopicError):
        await resend(node, 0)
    assert node.machine.state.refused_count == 0


async def test_clients_may_read_the_topics_of_a_group_and_no_more(node: Fixture) -> None:
    await node.append(0, 1)
    await node.broker.retry.retry_later(given_back(0, is_dead=True))
    before = node.log.last_index
    for refused in (
        node.append(0, 1, topic=DEAD),
        node.append(0, 1, topic=RETRY),
        *(send(node, delayed(1, DELAY="1"), delayed(2, topic=t, DELAY="1")) for t in (DEAD, RETRY)),
        *(send(node, delayed(1, DELAY="1"), delayed(2, topic=t)) for t in (DEAD, RETRY)),
        node.create_topic(DEAD, queue_count=2),
        node.delete_topic(RETRY),
    ):
        with pytest.raises(ReservedTopicError):
            await refused
    assert node.log.last_index == before


@node_with(filled=3)
async def test_the_offsets_of_a_member_are_stored_from_the_first_on(node: Fixture) -> None:
    """The room that is made for a new one before moves no group."""
    newest = -1
    for offset in range(3):
        row = GroupOffset(topic="orders", offset=offset + 1, newest_known=newest)
        await node.broker.retry.retry_later(given_back(offset, offsets=[row]))
        newest = node.machine.state.groups["readers"]["orders"][0]
        assert newest == offset + 1


@node_with(limits=replace(Limits(), delayed_count_max=1))
async def test_a_message_that_waits_for_its_retry_counts_as_held_at_once(node: Fixture) -> None:
    await node.append(0, 2)
    await node.broker.retry.retry_later(given_back(0, is_dead=True))  # Makes the group's topics.
    node.driver.is_holding = True
    first = asyncio.create_task(node.broker.retry.retry_later(given_back(0)))
    await eventually(lambda: bool(node.driver.pending), "the first is written")
    with pytest.raises(DelayedFullError, match="1 delayed messages are held"):
        await node.broker.retry.retry_later(given_back(1))
    node.driver.release()
    assert (await first).retried_count == 1
