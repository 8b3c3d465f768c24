"""docs/cli.md is what the commands say of themselves."""

from qlog.reference import page
from tests.tidy import repository


def test_the_page_is_current() -> None:
    assert repository.text("docs/cli.md") == page(), "run: python -m qlog.reference > docs/cli.md"
