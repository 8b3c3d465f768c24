"""Term runs against the plain list of terms they stand for."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raft.messages import NO_INDEX
from raft.state.log_view import UNKNOWN_TERM, LogView
from tests.raft.memory_log import runs_of
from tests.seeds import examples


class LogViewMachine(RuleBasedStateMachine):
    """The model is `base`, the term there, and a list of terms."""

    def __init__(self) -> None:
        super().__init__()
        self.view = LogView()
        self.base, self.base_term = NO_INDEX, 0
        self.terms: list[int] = []

    @property
    def last(self) -> int:
        return self.base + len(self.terms)

    @property
    def last_term(self) -> int:
        return self.terms[-1] if self.terms else self.base_term

    @rule(step=st.integers(0, 2), count=st.integers(1, 4))
    def append(self, step: int, count: int) -> None:
        term = max(1, self.last_term + step)
        self.view.append(term, count)
        self.terms += [term] * count

    @rule(steps=st.lists(st.integers(0, 1), min_size=1, max_size=6), skip=st.integers(0, 5))
    def append_runs(self, steps: list[int], skip: int) -> None:
        """The tail of a longer range, as when a follower has part of it already."""
        terms: list[int] = []
        for step in steps:
            terms.append(max(1, (terms[-1] if terms else self.last_term) + step))
        skip = min(skip, len(self.terms))
        tail = self.terms[len(self.terms) - skip :]
        whole = tail + terms
        lo = self.last + 1
        self.view.append_runs(lo, lo + len(terms), runs_of(whole, lo - skip))
        self.terms += terms

    @precondition(lambda self: self.terms)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        lo = data.draw(st.integers(self.base + 1, self.last))
        self.view.truncate_from(lo)
        del self.terms[lo - self.base - 1 :]

    @precondition(lambda self: self.terms)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(self.base + 1, self.last))
        self.view.compact_to(index)
        keep = index - self.base
        self.base_term = self.terms[keep - 1]
        self.terms = self.terms[keep:]
        self.base = index

    @rule(ahead=st.integers(0, 5), term=st.integers(0, 3))
    def reset(self, ahead: int, term: int) -> None:
        index = max(0, self.last + ahead)
        self.base, self.base_term = index, max(1, self.last_term + term)
        self.terms = []
        self.view.reset(self.base, self.base_term)

    @rule()
    def reload(self) -> None:
        self.view = LogView(
            base_index=self.view.base_index,
            base_term=self.view.base_term,
            last_index=self.view.last_index,
            runs=self.view.all_runs(),
        )

    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        lo = data.draw(st.integers(self.base + 1, self.last + 1))
        hi = data.draw(st.integers(lo, self.last + 1))
        part = self.terms[lo - self.base - 1 : hi - self.base - 1]
        assert self.view.runs_of(lo, hi) == runs_of(part, lo)
        count_max = data.draw(st.integers(1, 3))
        end = self.view.clip_runs(lo, hi, count_max=count_max)
        assert lo <= end <= hi
        assert len(self.view.runs_of(lo, end)) <= count_max
        assert end == hi or len(runs_of(self.terms[lo - self.base - 1 : end - self.base], lo)) > (
            count_max
        )
        last, hinted = self.view.hint(hi, count_max=count_max)
        assert last == min(hi, self.last)
        held = self.terms[: last - self.base]
        assert hinted == runs_of(held, self.base + 1)[-count_max:]

    @rule(data=st.data())
    def compare(self, data: st.DataObject) -> None:
        """first_conflict and agreement against another log, entry by entry."""
        lo = data.draw(st.integers(self.base + 1, self.last + 1))
        before = self.terms[lo - self.base - 2] if lo > self.base + 1 else self.base_term
        steps = data.draw(st.lists(st.integers(0, 1), max_size=8))
        other: list[int] = []
        for step in steps:
            other.append(max(1, (other[-1] if other else before) + step))
        hi = lo + len(other)
        own = self.terms[lo - self.base - 1 :]
        expected = next(
            (lo + at for at, term in enumerate(other) if at >= len(own) or own[at] != term), hi
        )
        assert self.view.first_conflict(lo, hi, runs_of(other, lo)) == expected
        agreement = self.view.agreement(hi - 1, runs_of(other, lo))
        common = min(len(own), len(other))
        newest = [lo + at for at in range(common) if own[at] == other[at]]
        assert agreement == (newest[-1] if newest else lo - 1)

    @invariant()
    def agrees_with_the_list(self) -> None:
        view = self.view
        assert (view.base_index, view.last_index) == (self.base, self.last)
        assert view.last_term == self.last_term
        assert view.term_of(self.base) == self.base_term
        assert [view.term_of(self.base + 1 + at) for at in range(len(self.terms))] == self.terms
        assert view.term_of(self.last + 1) == UNKNOWN_TERM
        if self.base > NO_INDEX:
            assert view.term_of(self.base - 1) == UNKNOWN_TERM
        assert view.all_runs() == runs_of(self.terms, self.base + 1)


TestLogView = LogViewMachine.TestCase
TestLogView.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


def test_agreement_with_an_older_entry_where_this_log_begins() -> None:
    """A follower kept an entry that was never committed where the leader has compacted."""
    view = LogView()
    view.append(3, 8)
    view.compact_to(5)
    assert view.agreement(5, ((4, 2),)) == 4
    assert view.agreement(6, ((5, 2),)) == 4
    assert view.agreement(5, ((4, 3),)) == 5


def test_agreement_is_below_all_entries_newer_than_the_hint() -> None:
    """One probe finds it, however long the run of the newer term."""
    view = LogView()
    view.append(1, 10)
    view.append(5, 90)
    assert view.agreement(80, ((50, 3),)) == 9
    assert view.agreement(80, ((5, 1), (50, 3))) == 9


@pytest.mark.parametrize(
    ("last_index", "runs"),
    [
        (1, [(0, 2), (1, 1)]),
        (1, [(0, 1), (1, 1)]),
        (1, [(1, 1)]),
        (1, []),
        (0, [(0, 1), (3, 2)]),
        (-1, [(0, 1)]),
    ],
)
def test_impossible_logs_are_refused(last_index: int, runs: list[tuple[int, int]]) -> None:
    with pytest.raises(AssertionError):
        LogView(last_index=last_index, runs=runs)


def test_a_hint_for_what_was_compacted_says_where_the_log_begins() -> None:
    view = LogView()
    view.reset(5, 2)
    view.append(3, 2)
    assert view.hint(4, count_max=8) == (5, ())
    assert view.hint(6, count_max=8) == (6, ((6, 3),))
