"""The SDK in a world: what its clients get over a leader's death and return, by each transport."""

import json
from typing import Any

import pytest

from tests.two_processes import in_two_processes, results_of

MODULE = "tests.simulation.scenes"
SEED = 4
CASES = [
    ("messages", "auto"),
    ("messages", "framed"),
    ("messages", "grpc"),
    ("group", "auto"),
    ("group", "grpc"),
    ("hand_overs", "grpc"),
    ("pop", "auto"),
    ("pop", "grpc"),
    ("transactions", "auto"),
    ("transactions", "grpc"),
    ("partition", "auto"),
    ("partition", "grpc"),
]


@pytest.mark.long
def test_clients_get_what_they_were_promised() -> None:
    results = in_two_processes(MODULE, SEED, cases=CASES)
    both = zip(CASES, results, strict=True)
    failed = {f"{case}": one["problem"] for case, one in both if one["problem"]}
    assert not failed, "\n".join(f"{case}: {problem}" for case, problem in failed.items())
    assert min(one["event_count"] for one in results) > 1_000


def test_a_queue_passes_to_another_member_with_each_message_once() -> None:
    assert not (problem := run("hand_overs", "auto", hash_seed="1")["problem"]), problem


@pytest.mark.long
@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_a_seed_is_one_history_in_every_process(transport: str) -> None:
    first, second = (run("all_kinds", transport, hash_seed=one) for one in ("1", "2"))
    assert first == second
    assert not first["problem"], first["problem"]
    assert int(first["trace"], 16), "nothing was traced"


def run(scene: str, transport: str, *, hash_seed: str) -> dict[str, Any]:
    """Play one scene in a process of its own."""
    cases = json.dumps([(scene, transport)])
    (found,) = results_of(MODULE, SEED, cases, hash_seed=hash_seed)
    assert isinstance(found, dict), "a scene has a result"
    return found
