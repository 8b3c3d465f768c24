"""What the tests of this folder share: the sources of the repository, parsed once."""

import gc
from collections.abc import Iterator

import pytest

from tests.tidy import repository
from tests.tidy.checks import Source


@pytest.fixture(scope="package")
def all_sources() -> Iterator[list[Source]]:
    """Parse every Python file of the repository that people write, and keep them for the folder.

    There are more than a million nodes, which the collector would look at again and again."""
    gc.collect()
    gc.disable()
    try:
        sources = [
            _parsed(name)
            for name in repository.files()
            if name.endswith(".py") and not repository.is_generated(name)
        ]
        gc.freeze()
    finally:
        gc.enable()
    yield sources
    sources.clear()
    gc.unfreeze()


def _parsed(name: str) -> Source:
    text = repository.text(name)
    assert text is not None, f"{name} is not text"
    return Source.parse(name, text)
