"""What comes from other replicas, and is not for the machine as it came."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.replication.ha.core.sender import HaProtocolError
from node.replication.ha.core.types import HaRole
from node.replication.ha.core.wire import Frame, Hello, ImageRequest, Transfer
from node.replication.ha.inbound import Inbound
from node.replication.ha.link.connection import HaConnection
from node.replication.ha.storage.log import HaLog, ImageNeededError


class Connection(HaConnection):
    """Notes what it is asked to send."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self.sent: list[Frame] = []

    @property
    def peer(self) -> int:
        return self._node_id

    def send_frame(self, frame: Frame) -> None:
        self.sent.append(frame)


class Machine:
    """Notes its inputs."""

    def __init__(self) -> None:
        self.links: list[Any] = []
        self.inputs: list[tuple[str, HaConnection]] = []
        self.state = SimpleNamespace(now_ms=0, end=100, role=HaRole.SLAVE, downs=lambda: self.links)

    def is_behind(self, connection: HaConnection, position: int) -> bool:
        return False

    def on_contact(self, connection: HaConnection) -> None:
        self.inputs.append(("contact", connection))

    def received(self, connection: HaConnection, frame: Frame, checked: object) -> None:
        self.inputs.append(("received", connection))

    def disconnected(self, connection: HaConnection) -> None:
        self.inputs.append(("disconnected", connection))


class Log:
    """Refuses bytes as it is told."""

    min_position = 50

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.store = error, self

    def has_room(self, size_bytes: int) -> bool:
        return True

    def check_raw(self, position: int, body: bytes) -> None:
        if self.error is not None:
            raise self.error


class World:
    """Inbound frames over these connections."""

    def __init__(self, log: Log) -> None:
        self.machine = Machine()
        machine: Any = self.machine
        self.takes_inputs = True
        self.closed: list[tuple[HaConnection, str]] = []
        link: Any = SimpleNamespace(close=lambda one, reason: self.closed.append((one, reason)))

        def give(call: Any) -> None:
            call(machine)

        async def make_image() -> bytes:
            return b""

        self.inbound = Inbound(
            machine,
            cast(HaLog, log),
            cast(Any, None),
            link,
            give=give,
            takes_inputs=lambda: self.takes_inputs,
            touch=lambda: None,
            on_fatal=lambda error: pytest.fail(f"fatal: {error}"),
            make_image=make_image,
        )

    def stream_to(self, peer: int, next_position: int | None, acked: int = 0) -> Connection:
        """A replica to which the log is streamed."""
        connection = Connection(peer)
        sender = SimpleNamespace(next=next_position, acked=acked)
        self.machine.links.append(SimpleNamespace(id=connection, peer=peer, sender=sender))
        return connection


TRANSFER = Transfer(50, 1, 0, 0, b"bytes")


@pytest.mark.parametrize(
    ("error", "given", "sent", "reason"),
    [
        (None, "received", [], ""),
        (ImageNeededError(50), "contact", [ImageRequest()], ""),  # It is alive all the same.
        (HaProtocolError("no records"), "disconnected", [], "no records"),
    ],
)
async def test_bytes_are_checked_before_the_machine_has_them(
    error: Exception | None, given: str, sent: list[Frame], reason: str
) -> None:
    world, master = World(Log(error)), Connection(1)
    assert world.inbound.on_frame(master, TRANSFER)
    assert (world.machine.inputs, master.sent) == ([(given, master)], sent)
    assert [text.partition(";")[0] for _, text in world.closed] == [reason] * bool(reason)


async def test_a_replica_that_says_it_is_another_one_is_refused() -> None:
    """Its acks would count as those of a node that has no such bytes."""
    world, impostor = World(Log()), Connection(2)
    assert world.inbound.on_frame(impostor, Hello(3, 1, "group"))
    assert world.closed == [(impostor, "node 2 says it is 3")]
    assert world.machine.inputs == [("disconnected", impostor)]


@pytest.mark.parametrize(("floor", "needed"), [(0, 60), (60, 60), (61, 80), (80, 80), (81, 100)])
async def test_records_that_a_slave_lacks_are_kept_above_the_floor(floor: int, needed: int) -> None:
    world = World(Log())
    world.stream_to(2, 70, acked=60)
    world.stream_to(3, 80)
    world.stream_to(4, None)
    assert world.inbound.needed_position(floor) == needed


async def test_a_slave_that_needs_deleted_records_is_dropped() -> None:
    world = World(Log())
    world.stream_to(2, None)
    behind = world.stream_to(3, 49)
    world.stream_to(4, 50)
    world.machine.links.append(SimpleNamespace(id=Connection(5), peer=5, sender=None))
    world.inbound.drop_left_behind()
    assert [connection for connection, _ in world.closed] == [behind]


async def test_a_connection_that_ends_before_it_is_handed_in_is_handed_in_no_more() -> None:
    world, master = World(Log()), Connection(1)
    world.takes_inputs = False
    world.inbound.on_open(master)
    world.inbound.on_closed(master)
    world.takes_inputs = True
    world.inbound.go_on()
    assert (world.machine.inputs, master.sent) == ([], [])
