"""Planted faults reach these tests, too: see tests/raft/conftest.py."""

from tests.raft.conftest import planted_fault

__all__ = ["planted_fault"]
