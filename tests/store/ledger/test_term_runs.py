"""Terms by run, against a plain list of terms."""

from hypothesis import given
from hypothesis import strategies as st

from store.ledger.term_runs import TermRuns


@given(
    start=st.integers(-1, 5),
    steps=st.lists(st.sampled_from([0, 0, 0, 1, 3]), max_size=20),
    cuts=st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=4),
)
def test_runs_say_what_a_list_says(
    start: int, steps: list[int], cuts: list[tuple[bool, int]]
) -> None:
    terms, runs = {start: 2}, TermRuns.starting_after(start, 2)
    last, term = start, 2
    for step in steps:
        last, term = last + 1, term + step
        terms[last] = term
        runs = runs.extended([(last, term)] if step else [])
    for is_suffix, amount in cuts:
        if is_suffix:
            last = max(min(terms), last - amount)
            runs = runs.cut_from(last + 1)
        else:
            first = min(last + 1, runs.first_index + amount)
            runs = runs.starting_at(first)
        terms = {n: t for n, t in terms.items() if runs.first_index - 1 <= n <= last}
    for index, expected in terms.items():
        assert runs.term_at(index) == expected
    kept = {n: t for n, t in terms.items() if n >= runs.first_index}
    assert runs.runs(last) == [(n, t) for n, t in sorted(kept.items()) if kept.get(n - 1) != t]
