"""What all tests share: hypothesis without a clock, so that a busy machine fails no test; a look,
after each module, at what its tests left open; an event loop for each test that is a coroutine; and
an end of all that a killed run had started."""

from hypothesis import settings

from deploy.run_guard import guard_this_process
from tests.coroutines import loop, pytest_pyfunc_call
from tests.leaks import libraries_in_use, nothing_is_left_behind

__all__ = ["libraries_in_use", "loop", "nothing_is_left_behind", "pytest_pyfunc_call"]

settings.register_profile("default", deadline=None, print_blob=True)
settings.load_profile("default")


def pytest_configure() -> None:
    """Let nothing that a test starts outlive the run."""
    guard_this_process()
