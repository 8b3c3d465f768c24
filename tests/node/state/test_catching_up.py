"""A state that came with a snapshot while its log catches up: what it passes over it forgets."""

from pathlib import Path
from typing import Any

from node.state.machine import StateMachine
from store.derived.dispatch import DispatchedUnit
from store.store import Store
from tests.node.commands import SMALL_LIMITS, put_topic
from tests.node.state.test_machine import CONFIG, append, machine_of


def test_commands_that_a_snapshot_brought_are_not_kept_while_the_log_catches_up(
    tmp_path: Path,
) -> None:
    with Store.open(str(tmp_path), CONFIG, maintain=False) as store:
        listening = StateMachine(store.reads, SMALL_LIMITS, None)
        listening.listen(store.engine.dispatcher)
        append(store, [[put_topic("a")]] * 10)
        store.pull("orders", 0, 0)  # Dispatches all there is.
        reference = machine_of(store)
        reference.apply(0, 10)
        listening.restore(reference.snapshot(), 0)
        append(store, [[put_topic("b")]])
        store.pull("orders", 0, 0)
        for index in range(9):
            listening.apply(index, index + 1)
            assert len(listening._ahead) == 1, "ten million entries would be a gigabyte"
        listening.apply(0, 11)
        assert set(listening.state.topics) == {"a", "b"}
        ahead: Any = listening._ahead
        assert ahead == list[DispatchedUnit]()
