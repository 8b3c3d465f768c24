"""The loss of an async master: a reported end of a log is one, everything else is a breach."""

from dataclasses import replace

from chaos.losses import Place, find_losses

from quorumlog.ha_types import HaLoss
from raft.simulator.history import Drain, Value

PLACES: dict[Value, Place] = {
    f"v{n}": Place(1 if n < 8 else 2, 100 * n, "q0", n) for n in range(12)
}
REPORTED = HaLoss(0, 2, 500, 800, 800, True, 3, 3, "")


def drain(*gone: int) -> Drain:
    return Drain(1, "q0", 0, [f"v{n}" for n in range(12) if n not in gone])


def test_a_reported_end_is_no_breach() -> None:
    found = find_losses(PLACES, [drain(5, 6, 7)], [REPORTED])
    assert found.lost == {"v5", "v6", "v7"}
    assert not found.problems
    assert find_losses(PLACES, [drain()], []).lost == frozenset()


def test_a_hole_is_found() -> None:
    problems = find_losses(PLACES, [drain(5, 7)], [REPORTED]).problems
    assert len(problems) == 1
    assert "'v6' behind it is not" in problems[0]


def test_a_loss_that_nobody_reports_is_found() -> None:
    assert len(find_losses(PLACES, [drain(6, 7)], []).problems) == 2
    outside = replace(REPORTED, lo_position=700)
    assert "'v6' at 600" in find_losses(PLACES, [drain(6, 7)], [outside]).problems[0]


def test_a_count_that_is_too_low_is_found() -> None:
    low = replace(REPORTED, acked_record_count=2)
    assert "3 messages are lost, 2" in find_losses(PLACES, [drain(5, 6, 7)], [low]).problems[0]


def test_what_retention_deleted_is_no_loss_and_what_it_cannot_have_is() -> None:
    kept = Drain(1, "q0", 3, [f"v{n}" for n in range(3, 12) if n != 6])
    found = find_losses(PLACES, [kept, kept._replace(replica=2)], [])
    assert found.lost == {"v6"}
    assert len(found.problems) == 2
