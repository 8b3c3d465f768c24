"""The empty ledger with which most tests of ledgers begin."""

from pathlib import Path

import pytest

from store.ledger.ledger import Ledger
from tests.store.ledgers import new_ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return new_ledger(tmp_path)
