"""Two ledgers and a list: whatever is done to them, they hold what the list holds."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from store.ledger.entry import KIND_CONFIGURATION, KIND_DATA, KIND_NO_OP
from store.ledger.ledger import Ledger
from tests.seeds import examples
from tests.store.ledger.whole import check_whole
from tests.store.ledgers import append_raw, image, new_ledger, open_ledger
from tests.store.overwrites import overwrite
from tests.store.records import BORN, batch, numbers, small_config

CONFIG = small_config(container="ledger", file_size_bytes=3 * 4096)
Expected = tuple[int, int, object]  # Term, kind, numbers of the records or the body.


class TwoLedgers(RuleBasedStateMachine):
    """A leader that appends and cuts, a follower that is shipped raw ranges; both crash."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())

    @initialize()
    def make(self) -> None:
        self.leader = new_ledger(self.root / "leader", CONFIG)
        self.follower = new_ledger(self.root / "follower", CONFIG)
        self.model: list[Expected] = []
        self.next_number = 0
        self.first = 0  # The leader's, moved by retention.

    @rule(records=st.integers(1, 12), size_bytes=st.integers(10, 400), later=st.booleans())
    def append(self, records: int, size_bytes: int, later: bool) -> None:
        self.leader.term += later
        lo, hi = self.next_number, self.next_number + records
        result = self.leader.append(batch(lo, hi, size_bytes=size_bytes), now_unix_ms=BORN)
        assert result.entry_index == len(self.model)
        self.model.append((self.leader.term, KIND_DATA, list(range(lo, hi))))
        self.next_number = hi

    @rule(
        kind=st.sampled_from([KIND_NO_OP, KIND_CONFIGURATION]),
        body=st.binary(max_size=20) | st.integers(0, 11_000).map(bytes),
    )
    def append_other(self, kind: int, body: bytes) -> None:
        self.leader.append_entry(kind, self.leader.term, body)
        self.model.append((self.leader.term, kind, body))

    @rule(max_size_bytes=st.integers(0, 20_000), steps=st.integers(1, 4))
    def ship(self, max_size_bytes: int, steps: int) -> None:
        for _ in range(steps):
            lo = self.follower.last_index + 1
            if self.first <= lo < len(self.model):
                raw = self.leader.read_range(lo, len(self.model), max_size_bytes)
                assert append_raw(self.follower, raw)[0] == lo

    @precondition(lambda self: len(self.model) > self.first)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(self.first, len(self.model) - 1))
        self.leader.truncate_from(index, commit_index=index - 1)
        if self.follower.last_index >= index:
            self.follower.truncate_from(index, commit_index=index - 1)
        del self.model[index:]

    @rule()
    def sync(self) -> None:
        assert self.leader.sync() == self.leader.max_position
        assert self.leader.durable_index == self.leader.last_index

    @rule()
    def retain(self) -> None:
        if self.leader.delete_first():
            self.first = self.leader.first_index

    @rule(garbage=st.binary(min_size=1, max_size=300), everything=st.booleans())
    def crash(self, garbage: bytes, everything: bool) -> None:
        """Reopen with garbage behind the end: what was there is there, and nothing else."""
        for name in ("leader", "follower"):
            ledger: Ledger = getattr(self, name)
            end, tail = ledger.max_position, ledger.tail
            last = ledger.files.files[-1] if ledger.files.files else None
            if last is not None and last.position <= end:
                room = last.end_position - end
                at = end - last.position
                overwrite(last, at, garbage[:room])
            ledger.close()
            ledger, report = open_ledger(
                self.root / name, None if everything else end, config=CONFIG
            )
            assert ledger.tail == tail
            assert report.rewritten_unit_count == 0
            setattr(self, name, ledger)
        self.leader.term = max([1, *(term for term, _, _ in self.model)])

    @invariant()
    def both_hold_the_model(self) -> None:
        assert (self.leader.first_index, self.leader.last_index) == (
            self.first,
            len(self.model) - 1,
        )
        _compare(self.leader, self.model)
        _compare(self.follower, self.model[: self.follower.last_index + 1])
        runs = self.leader.term_runs()
        terms = [term for term, _, _ in self.model]
        assert runs == [
            (n, terms[n])
            for n in range(self.first, len(terms))
            if n == self.first or terms[n] != terms[n - 1]
        ]
        if self.first == 0 and self.follower.last_index == self.leader.last_index:
            assert _trimmed(self.root / "leader") == _trimmed(self.root / "follower")

    def teardown(self) -> None:
        if hasattr(self, "leader"):
            for ledger in (self.leader, self.follower):
                check_whole(ledger)
                ledger.close()
        shutil.rmtree(self.root)


def _trimmed(root: Path) -> dict[str, bytes]:
    """All files but those without content: a cut may leave the first file, empty."""
    return {path: data for path, data in image(root).items() if data.strip(b"\0")}


def _compare(ledger: Ledger, model: list[Expected]) -> None:
    for index in {ledger.first_index, (ledger.first_index + len(model)) // 2, len(model) - 1}:
        if ledger.first_index <= index < len(model):
            entry = ledger.entry(index)
            term, kind, body = model[index]
            assert (entry.term, entry.kind) == (term, kind)
            assert (numbers(entry.body) if kind == KIND_DATA else entry.body) == body
    walked = [numbers(data) for _, data in ledger.record_runs(ledger.min_position, 1 << 60)]
    assert walked == [body for _, kind, body in model[ledger.first_index :] if kind == KIND_DATA]


TestTwoLedgers = TwoLedgers.TestCase
TestTwoLedgers.settings = settings(max_examples=examples(80), stateful_step_count=50)
TestTwoLedgers.pytestmark = [pytest.mark.long]  # type: ignore[attr-defined]
