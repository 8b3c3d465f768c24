"""Takes the short ways of an append away from a node, so that it goes the general ones.

Each short way has one condition, and this makes the condition false. A node without them must do
the same, byte for byte.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from node.state.machine import StateMachine
from store.ledger import raw
from store.record import stamp
from store.replicated.ledger_store import ReplicaStore


class Forgetful(dict[Any, Any]):
    """A cache that remembers nothing."""

    def __setitem__(self, key: object, value: object) -> None:
        pass


def without_short_ways(store: ReplicaStore, machine: StateMachine | None = None) -> None:
    """Let a node of a test stamp, write, dispatch and apply by the general ways only."""
    ledger = store.ledger
    ledger.recent.is_kept = False  # Dispatch, peers and commands read the log.
    ledger.recent.clear()
    ledger.has_room_at_hand = lambda size_bytes: False  # type: ignore[method-assign]
    ledger._write_one = lambda checked, lo_index: False  # type: ignore[method-assign]
    ledger.stamper._tails.known = Forgetful()
    store.engine.dispatcher._tails.known = Forgetful()
    store.engine.queues._environment.tail_files._limit = 0
    if machine is not None:
        machine._dispatcher = None  # It pulls its queue.


@contextmanager
def general_stamping() -> Iterator[None]:
    """While it is entered: no records are stamped by column, no entry is checked alone."""
    with (
        patch.object(stamp, "_UNIFORM_TRIES", 0),
        patch.object(raw, "_one_entry", lambda *args: None),
    ):
        yield
