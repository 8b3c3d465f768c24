"""Random commands of every table of the replicated state, many of which the state accepts."""

from random import Random

from node.state.state import State
from node.state.tables.delay import DelayTable
from node.state.tables.offset_set import encode_runs
from node.state.tables.pop import NO_OFFSET, PopTable
from node.state.tables.transactions import TransactionsTable
from node.state.tables.users import UsersTable
from quorumlog.pb import common_pb2, users_pb2
from quorumlog.pb.pop_pb2 import PopHide, PopSettle, PopTake
from quorumlog.pb.state_pb2 import Command
from quorumlog.pb.transaction_pb2 import (
    TRANSACTION_OUTCOME_COMMITTED,
    TRANSACTION_OUTCOME_ROLLED_BACK,
)
from tests.node.commands import (
    commit,
    delete_group,
    delete_topic,
    producer_batch,
    put_member,
    put_topic,
)

TOPICS = ("a", "b", "%DLQ%g", "%RETRY%g")
GROUPS = ("g", "h", "i")
LEVEL_MAX = 9
"""Of the build that the commands are for."""
OUTCOMES = (TRANSACTION_OUTCOME_COMMITTED, TRANSACTION_OUTCOME_ROLLED_BACK)


def random_command(random: Random, state: State) -> Command:
    """Return a command that may be applied next, or refused."""
    return random.choice(_KINDS)(random, state)


def _core(random: Random, state: State) -> Command:
    topic, group = random.choice(TOPICS), random.choice(GROUPS)
    match random.randrange(8):
        case 0:
            return delete_topic(topic)
        case 1:
            return delete_group(group)
        case 2:
            return put_member(random.randrange(1, 4), random.choice(["", "h:1", "h:2"]))
        case 3 | 4:
            put = put_topic(topic, random.randrange(1, 6), random.choice([2, 4, 6]))
            return put if random.randrange(2) else Command(recreate_topic=put.put_topic)
    rows = {random.randrange(4): random.randrange(99) for _ in range(random.randrange(1, 4))}
    command = commit(group, *((topic, queue, offset) for queue, offset in rows.items()))
    for row in command.commit_offsets.offsets:
        if random.randrange(3):
            stored = state.groups.get(group, {}).get(topic, {}).get(row.queue_id, -1)
            row.newest_known = random.choice([stored, random.randrange(-1, 99)])
    return command


def _producer(random: Random, state: State) -> Command:
    producer_id = random.randrange(1, 6)
    producer = state.producers.get(producer_id)
    last = producer.last_sequence if producer is not None else -1
    return producer_batch(producer_id, max(0, last + random.choice([1, 1, 1, 0, 3])))


def _delay(random: Random, state: State) -> Command:
    queue = random.randrange(3)
    if not random.randrange(4):
        offset = random.randrange(40)
        return Command(cancel_delayed=Command.CancelDelayed(queue=queue, offset=offset))
    floor = state.table(DelayTable).queues[queue].floor
    offsets = sorted(random.sample(range(floor, floor + 9_000), random.randrange(1, 4)))
    take = Command.TakeDelayed(undeliverable_count=random.randrange(2))
    take.queues.add(queue=queue, runs=encode_runs(offsets))
    return Command(take_delayed=take)


def _settings(random: Random, _state: State) -> Command:
    settings = common_pb2.GroupSettings()
    match random.randrange(4):
        case 0:
            settings.retry_count_max = random.choice([16, 3])
        case 1:
            settings.is_orderly = random.choice([True, False])
        case 2:
            settings.retry_delays.delay_ms.extend(random.sample(range(1, 9), random.randrange(3)))
        case _:
            settings.forbidden_topics.topics.extend(random.sample(TOPICS, random.randrange(3)))
    put = Command.PutGroup(group=random.choice(GROUPS), settings=settings)
    return Command(put_group=put)


def _dead(random: Random, _state: State) -> Command:
    offsets = sorted(random.sample(range(40), 2))
    mark = Command.MarkResent(group=random.choice(GROUPS), offsets=offsets)
    mark.min_offset = random.choice([0, 0, 5])
    return Command(mark_resent=mark)


