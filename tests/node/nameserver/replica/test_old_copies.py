"""Replicas of the name server that come back on an old copy of their directory: real processes."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.nameserver.brokers import raft_leader
from tests.node.nameserver.replicas import (
    ReplicaProcess,
    counting,
    leader_of,
    level,
    processes,
)
from tests.patience import wait_for

pytestmark = pytest.mark.long
REFUSED = {"error": "nameserver.no_quorum", "outcome": "not_applied"}
ACCEPTED = {"is_accepted": True, "reason": ""}


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[list[ReplicaProcess]]:
    with processes(tmp_path) as made:
        yield made


def try_put(replica: ReplicaProcess, key: str) -> Any:
    """One that has no time for another leader: long enough for an election that may be won."""
    return replica.put(key, timeout_ms=6_000)


def files_of(replica: ReplicaProcess) -> Path:
    return Path(replica.settings["directory"])


def copied(replica: ReplicaProcess) -> Path:
    """A copy of the directory of a replica that does not run."""
    target = files_of(replica).with_name("copy")
    shutil.copytree(files_of(replica), target)
    return target


def put_back(replica: ReplicaProcess, copy: Path) -> None:
    shutil.rmtree(files_of(replica))
    shutil.copytree(copy, files_of(replica))


def epoch_of(replica: ReplicaProcess) -> int:
    (group,) = replica.ask("snapshot")["groups"].values()
    epoch: int = group["epoch_highest"]
    return epoch


def test_an_old_copy_with_one_that_was_away_is_no_quorum(replicas: list[ReplicaProcess]) -> None:
    """Two of three lost what the third and the copied one had acked, and went on without it."""
    a, b, c = replicas
    assert a.put("k0") == ACCEPTED
    b.kill()
    copy = copied(b)
    b.start()
    level(replicas, {"k0"})
    counting(replicas)
    c.kill()
    assert a.change(raft_leader(1, 7).command()) == ACCEPTED
    assert a.put("k1") == ACCEPTED
    for replica in (a, b):
        replica.kill()
    put_back(b, copy)
    for replica in (b, c):
        replica.start()
    assert try_put(c, "k2") == REFUSED
    assert b.status()["state"] == "joining"
    assert "an old copy of what it held: it began life" in b.status()["failure"]
    a.start()
    level(replicas, {"k0", "k1"})
    counting(replicas)
    assert [epoch_of(one) for one in replicas] == [7, 7, 7]
    assert b.put("k3") == ACCEPTED
    level(replicas, {"k0", "k1", "k3"})


def test_an_old_copy_of_the_newest_life_is_found_by_who_has_more(
    replicas: list[ReplicaProcess],
) -> None:
    """While the other one is away nobody leads; when it is back, all goes on with all there was."""
    a, b, c = replicas
    assert a.put("k0") == ACCEPTED
    level(replicas, {"k0"})
    counting(replicas)
    b.signal(signal.SIGSTOP)  # A snapshot of a virtual machine: the same life.
    copy = copied(b)
    b.signal(signal.SIGCONT)
    c.kill()
    assert a.change(raft_leader(1, 9).command()) == ACCEPTED
    assert a.put("k1") == ACCEPTED
    level([a, b], {"k0", "k1"})
    b.kill()
    put_back(b, copy)
    b.start()
    wait_for("the copy to know", lambda: b.status()["state"] == "joining")
    assert try_put(a, "k2") == REFUSED
    assert a.pair_keys() == {"k0", "k1"}
    c.start()
    level(replicas, {"k0", "k1"})
    counting(replicas)
    assert b.put("k3") == ACCEPTED
    assert [epoch_of(one) for one in replicas] == [9, 9, 9]


def test_an_empty_directory_is_filled_by_two_and_counts_again(
    replicas: list[ReplicaProcess],
) -> None:
    """Two good ones go on meanwhile, and a second start while joining changes nothing."""
    assert replicas[0].put("k0") == ACCEPTED
    counting(replicas)
    leader = leader_of(replicas)
    emptied = next(one for one in replicas if one is not leader)
    emptied.kill()
    shutil.rmtree(files_of(emptied))
    assert leader.put("k1") == ACCEPTED
    for replica in replicas:
        if replica not in (leader, emptied):
            replica.signal(signal.SIGSTOP)
            stopped = replica
    emptied.start()
    wait_for("it to be told", lambda: emptied.status()["state"] == "joining")
    emptied.kill()
    emptied.start()
    wait_for("it to remember that", lambda: emptied.status()["state"] == "joining")
    assert try_put(leader, "k2") != ACCEPTED
    stopped.signal(signal.SIGCONT)
    wait_for("a quorum", lambda: try_put(leader, "k3") == ACCEPTED)
    counting(replicas)
    assert emptied.put("k4") == ACCEPTED


def test_a_kept_directory_fills_the_other_replicas(
    replicas: list[ReplicaProcess],
) -> None:
    """Operations: two of three without memory; the directory of the third one is to be kept."""
    kept, second, third = replicas
    assert kept.put("k0") == ACCEPTED
    level(replicas, {"k0"})
    for replica in (second, third):
        replica.kill()
        shutil.rmtree(files_of(replica))
    for replica in (second, third):
        replica.start()
    wait_for(
        "both to know", lambda: second.status()["state"] == third.status()["state"] == "joining"
    )
    for replica in replicas:
        replica.kill()
    for path in files_of(kept).glob("lives.*"):
        path.unlink()
    for replica in (second, third):
        shutil.rmtree(files_of(replica))
    kept.start()
    second.start()
    level([kept, second], {"k0"})
    third.start()
    counting(replicas)
    level(replicas, {"k0"})
