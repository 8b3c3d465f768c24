"""Commands of the replicated state, as tests write them."""

from dataclasses import replace

from node.config.limits import Limits
from node.state.state import State
from quorumlog.pb.state_pb2 import Command

SMALL_LIMITS = replace(
    Limits(),
    topic_count_max=4,
    queue_count_max=8,
    queue_total_count_max=16,
    group_count_max=3,
    group_offset_count_max=6,
    offset_count_max=10,
    producer_count_max=3,
    producer_window_count=4,
    member_count_max=2,
    cancelled_delayed_count_max=3,
)


def state_after(*commands: Command, limits: Limits = SMALL_LIMITS) -> State:
    """Apply commands that are all accepted."""
    state = State(limits)
    for number, command in enumerate(commands):
        assert state.apply_command(command, 100 * number) is None, command
    return state


def put_topic(
    topic: str, queue_count: int = 4, permission: int = 6, must_be_new: bool = False
) -> Command:
    return Command(
        put_topic=Command.PutTopic(
            topic=topic, queue_count=queue_count, permission=permission, must_be_new=must_be_new
        )
    )


def delete_topic(topic: str) -> Command:
    return Command(delete_topic=Command.DeleteTopic(topic=topic))


def commit(group: str, *offsets: tuple[str, int, int]) -> Command:
    rows = [Command.Offset(topic=t, queue_id=q, offset=o) for t, q, o in offsets]
    return Command(commit_offsets=Command.CommitOffsets(group=group, offsets=rows))


def delete_group(group: str) -> Command:
    return Command(delete_group=Command.DeleteGroup(group=group))


def producer_batch(producer_id: int, sequence: int) -> Command:
    return Command(
        producer_batch=Command.ProducerBatch(
            producer_id=producer_id, sequence=sequence, record_count=1
        )
    )


def put_member(node_id: int, address: str, peer_address: str = "") -> Command:
    return Command(
        put_member=Command.PutMember(node_id=node_id, address=address, peer_address=peer_address)
    )
