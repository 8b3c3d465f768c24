"""The account of a client's run, and the page of the recorded one."""

from typing import Any, Final

import pytest

from tests.compat.official import records
from tests.compat.official.account import account, longest_pause_ms
from tests.compat.official.clients import ROOT, pinned

Event = dict[str, Any]
PAGE: Final = ROOT / "docs" / "records" / "clients.md"


def acked(kind: str, number: int, *, at_ms: int = 0, due_ms: int = 0, kept: bool = True) -> Event:
    given = {"kind": kind, "number": number, "at_ms": at_ms, "due_ms": due_ms, "kept": kept}
    return {"event": "acked", **given}


FAILED: Event = {"event": "failed", "what": "send delayed:5"}
ORDERED = [f"ordered:{number}" for number in (0, 10, 1, 11, 20)]


@pytest.mark.parametrize(
    ("sent", "bodies", "now_ms", "counts"),
    [
        ([acked("ordinary", 1)], ["ordinary:1"], 0, (0, 0, 0, 0, 0)),
        ([acked("ordinary", 1)], [], 0, (1, 0, 0, 0, 0)),
        ([acked("transactional", 3, kept=False)], [], 0, (0, 0, 0, 0, 0)),
        ([acked("transactional", 3, kept=False)], ["transactional:3"], 0, (0, 1, 0, 0, 0)),
        ([acked("delayed", 5, due_ms=9_000)], ["delayed:5"] * 2, 9_000, (0, 0, 1, 0, 0)),
        ([acked("delayed", 5, due_ms=9_000)], ["delayed:5"], 7_999, (0, 0, 0, 0, 1)),
        ([FAILED, acked("delayed", 5, due_ms=9_000)], ["delayed:5"], 7_999, (0, 0, 0, 0, 0)),
        ([], ORDERED, 0, (0, 0, 0, 0, 0)),
        ([], [ORDERED[0], ORDERED[1], ORDERED[0], ORDERED[4]], 0, (0, 0, 1, 0, 0)),
        ([], [ORDERED[0], ORDERED[4], ORDERED[1]], 0, (0, 0, 0, 1, 0)),
    ],
)
def test_what_is_lost_leaked_doubled_out_of_order_and_early(
    sent: list[Event], bodies: list[str], now_ms: int, counts: tuple[int, ...]
) -> None:
    events = [
        {"event": "received", "group": "push", "body": body, "now_ms": now_ms} for body in bodies
    ]
    assert account(sent, events, killed_at=0, groups=["push"])[1:6] == counts


def test_a_pause_is_one_of_a_message_group() -> None:
    acks = [acked("ordered", n, at_ms=at) for n, at in ((0, 0), (1, 900), (10, 1_000), (11, 1_200))]
    assert longest_pause_ms(acks) == 1_000
    summary = account([*acks, acked("ordered", 20, at_ms=5_000)], [], killed_at=4)
    assert (summary.calm_pause_ms, summary.pause_ms) == (1_000, 4_000)


def test_the_page_is_what_was_recorded() -> None:
    command = "python -m tests.compat.official.records > docs/records/clients.md"
    assert PAGE.read_text("utf-8") == records.page(records.recorded()), f"run {command}"


def test_recorded_clients_are_pinned() -> None:
    on_record = {(c["language"], c["version"]) for c in records.recorded()}
    assert on_record <= {(client.language, client.version) for client in pinned()}
