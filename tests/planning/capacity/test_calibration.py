"""A calibration comes back from JSON as it was, and nothing else passes for one."""

import json
from typing import Any

import pytest

from planning.capacity.calibration import Calibration, CalibrationError
from tests.planning.capacity.sizes import calibration


def test_a_calibration_comes_back_as_it_was() -> None:
    made = calibration(machine={"cpu": "x"}, made_unix_ms=5)
    assert Calibration.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_costs_are_those_of_the_points() -> None:
    costs = calibration()
    assert costs.batch_cost.seconds(20, 20_000) == pytest.approx(140e-6)
    assert costs.leader_cost.seconds(20, 20_000) == pytest.approx(70e-6)
    assert costs.nodes_cost.seconds(20, 20_000) == pytest.approx(140e-6)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"version": 2}, "no calibration of version 1"),
        ({"sync_s": 0}, "sync_s is 0"),
        ({"sync_s": -1.0}, "sync_s is -1"),
        ({"sync_s": float("inf")}, "sync_s is inf"),
        ({"sync_s": 10**400}, "sync_s is 1000"),
        ({"source": 5}, "source is no text"),
        ({"machine": []}, "machine no object"),
        ({"sync_s": "1"}, "sync_s is '1'"),
        ({"sync_s": True}, "sync_s is True"),
        ({"appends": []}, "0 measured appends"),
        ({"appends": [{"x": 1}]}, "other keys"),
        ({"appends": None}, "other keys"),
        ({"extra": 1}, "other keys"),
    ],
)
def test_a_damaged_calibration_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(CalibrationError, match=text):
        Calibration.from_json({**calibration().to_json(), **changes})
