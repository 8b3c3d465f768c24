"""The division of a topic's queues by RocketMQ's average strategy, as classic clients compute it.

Owns one member's part, where members of the classic protocol and of others share a group: those
read what the classic ones leave. Must not know how members are found.
Source: RocketMQ AllocateMessageQueueAveragely.
"""

from collections.abc import Mapping, Sequence

from node.broker.core.broker_names import BrokerNames


def queues_of_member(
    own_group: str,
    queue_counts: Mapping[str, int],
    name_count: int,
    client_id: str,
    client_ids: Sequence[str],
) -> list[int]:
    """Return the queues of one topic in a broker group that a member reads, in order.

    `queue_counts` are those of the topic by broker group, `client_ids` all members, sorted. Clients
    order queues by the broker name that owns them, as a text, and their number there.
    """
    rows = []
    for group, count in queue_counts.items():
        names = BrokerNames(group, name_count)
        for queue in range(count):
            number, shown = names.shown(queue)
            rows.append((names.all[number], shown, group, queue))
    rows.sort()
    i, least, more = client_ids.index(client_id), *divmod(len(rows), len(client_ids))
    lo = i * least + min(i, more)
    mine = rows[lo : lo + least + (i < more)]
    return sorted(queue for _, _, group, queue in mine if group == own_group)
