"""The order in which held messages are due, against a sorted list."""

from hypothesis import given
from hypothesis import strategies as st

from node.broker.delay.due_index import AHEAD_MS, Due, DueIndex

NOW = 1_700_000_000_000
TIMES = st.one_of(
    st.integers(NOW - 5, NOW + 5),
    st.integers(NOW, NOW + 60_000),
    st.sampled_from([0, NOW + 259_200_000, NOW + 16_384, NOW + 16_383]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), TIMES),
        st.tuples(st.just("wait"), st.integers(-20_000, 40_000)),
        st.tuples(st.just("take"), st.integers(1, 5)),
    ),
    max_size=60,
)


@given(STEPS)
def test_due_messages_come_in_order_and_once(steps: list[tuple[str, int]]) -> None:
    index, model, now = DueIndex(), list[Due](), NOW
    for number, (what, value) in enumerate(steps):
        if what == "add":
            due = Due(value, number % 19, number)
            index.add(due)
            model.append(due)
        elif what == "wait":
            now += value
        else:
            while index.advance(now, 3):
                pass
            taken = index.take(now, value)
            expected = sorted(due for due in model if due.due_unix_ms <= now)[:value]
            assert taken == expected
            model = [due for due in model if due not in taken]
        assert index.count == len(model)
        look = index.next_look_unix_ms()
        assert (look is None) == (not model)
        if look is not None:
            assert look <= min(due.due_unix_ms for due in model)


def test_a_slot_is_brought_into_order_in_portions_and_in_time() -> None:
    index = DueIndex()
    for offset in range(1_000):
        index.add(Due(NOW + 50_000 - offset, 0, offset))
    assert not index.advance(NOW, 10)
    assert index.next_due_unix_ms() is not None
    at = index.next_look_unix_ms()
    assert at is not None
    assert NOW < at <= NOW + 50_000 - 999 - AHEAD_MS
    portions = 1
    while index.advance(at, 64):
        portions += 1
    assert 1_000 // 64 <= portions <= 1_000 // 64 + 2
    taken = index.take(NOW + 50_000, 2_000)
    assert taken == sorted(taken)
    assert len(taken) == 1_000
    assert (index.count, index.next_look_unix_ms()) == (0, None)
