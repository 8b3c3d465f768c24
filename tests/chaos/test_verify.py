"""The stores that a run leaves are checked, plain logs as ledgers: a damaged queue is found."""

from pathlib import Path

import pytest
from chaos.campaign import verify

from tests.store.fsck_stores import fsck_config, make_store

pytestmark = pytest.mark.long


@pytest.mark.parametrize("container", ["commit_log", "ledger"])
def test_a_queue_that_differs_from_its_log_is_found(tmp_path: Path, container: str) -> None:
    stores = {node: tmp_path / f"{node}" for node in (1, 2)}
    for directory in stores.values():
        make_store(directory, fsck_config(container))
    assert verify(stores) == []
    damaged = min(path for path in stores[2].glob("consumequeue/topic1/0/*") if path.is_file())
    with damaged.open("r+b") as file:
        file.write(bytes([file.read(1)[0] ^ 1]))
    (problem,) = verify(stores)
    assert problem.startswith("I18: the store of node 2: ")
    assert "consumequeue" in problem
