"""What makes no sense is refused by name."""

from typing import Any

import pytest

from planning.capacity.demand import DemandError, HostSize
from tests.planning.capacity.sizes import demand


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"peak_msgs_per_s": 0.0}, "peak_msgs_per_s is 0"),
        ({"average_msgs_per_s": 20_000.0}, "above the peak"),
        ({"body_size_bytes": (4 << 20) + 1}, "body_size_bytes is"),
        ({"copies": 0}, "copies is 0"),
        ({"copies": 10}, "takes 1 to 9"),
        ({"utilisation": 0.0}, "utilisation"),
        ({"utilisation": float("nan")}, "utilisation"),
        ({"zones": 1, "zone_failures": 1}, "nothing is left"),
        ({"retention_s": float("inf")}, "retention_s"),
    ],
)
def test_a_demand_without_sense_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(DemandError, match=text) as caught:
        demand(**changes)
    assert caught.value.do


def test_a_host_without_a_core_is_refused() -> None:
    with pytest.raises(DemandError, match="cores = 0"):
        HostSize(cores=0)


@pytest.mark.parametrize(
    ("copies", "quorum", "tolerated"), [(1, 1, 0), (2, 2, 0), (3, 2, 1), (4, 3, 1), (5, 3, 2)]
)
def test_a_quorum_is_a_majority(copies: int, quorum: int, tolerated: int) -> None:
    quorum_demand = demand(copies=copies)
    assert (quorum_demand.quorum, quorum_demand.tolerated_count) == (quorum, tolerated)
