"""What all tests share: hypothesis without luck in the gate; a look, after each module, at what its
tests left open; an event loop for each test that is a coroutine; evidence of failures of the long
tier; and an end of all that a killed run had started."""

import gc
import os
import tempfile
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from quorumlog.run_guard import guard_this_process
from tests.coroutines import loop, pytest_pyfunc_call
from tests.evidence import pytest_runtest_makereport
from tests.forks import FORK_SERVERS, fork_nodes, nodes_started_by_name
from tests.leaks import libraries_in_use, nothing_is_left_behind, shared_with_others
from tests.seeds import SEED_VARIABLE, examples
from tests.shared_cluster import shared_cluster, shared_nodes

__all__ = [
    "libraries_in_use",
    "loop",
    "nodes_started_by_name",
    "nothing_is_left_behind",
    "pytest_pyfunc_call",
    "pytest_runtest_makereport",
    "shared_cluster",
    "shared_nodes",
    "shared_with_others",
]

# The gate has the same examples in each run; those of the long tier follow from its seed.
for profile, is_same in (("gate", True), ("long", False)):
    settings.register_profile(
        profile,
        deadline=None,
        print_blob=True,
        max_examples=examples(100),
        derandomize=is_same,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
if SEED_VARIABLE in os.environ:
    settings.load_profile("long")
else:
    settings.load_profile("gate")
    # It draws from the constants of all modules that are imported, so that an edit anywhere would
    # change the examples, and parses them all for that.
    mock.patch.object(providers, "is_local_module_file", return_value=False).start()


def pytest_configure() -> None:
    """Let nothing that a test starts outlive the run, and no context of its user change a test."""
    own = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    os.environ.setdefault("GOENV", os.path.join(own, "go", "env"))  # Go's settings are below it.
    os.environ["XDG_CONFIG_HOME"] = os.path.join(tempfile.gettempdir(), f"ql-none-{os.getpid()}")
    guard_this_process()
    fork_nodes()


def pytest_collection() -> None:
    """Collect no garbage while modules are imported: there is none."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what was imported out of each later collection: it stays to the end."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """End the servers that nodes were forked from."""
    FORK_SERVERS.stop()
