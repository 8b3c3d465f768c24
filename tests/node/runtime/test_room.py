"""Room of a table: one address has half, the node all."""

import pytest

from node.errors.common import BusyError
from node.runtime.accounts import Accounts, on_behalf_of
from node.runtime.room import Room


def test_one_address_leaves_half_of_the_room_to_others() -> None:
    room, accounts = Room("readers", 8), Accounts()
    with on_behalf_of(accounts.open("10.0.0.1")):
        own = [room.take(), room.take(3)]
        with pytest.raises(BusyError, match=r"readers of 10\.0\.0\.1: 4 held, the limit is 4"):
            room.take()
    with on_behalf_of(accounts.open("10.0.0.2")):
        other = room.take(4)
    with pytest.raises(BusyError, match="readers: 8 held"):
        room.take()
    room.give_back(own[0])
    assert room.take() == ""
    for host, count in ((own[1], 3), (other, 4), ("", 1)):
        room.give_back(host, count)
    assert (room.used, dict(room._by_host)) == (0, {})
