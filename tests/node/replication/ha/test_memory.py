"""What a replica of a master-slave group keeps of its own lives."""

from pathlib import Path

from node.peers.lives_file import FILE_NAMES
from node.replication.ha.core.types import HaBinding, HaStanding
from node.replication.ha.memory import HaMemory
from node.replication.lives import NodeLives
from raft.lives import UNKNOWN, ToldLife, learned, memory_lost
from store.files.file_system import FileSystem
from tests.node.replication.ha.ha_logs import must_not_die, open_log


def told_at_start(root: Path, *, is_founded_now: bool = False) -> ToldLife:
    """Start a replica, and return what it says of itself."""
    with open_log(root) as log:
        assert log.is_new == is_founded_now
        lives = NodeLives(1, must_not_die)
        lives.open(FileSystem(), str(root), "c", HaMemory(log))
        if is_founded_now:
            log.save_state(log.replica._replace(standing=HaStanding.FULL))
        return lives.own()


def lose_lives(root: Path) -> None:
    for name in FILE_NAMES:
        (root / name).unlink()


def test_a_lost_file_makes_no_old_copy_of_a_disk(tmp_path: Path) -> None:
    """A pair that keeps one copy could elect nobody any more."""
    memory = learned(UNKNOWN, told_at_start(tmp_path, is_founded_now=True))
    lose_lives(tmp_path)
    for life in (2, 3):
        statement = told_at_start(tmp_path)
        assert (statement.life, memory_lost(memory, statement)) == (life, "")
        memory = learned(memory, statement)
    lose_lives(tmp_path)
    assert memory_lost(memory, told_at_start(tmp_path)) == ""


def test_a_binding_goes_with_the_life_and_an_earlier_one_has_none(tmp_path: Path) -> None:
    told_at_start(tmp_path, is_founded_now=True)
    with open_log(tmp_path) as log:
        log.save_state(log.replica._replace(bound=HaBinding(4, 2, 7)))
    with open_log(tmp_path) as log:
        assert (log.binding.life, log.replica.bound) == (1, HaBinding(4, 2, 7))
