"""What the tests of this folder share: the sources of the repository, parsed once.

A hook forgets them, since pytest has no scope for a directory: they are more than a million nodes.
"""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy import repository
from tests.tidy.checks import Source

_HERE = Path(__file__).parent
_parsed: list[Source] = []


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """Forget the sources when the next test is none of this folder."""
    yield
    if (nextitem is None or _HERE not in nextitem.path.parents) and _parsed:
        _parsed.clear()
        gc.unfreeze()


@pytest.fixture(scope="module")
def all_sources() -> list[Source]:
    """Parse every Python file of the repository that people write; the first module waits for it.

    The collector would look at the nodes again and again, so they are hidden from it."""
    if not _parsed:
        gc.collect()
        gc.disable()
        try:
            for name in repository.files():
                if name.endswith(".py") and not repository.is_generated(name):
                    text = repository.text(name)
                    assert text is not None, f"{name} is not text"
                    _parsed.append(Source.parse(name, text))
            gc.freeze()
        finally:
            gc.enable()
    return list(_parsed)
