"""What a server asks of a store beside its reads: where a queue stands, and which ones grew."""

from pathlib import Path

from store.store import Store
from tests.store.records import batch, small_config


def test_a_queue_has_a_range_and_an_unwritten_one_is_empty(tmp_path: Path) -> None:
    with Store.open(str(tmp_path), small_config(flush="async")) as store:
        store.append(batch(0, 3))
        assert store.queue_range("orders", 0) == (0, 3), "what was appended before is seen"
        assert store.queue_range("orders", 1) == (0, 0)


def test_queues_that_grew_are_told_once(tmp_path: Path) -> None:
    with Store.open(str(tmp_path), small_config(flush="async"), maintain=False) as store:
        store.append(batch(0, 3) + batch(3, 4, queue_id=2))
        store.maintain()
        assert store.take_grown() == {(b"orders", 0), (b"orders", 2)}
        assert store.take_grown() == set()
        store.append(batch(4, 5))
        store.maintain()
        assert store.take_grown() == {(b"orders", 0)}
