"""The account of a client's run, and the page of the recorded one."""

from typing import Any, Final

from tests.compat.official import records
from tests.compat.official.account import GROUPS, account, longest_pause_ms
from tests.compat.official.clients import ROOT, pinned

Event = dict[str, Any]
PAGE: Final = ROOT / "docs" / "clients.md"


def acked(kind: str, number: int, *, at_ms: int = 0, due_ms: int = 0, kept: bool = True) -> Event:
    given = {"kind": kind, "number": number, "at_ms": at_ms, "due_ms": due_ms, "kept": kept}
    return {"event": "acked", **given}


def received(body: str, group: str = "simple", now_ms: int = 0) -> Event:
    return {"event": "received", "group": group, "body": body, "now_ms": now_ms}


def everywhere(*bodies: str, now_ms: int = 0) -> list[Event]:
    return [received(body, group, now_ms) for group in GROUPS for body in bodies]


def test_a_message_missing_in_a_group_is_lost() -> None:
    sent = [acked("ordinary", 1)]
    received_all = everywhere("ordinary:1")
    assert account(sent, received_all, killed_at=0).lost == 0
    assert account(sent, received_all[1:], killed_at=0).lost == 1


def test_a_rolled_back_message_must_not_be_received() -> None:
    sent = [acked("transactional", 3, kept=False)]
    assert account(sent, [], killed_at=0)[1:3] == (0, 0)
    assert account(sent, [received("transactional:3")], killed_at=0).leaked == 1


def test_order_is_that_of_first_deliveries_within_a_message_group() -> None:
    def out_of_order(*numbers: int) -> int:
        deliveries = [received(f"ordered:{number}") for number in numbers]
        return account([], deliveries, killed_at=0).out_of_order

    assert out_of_order(0, 10, 1, 11, 20) == 0
    assert out_of_order(0, 10, 0, 20) == 0, "it came again"
    assert out_of_order(0, 20, 10, 30) == 1


def test_a_second_delivery_is_counted_and_one_before_its_time() -> None:
    sent = [acked("delayed", 5, due_ms=9_000)]
    twice = [received("delayed:5", now_ms=9_000)] * 2
    assert account(sent, twice, killed_at=0).doubled == 1
    assert account(sent, twice, killed_at=0).early == 0
    assert account(sent, [received("delayed:5", now_ms=7_999)], killed_at=0).early == 1


def test_a_pause_is_one_of_a_message_group() -> None:
    acks = [acked("ordered", n, at_ms=at) for n, at in ((0, 0), (1, 900), (10, 1_000), (11, 1_200))]
    assert longest_pause_ms(acks) == 1_000
    summary = account([*acks, acked("ordered", 20, at_ms=5_000)], [], killed_at=4)
    assert (summary.calm_pause_ms, summary.pause_ms) == (1_000, 4_000)


def test_the_page_is_what_was_recorded() -> None:
    command = "python -m tests.compat.official.records > docs/clients.md"
    assert PAGE.read_text("utf-8") == records.page(records.recorded()), f"run {command}"


def test_recorded_clients_are_pinned() -> None:
    on_record = {(c["language"], c["version"]) for c in records.recorded()}
    assert on_record <= {(client.language, client.version) for client in pinned()}
