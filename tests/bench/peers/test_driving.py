"""A load is what was asked for: so many, so many at once, at that rate; who fails is counted."""

import asyncio
import itertools
from collections.abc import Sequence

import pytest

from bench.peers.load_driver import drive
from bench.peers.peer import PeerLoad, ProduceResult


class Sink:
    """Acks when the loop comes round again, and remembers how many were open at once."""

    def __init__(self, fail_every: int = 0) -> None:
        self.batches: list[tuple[int, int]] = []
        self.open_count = self.open_count_max = 0
        self._fail_every = fail_every

    async def send(self, bodies: Sequence[bytes], topic: int) -> None:
        self.open_count += 1
        self.open_count_max = max(self.open_count_max, self.open_count)
        await asyncio.sleep(0)
        self.open_count -= 1
        self.batches.append((len(bodies), topic))
        if self._fail_every and len(self.batches) % self._fail_every == 0:
            raise ConnectionError("refused")


def run(load: PeerLoad, sink: Sink) -> ProduceResult:
    return asyncio.run(drive(sink.send, load))


def test_a_count_is_kept_to_the_message() -> None:
    sink = Sink()
    outcome = run(PeerLoad(count=250, batch_count=100, in_flight_count=4, topic_count=2), sink)
    assert outcome.message_count == 250
    assert sorted(sink.batches) == [(50, 0), (100, 0), (100, 1)]
    assert len(outcome.took_s) == len(outcome.began_s) == 3
    assert outcome.per_second == pytest.approx(250 / outcome.seconds)


@pytest.mark.parametrize("in_flight", [1, 7])
def test_messages_in_flight_are_bounded(in_flight: int) -> None:
    sink = Sink()
    run(PeerLoad(count=100, in_flight_count=in_flight), sink)
    assert sink.open_count_max == in_flight


def test_a_rate_counts_from_when_each_should_have_begun() -> None:
    outcome = run(PeerLoad(seconds=0.0975, rate_per_s=200), Sink())
    assert outcome.message_count == 20
    began = list(outcome.began_s)
    steps = [b - a for a, b in itertools.pairwise(began)]
    assert steps == pytest.approx([0.005] * 19)


def test_an_error_ends_a_load_unless_it_is_tolerated() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        run(PeerLoad(count=10), Sink(fail_every=5))
    assert isinstance(caught.value.exceptions[0], ConnectionError)
    outcome = run(PeerLoad(count=10, tolerates_errors=True), Sink(fail_every=5))
    assert (outcome.message_count, outcome.error_count, len(outcome.took_s)) == (8, 2, 8)


def test_the_first_ack_after_a_moment_is_of_what_began_after_it() -> None:
    outcome = ProduceResult()
    for began_s, took_s in ((1.0, 5.0), (2.0, 0.5), (3.0, 1.0), (3.5, 0.2)):
        outcome.began_s.append(began_s)
        outcome.took_s.append(took_s)
    assert outcome.first_ack_after(1.5) == 2.5
    assert outcome.first_ack_after(2.5) == 3.7
    assert outcome.first_ack_after(9.0) is None
