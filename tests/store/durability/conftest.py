"""The flush service with which most tests of the flush begin: no error is expected on it."""

import pytest

from store.durability.flush import FlushService
from tests.store.flush_fakes import RULES, FakeLog, never


@pytest.fixture
def log() -> FakeLog:
    return FakeLog(is_free=True)


@pytest.fixture
def service(log: FakeLog) -> FlushService:
    return FlushService(log, RULES, on_fatal=never)
