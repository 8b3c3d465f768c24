"""The retry policy in a group's row of a table of RocketMQ, as the delays of our groups.

Owns RocketMQ's two policies. A list of delays begins with its third entry: RocketMQ adds two to the
number of attempts. Source: RocketMQ CustomizedRetryPolicy, ExponentialRetryPolicy.
"""

from collections.abc import Sequence
from typing import Any, Final

_UNUSED_DELAYS_MS: Final = [1_000, 5_000]
_DELAY_MS_MAX: Final = (1 << 31) - 1
DELAY_COUNT_MAX: Final = 33
"""Of an exponential policy: RocketMQ counts attempts up to 32."""
_INITIAL_MS, _MAX_MS, _MULTIPLIER = 5_000, 7_200_000, 2


def policy_of(delays_ms: Sequence[int]) -> dict[str, Any]:
    """Return the policy of a group with delays of its own."""
    table = {"next": [*_UNUSED_DELAYS_MS, *delays_ms]}
    return {"customizedRetryPolicy": table, "type": "CUSTOMIZED"}


def retry_delays_of(policy: Any) -> list[int] | None:
    """Return the delays before each attempt, in milliseconds; None: the policy names none.

    Raises ValueError for a policy that has no such form.
    """
    if policy is None:
        return None
    if type(policy) is dict and policy.get("type", "CUSTOMIZED") == "CUSTOMIZED":
        table = policy.get("customizedRetryPolicy")
        if table is None:
            return None
        delays = table.get("next") if type(table) is dict else None
        if type(delays) is list and all(map(_is_delay, delays)):
            return delays[len(_UNUSED_DELAYS_MS) :]
    elif type(policy) is dict and policy["type"] == "EXPONENTIAL":
        exponential = policy.get("exponentialRetryPolicy", {})
        if type(exponential) is dict:
            first = exponential.get("initial", _INITIAL_MS)
            most = exponential.get("max", _MAX_MS)
            factor = exponential.get("multiplier", _MULTIPLIER)
            if all(map(_is_delay, (first, most, factor))):
                return _exponential(first, most, factor)
    text = "groupRetryPolicy is CUSTOMIZED with next, or EXPONENTIAL with initial, max, multiplier"
    raise ValueError(text)


def _is_delay(number: object) -> bool:
    return type(number) is int and 0 < number <= _DELAY_MS_MAX


def _exponential(first_ms: int, most_ms: int, factor: int) -> list[int]:
    delays = [min(first_ms, most_ms)]
    while delays[-1] < most_ms and factor > 1 and len(delays) < DELAY_COUNT_MAX:
        delays.append(min(delays[-1] * factor, most_ms))
    return delays
