"""The client's tests run over frames; those named here also over gRPC alone."""

import pytest

from quorumlog.cluster.framed import port
from tests.patience import PATIENCE_S

OVER_BOTH = (
    "produce/test_producer_faults.py",
    "produce/test_faulty_messages.py",
    "consume/test_consumer.py",
    "test_client.py",
)
"""What is lost, doubled or reordered when nodes and connections fail, reads, and their errors."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of those files twice."""
    path = metafunc.definition.path.as_posix()
    if any(path.endswith(f"tests/quorumlog/{name}") for name in OVER_BOTH):
        metafunc.fixturenames.append("_frames")
        metafunc.parametrize("_frames", [True, False], ids=["frames", "grpc"], indirect=True)


@pytest.fixture
def _frames(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.quorumlog.fake_cluster.SERVES_FRAMES", request.param)


@pytest.fixture(autouse=True)
def _frames_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls take frames however slow the machine is; where gRPC takes over, a test says so."""
    monkeypatch.setattr(port, "CONNECT_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(port, "GRACE_S", PATIENCE_S)


@pytest.fixture
def be_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is gone after a second, not after a minute."""
    for name, value in {
        "REFRESH_FIRST_MS": 20,
        "REFRESH_MS": 20,
        "ATTEMPT_MS": 100,
        "GONE_AFTER_S": 1.0,
    }.items():
        monkeypatch.setattr(f"quorumlog.cluster.broker_groups.{name}", value)
