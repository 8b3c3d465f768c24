"""A cost is found again from points, and is never negative."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning.capacity.append_cost import BatchCost, CostPoint, fit

KINDS = ((1, 1_024), (1, 65_536), (100, 10_000), (100, 102_400), (16, 1_048_576))
seconds = st.floats(1e-6, 1e-2)


@pytest.mark.long
@given(st.tuples(seconds, st.floats(0, 1e-4), st.floats(0, 1e-7)))
def test_an_exact_cost_is_found_again(terms: tuple[float, float, float]) -> None:
    cost = BatchCost(*terms)
    points = [CostPoint(count, size, cost.seconds(count, size)) for count, size in KINDS]
    fitted = fit(points)
    for count, size in (*KINDS, (30, 30_000), (7, 200_000)):
        assert fitted.seconds(count, size) == pytest.approx(cost.seconds(count, size), rel=1e-4)


@pytest.mark.long
@given(st.lists(seconds, min_size=len(KINDS), max_size=len(KINDS)))
def test_no_term_is_negative_whatever_was_measured(measured: list[float]) -> None:
    cost = fit([CostPoint(*kind, value) for kind, value in zip(KINDS, measured, strict=True)])
    assert min(cost.batch_s, cost.message_s, cost.byte_s) >= 0
    assert cost.seconds(1, 1) > 0


@pytest.mark.parametrize("count", [1, 2])
def test_few_points_are_met_exactly(count: int) -> None:
    points = [CostPoint(1, 1_000, 1e-4), CostPoint(100, 100_000, 1e-3)][:count]
    cost = fit(points)
    for point in points:
        assert cost.seconds(point.message_count, point.size_bytes) == pytest.approx(point.seconds)


@pytest.mark.parametrize("points", [[], [CostPoint(1, 1, 0.0)]])
def test_a_cost_needs_measured_points(points: list[CostPoint]) -> None:
    with pytest.raises(ValueError, match="measured points"):
        fit(points)


def test_empty_bodies_are_not_free() -> None:
    cost = fit([CostPoint(1, 1_000, 1e-4), CostPoint(1, 2_000, 2e-4), CostPoint(1, 3_000, 3e-4)])
    assert cost.seconds(1, 0) == pytest.approx(1e-5)
    assert cost.msgs_per_s(1, 0) == pytest.approx(1e5)


def test_the_formula_has_the_numbers() -> None:
    text = BatchCost(1e-4, 2e-6, 3e-9).formula(50, 1_000)
    assert text == "100 us a batch + 50 messages x 2 us + 50,000 B x 3 ns"
