"""RocketMQ's retry policies as delays, and back: in checkpoints, imports and tools' requests."""

from typing import Any

import pytest

from node.state.checkpoint_tables import settings_in
from node.state.retry_policy import policy_of, retry_delays_of


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (None, None),
        ({}, None),
        (policy_of([7_000, 9_000]), [7_000, 9_000]),
        (policy_of([]), []),
        ({"customizedRetryPolicy": {"next": [1_000]}}, []),
        (
            {
                "type": "EXPONENTIAL",
                "exponentialRetryPolicy": {"initial": 1_000, "max": 3_000, "multiplier": 2},
            },
            [1_000, 2_000, 3_000],
        ),
        ({"type": "EXPONENTIAL"}, [5_000 * 2**n for n in range(11)] + [7_200_000]),
    ],
)
def test_a_policy_is_read_wherever_a_group_is(policy: Any, delays: list[int] | None) -> None:
    assert retry_delays_of(policy) == delays
    assert settings_in({"groupRetryPolicy": policy}, {}).retry_delays_ms == tuple(delays or ())


@pytest.mark.parametrize(
    "policy",
    [
        [],
        "CUSTOMIZED",
        {"type": "OTHER"},
        {"customizedRetryPolicy": []},
        {"customizedRetryPolicy": {"next": [1, 2, 0]}},
        {"customizedRetryPolicy": {"next": [1, 2, True]}},
        {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"multiplier": -1}},
        {"type": "EXPONENTIAL", "exponentialRetryPolicy": 3},
    ],
)
def test_anything_else_is_refused(policy: Any) -> None:
    with pytest.raises(ValueError, match="groupRetryPolicy"):
        retry_delays_of(policy)
