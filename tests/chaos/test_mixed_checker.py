"""The judge of mixed groups: planted faults of each kind are found, right histories are not."""

from collections.abc import Callable

import pytest
from chaos.mixed import ALONE_S, NOTICE_S, MixedHistory, check_mixed

S = 1_000_000_000


def history() -> MixedHistory:
    """Queue 0 of a member passes to another at 10 s, which takes again what was not stored."""
    made = MixedHistory(sent={f"m-0-{n}": (0, n) for n in range(20)}, quiet=[(50 * S, 60 * S)])
    for member, first, since_s in (("a", 0, 0), ("b", 8, 10)):
        made.lines[member] = [{"at_ns": since_s * S, "queues": [0]}]
        for n in range(first, first + 12):
            taken = [0, n, f"m-0-{n}"]
            made.lines[member].append({"at_ns": (since_s + 1) * S + n, "took": taken})
    made.lines["a"].append({"at_ns": 10 * S, "queues": []})
    return made


def told(made: MixedHistory, member: str, at_s: float, **what: object) -> None:
    made.lines[member].append({"at_ns": int(at_s * S), **what})


FAULTS: list[tuple[str, Callable[[MixedHistory], object]]] = [
    ("unread", lambda made: made.sent.update({"m-0-20": (0, 20)})),
    ("moved", lambda made: made.sent.update({"m-0-3": (0, 4)})),
    ("moved", lambda made: told(made, "b", 30, moved="from 3 to 0")),
    ("order", lambda made: told(made, "b", 30, took=[0, 3, "m-0-3"])),
    ("order", lambda made: made.lines["b"][-1].update(took=[0, 19, "m-0-2"])),
    ("twice", lambda made: told(made, "a", 55, took=[0, 19, "m-0-19"])),
    ("popped", lambda made: made.popped.append("m-0-3")),
    ("ended", lambda made: made.ended.append("a with 1")),
    ("shared", lambda made: made.lines["a"][-1].update(at_ns=int((10.1 + NOTICE_S) * S))),
    ("shared", lambda made: made.lines["a"][-1].update(at_ns=int((11 + ALONE_S) * S))),
]


@pytest.mark.parametrize(("kind", "plant"), FAULTS)
def test_a_planted_fault_is_found(kind: str, plant: Callable[[MixedHistory], object]) -> None:
    made = history()
    if kind == "shared":
        told(made, "b", 12 + ALONE_S, queues=[])
    plant(made)
    assert {found.partition(":")[0] for found in check_mixed(made)} >= {kind}


def test_a_right_history_has_no_fault() -> None:
    made = history()
    assert check_mixed(made) == []
    made.kills_ns.append(9 * S)
    told(made, "b", 12 + ALONE_S, queues=[])
    made.lines["a"][-1]["at_ns"] = int((9.9 + ALONE_S) * S)
    assert check_mixed(made) == [], "after the kill of a node it may take longer"
