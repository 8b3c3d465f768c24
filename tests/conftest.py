"""What all tests share: hypothesis without a clock, so that a busy machine fails no test; a look,
after each module, at what its tests left open; an event loop for each test that is a coroutine; and
an end of all that a killed run had started."""

from hypothesis import settings

from deploy.run_guard import guard_this_process
from tests.coroutines import loop, pytest_pyfunc_call
from tests.forks import FORK_SERVERS, fork_nodes, nodes_started_by_name
from tests.leaks import libraries_in_use, nothing_is_left_behind
from tests.order import pytest_collection_modifyitems

__all__ = [
    "libraries_in_use",
    "loop",
    "nodes_started_by_name",
    "nothing_is_left_behind",
    "pytest_collection_modifyitems",
    "pytest_pyfunc_call",
]

settings.register_profile("default", deadline=None, print_blob=True)
settings.load_profile("default")


def pytest_configure() -> None:
    """Let nothing that a test starts outlive the run."""
    guard_this_process()
    fork_nodes()


def pytest_unconfigure() -> None:
    """End the servers that nodes were forked from."""
    FORK_SERVERS.stop()
