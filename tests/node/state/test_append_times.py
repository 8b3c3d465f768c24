"""The stages of appends: they add up, and what is slow is reported once."""

from node.state.append_times import AppendTimes, Stages


def test_stages_add_up_and_weigh_by_the_appends_of_a_run() -> None:
    slow: list[Stages] = []
    clock = iter([5_000_000, 9_000_000, 905_000_000, 910_000_000])
    times = AppendTimes(900, slow.append, now_ns=lambda: next(clock))
    times.send(10, 3, 1_000_000)
    times.send(12, 1, 6_000_000)
    times.answer(12, 11)
    times.answer(12, 12)
    first, second = Stages(10, 3, 4_000, 900_000, 0), Stages(12, 1, 3_000, 896_000, 5_000)
    assert [times.of(place) for place in (8, 10, 11, 12, 13)] == [
        first,
        first,
        second,
        second,
        None,
    ]
    assert slow == [first, second]
    stats = times.stages()
    assert (times.slow_count, stats.answered.count) == (4, 4)
    total_us = stats.sent.total_us + stats.quorum.total_us + stats.applied.total_us
    assert total_us == stats.answered.total_us == 3 * 904_000 + 904_000


def test_what_another_leader_decides_is_not_counted() -> None:
    times = AppendTimes()
    times.send(10, 1, 0)
    times.clear()
    times.answer(10, 10)
    assert (times.stages().answered.count, times.of(10)) == (0, None)
