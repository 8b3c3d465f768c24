"""Planted faults reach these tests, too: see tests/raft/conftest.py. Coroutines run as nodes do."""

import pytest

from tests.raft.conftest import planted_fault

__all__ = ["planted_fault"]


@pytest.fixture(autouse=True)
def loop() -> str:
    """Name the loop that coroutines run on, unless a parameter does."""
    return "uvloop"
