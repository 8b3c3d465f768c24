"""Members of a group in a world: what they get over a leader's death, by each transport."""

from typing import Any

import pytest

from tests.two_processes import results_of


def run(transport: str, hash_seed: str) -> dict[str, Any]:
    """Pass queues between members, in a process of its own."""
    (result,) = results_of("tests.simulation.hand_overs", transport, hash_seed=hash_seed)
    assert isinstance(result, dict)
    assert not result["problem"], result["problem"]
    return result


def test_a_queue_passes_to_another_member_with_each_message_once() -> None:
    assert run("auto", "1")["event_count"] > 1_000


@pytest.mark.long
@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_a_seed_is_one_history_in_every_process(transport: str) -> None:
    assert run(transport, "1") == run(transport, "2")