def _pop(random: Random, state: State) -> Command:
    table = state.table(PopTable)
    windows = list(table.windows.items())
    if windows and random.randrange(2):
        (group, topic, queue_id), window = random.choice(windows)
        offset = random.choice(list(window.items))
        generation = window.items[offset].generation
        rows = {"queue_ids": [queue_id], "offsets": [offset], "generations": [generation]}
        if random.randrange(2):
            return Command(pop_settle=PopSettle(group=group, topic=topic, **rows))
        hide = PopHide(group=group, topic=topic, visible_unix_ms=random.randrange(99), **rows)
        return Command(pop_hide=hide)
    group, topic, queue_id = random.choice(GROUPS), random.choice(TOPICS), random.randrange(2)
    first = table.next_offset(state, (group, topic, queue_id))
    take = PopTake(
        group=group,
        topic=topic,
        generation=table.last_generation + 1,
        visible_unix_ms=random.randrange(99),
        attempt_id=random.choice(["", "x", "y"]),
    )
    lo, count = max(first, 0), random.randrange(1, 4)
    queue = take.queues.add(queue_id=queue_id, expected_offset=first, next_offset=lo + count)
    queue.offsets.extend(range(lo, lo + count))
    queue.message_groups.extend([0] * count)
    in_flight = table.windows.get((group, topic, queue_id))
    if in_flight is not None and random.randrange(2):
        offset = random.choice(list(in_flight.items))
        queue.again_offsets.append(offset)
        queue.again_generations.append(in_flight.items[offset].generation)
    assert first >= NO_OFFSET
    return Command(pop_take=take)


def _transaction(random: Random, state: State) -> Command:
    is_open = list(state.table(TransactionsTable).open)
    if is_open and random.randrange(2):
        position = random.choice(is_open)
        if random.randrange(2):
            end = Command.EndTransaction(position=position, outcome=random.choice(OUTCOMES))
            return Command(end_transaction=end)
        check = Command.CheckTransactions(positions=[position], next_unix_ms=random.randrange(99))
        return Command(check_transactions=check)
    begin = Command.BeginTransaction(
        producer_group=random.choice(GROUPS),
        size_bytes=random.randrange(1, 90),
        record_count=1,
        begun_unix_ms=random.randrange(99),
    )
    return Command(begin_transaction=begin)


def _claim(random: Random, _state: State) -> Command:
    claim = Command.ClaimProducer(name=random.choice("pq"), number=random.randrange(1, 9))
    return Command(claim_producer=claim)


def _key(random: Random, _state: State) -> Command:
    put = Command.PutKeyValue(namespace=random.choice("mn"), key=random.choice("kl"))
    if random.randrange(3):
        put.value = random.choice("vw")
    return Command(put_key_value=put)


def _level(random: Random, _state: State) -> Command:
    return Command(raise_level=Command.RaiseLevel(level=random.randrange(1, LEVEL_MAX + 1)))


def _users(random: Random, state: State) -> Command:
    name, role = random.choice("uvw"), random.choice("rs")
    match random.randrange(5):
        case 0:
            return Command(delete_user=Command.DeleteUser(name=name))
        case 1:
            return Command(delete_role=Command.DeleteRole(name=role))
        case 2:
            put_role = Command.PutRole(name=role)
            resource = random.choice(["Topic:a*", "Group:*", "Topic:{}*", "Cluster:nodes"])
            put_role.rules.add(deny=not random.randrange(3), resource=resource, actions=["Get"])
            return Command(put_role=put_role)
    old = state.table(UsersTable).users.users.get(name)
    user = users_pb2.User(name=name, revision=1 if old is None else old.revision + 1)
    user.roles.extend(random.sample(["admin", "reader", role, f"{role}:a"], 2))
    user.credentials.add(id="c", certificate=f"CN={random.choice('uvwx')}")
    user.is_disabled = not random.randrange(4)
    put = Command.PutUser(user=user, must_be_first=not random.randrange(6))
    put.reset_id = random.choice([b"", b"", b"1", b"2"])
    return Command(put_user=put)


def _rates(random: Random, _state: State) -> Command:
    put = Command.SetTopicRates(topic=random.choice(TOPICS), bytes_per_second=random.randrange(3))
    return Command(set_topic_rates=put)


_KINDS = (
    *(_core, _core, _producer, _delay, _settings, _dead),
    *(_pop, _pop, _transaction, _claim, _key, _level, _users, _rates),
)
