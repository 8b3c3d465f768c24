"""The empty ledger with which most tests of ledgers begin."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.ledger.ledger import Ledger
from tests.store.ledgers import new_ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = new_ledger(tmp_path)
    yield ledger
    ledger.close()
