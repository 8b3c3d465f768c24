"""What keeps derived files true, in a node: what its passes do about damage of the log itself."""

from collections.abc import Callable
from typing import cast

import pytest

from node import metrics
from node.replication.derived_scrub import DerivedCare
from node.replication.scrub import ScrubStats
from store.derived.guard import DerivedPiece, DerivedScrubber
from store.errors import CorruptionError, DerivedFileError, StoreError
from tests.patience import eventually


class Steps:
    """Be a scrubber of derived files, and the store that has it: a list of what steps come to."""

    size_bytes = 100

    def __init__(self, *outcomes: DerivedPiece | Exception) -> None:
        self._outcomes = list(outcomes)
        self.count = 0

    def begin_at(self, share: float) -> None:
        assert 0 <= share < 1

    def step(self) -> DerivedPiece:
        self.count += 1
        outcome = self._outcomes.pop(0) if self._outcomes else DerivedPiece(100, ends_pass=True)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def derived_scrubber(self) -> DerivedScrubber:
        return cast(DerivedScrubber, self)

    def serve_on_loop(self, tell: Callable[[str], None]) -> None:
        pass

    def stop_mending(self) -> None:
        pass

    def mend_unknown(self) -> None:
        pass

    def mend_derived(self, error: DerivedFileError) -> None:
        raise AssertionError(f"nobody met {error}")


_DAMAGE = CorruptionError("00000000000000000000", 258, "body CRC", "DB812D7D", "105DF88E")


@pytest.mark.parametrize(
    ("trouble", "damage"),
    [(_DAMAGE, [_DAMAGE]), (DerivedFileError("queue", 20, "unit", "one", "another"), [])],
    ids=["of-the-log", "another"],
)
async def test_damage_of_the_log_that_a_pass_meets_is_repaired_and_counted(
    monkeypatch: pytest.MonkeyPatch, trouble: StoreError, damage: list[CorruptionError]
) -> None:
    """The scrub may come too late to see it: what it counts is what both of them found."""
    monkeypatch.setattr("node.replication.derived_scrub.ROUND_MS", 1)
    reports: list[CorruptionError] = []
    fatal: list[BaseException] = []
    care = DerivedCare(Steps(trouble), 1, reports.append, fatal.append)  # type: ignore[arg-type]
    care.start()
    await eventually(lambda: care.stats().pass_count >= 2)
    await care.stop()
    assert (reports, fatal) == (damage, [])
    assert care.stats().log_damage_count == len(damage)
    passes = metrics.Passes(ScrubStats(0, 0, 2, 0, 0, 0), care.stats())
    assert metrics.PASSES["scrub_damage"].read(passes) == 2 + len(damage)
