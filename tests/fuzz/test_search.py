"""Both searches find planted faults soon, and one that ends or stops the process, too."""

import importlib.util
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests import missing
from tests.fuzz.__main__ import main
from tests.fuzz.planted import TARGETS


def search(name: str, corpus: Path, *options: str) -> Result:
    arguments = [name, "--registry", "tests.fuzz.planted", "--corpus", str(corpus), *options]
    return CliRunner().invoke(main, arguments)


@pytest.mark.long
@pytest.mark.parametrize("is_atheris", [False, True])
@pytest.mark.parametrize(
    ("name", "text"),
    [("behind-checksum", "KeyError: 1"), ("allocation", "of memory"), ("loop", "lines")],
)
def test_a_planted_fault_is_found_and_kept(
    name: str, text: str, is_atheris: bool, tmp_path: Path
) -> None:
    if is_atheris and importlib.util.find_spec("atheris") is None:
        missing.program("atheris is not installed (the extra `fuzz`)")
    options = ("--atheris", "--count", "20000") if is_atheris else ("--count", "5000")
    done = search(name, tmp_path, *options)
    assert done.exit_code == 1, done.output
    assert text in done.output
    (path,) = tmp_path.glob(f"{name}/*.hex")
    with pytest.raises(Exception, match=text.removeprefix("KeyError: ")):
        TARGETS[name].check(bytes.fromhex(path.read_text()))


@pytest.mark.long
def test_a_right_parser_has_no_finding(tmp_path: Path) -> None:
    done = search("good", tmp_path)
    assert (done.exit_code, [*tmp_path.iterdir()]) == (0, []), done.output
    assert done.output == "good: 1000 inputs, no finding\n"


@pytest.mark.long
@pytest.mark.parametrize(("name", "first"), [("death", b"\x09"), ("silence", b"")])
def test_an_input_that_ends_or_stops_the_process_is_kept(
    name: str, first: bytes, tmp_path: Path
) -> None:
    done = search(name, tmp_path, "--count", "5000", "--silence-s", "4")
    assert done.exit_code == 1, done.output
    (path,) = tmp_path.glob(f"{name}/*.hex")
    assert bytes.fromhex(path.read_text()).startswith(first)


def test_an_unknown_target_is_refused(tmp_path: Path) -> None:
    done = search("nothing", tmp_path)
    assert done.exit_code == 2
    assert "no target nothing; see --list" in done.output
