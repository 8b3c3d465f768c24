"""docs/cli.md is what the commands say of themselves."""

from qlog.reference import page
from tests.tidy import repository


def test_the_page_is_current() -> None:
    assert repository.text("docs/cli.md") == page(), "run: python -m qlog.reference > docs/cli.md"


def test_the_page_names_every_command_with_its_usage() -> None:
    text = page()
    for name in ("inspect", "verify", "repair"):
        assert f"## qlog store {name}\n" in text
        assert f"Usage: qlog store {name} [OPTIONS] DIR" in text
    assert "Usage: qlog bench engine [OPTIONS]\n" in text
    assert max(map(len, text.splitlines())) <= 100
