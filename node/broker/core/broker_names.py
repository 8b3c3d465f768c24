"""Broker names: how the queues of one group look to classic clients, and back.

Owns the mapping. Clients read a route twice a minute and for no other reason, and turn to another
broker *name* when a send fails. So a group has several names, each of which owns every n-th queue:
whatever becomes of a node, the names and their queues stay, and another node answers for its name.
The count of names never follows the members of the cluster: consumers keep offsets by name and
queue, and a queue that moved to another name would be consumed twice.
"""

from typing import Final


class BrokerNames:
    """The names of one broker group, by number from 0."""

    def __init__(self, group: str, count: int) -> None:
        self.count: Final = count
        self.all: Final = tuple(f"{group}-n{number}" for number in range(1, count + 1))
        self.number_of: Final = {name: number for number, name in enumerate(self.all)}.get
        """Returns the number of a name; None if the group has no such name."""

    def queue_count(self, number: int, queue_count: int) -> int:
        """Return how many of a topic's queues a name owns."""
        return (queue_count - number + self.count - 1) // self.count

    def queue(self, number: int, queue_id: int) -> int:
        """Return the group's queue that a name shows under a queue id."""
        return queue_id * self.count + number

    def shown(self, queue: int) -> tuple[int, int]:
        """Return number of the name and queue id of a queue of the group."""
        return queue % self.count, queue // self.count
