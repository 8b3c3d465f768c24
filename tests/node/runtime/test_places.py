"""Places of a table: one address has half, the node all."""

import pytest

from node.errors.common import BusyError
from node.runtime.accounts import Accounts, on_behalf_of
from node.runtime.places import Places


def test_one_address_leaves_half_of_the_places_to_others() -> None:
    places, accounts = Places("readers", 8), Accounts()
    with on_behalf_of(accounts.open("10.0.0.1")):
        own = [places.take(), places.take(3)]
        with pytest.raises(BusyError, match=r"readers of 10\.0\.0\.1: 4 held, the limit is 4"):
            places.take()
    with on_behalf_of(accounts.open("10.0.0.2")):
        other = places.take(4)
    with pytest.raises(BusyError, match="readers: 8 held"):
        places.take()
    places.give_back(own[0])
    assert places.take() == ""
    for host, count in ((own[1], 3), (other, 4), ("", 1)):
        places.give_back(host, count)
    assert (places.used, dict(places._by_host)) == (0, {})
