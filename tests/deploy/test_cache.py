"""The cache of other projects' programs: complete or absent, by content, one maker at a time."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import cache
from deploy.cache import CachedProgram, NotInstalledError, find, make, place


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """A cache with one part, `tool`, made of the file `pins`; returns where it was made."""
    directories: list[Path] = []

    def write(directory: Path) -> None:
        directories.append(directory)
        (directory / "program").write_text("it")

    monkeypatch.setattr(cache, "ROOT", tmp_path)
    monkeypatch.setenv("QUORUMLOG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "PARTS", {"tool": CachedProgram(("d/pins",), (), write)})
    (tmp_path / "d").mkdir()
    (tmp_path / "d/pins").write_text("1")
    return directories


def set_part(monkeypatch: pytest.MonkeyPatch, *command: str, tools: tuple[str, ...] = ()) -> None:
    """Have the part be made by a command."""

    def run(directory: Path) -> None:
        cache._run(*command, D=str(directory))

    part = CachedProgram(("d/pins",), tools, run)
    monkeypatch.setattr(cache, "PARTS", {"tool": part})


def test_a_part_is_made_once_for_each_content_of_its_pins(made: list[Path], tmp_path: Path) -> None:
    with pytest.raises(NotInstalledError, match="run tests/run --setup --all"):
        find("tool")
    assert made == []
    first = make("tool")
    assert make("tool") == first == find("tool")
    assert (first / "program").read_text() == "it"
    assert len(made) == 1
    (tmp_path / "d/pins").write_text("2")
    assert place("tool") != first
    make("tool")
    assert len(made) == 2


def test_a_part_that_fails_leaves_nothing_and_says_why(
    made: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_part(monkeypatch, "sh", "-c", 'echo half >"$D/half"; echo "ERROR: no route"; exit 7')
    assert cache.main(["tool"]) == 1
    assert [file.name for file in cache.cache_directory().iterdir()] == ["programs.lock"]
    lines = capsys.readouterr().err.splitlines()[1:]  # The first line says what was begun.
    assert lines[0] == "deploy/setup: tool could not be made"
    assert lines[1] == "  why: sh ended with 7: ERROR: no route"
    assert lines[2].startswith("  do:  ")
    assert len(lines) == 3


def test_a_missing_tool_is_said_before_anything_is_made(
    made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_part(monkeypatch, "true", tools=("no-such-tool",))
    with pytest.raises(NotInstalledError, match="made with no-such-tool"):
        make("tool")
    assert not cache.cache_directory().exists()


def test_a_relative_cache_is_refused(
    made: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUORUMLOG_CACHE", "cache")
    assert cache.main(["tool"]) == 1
    assert "QUORUMLOG_CACHE=cache is not usable" in capsys.readouterr().err
    assert made == []


def test_a_killed_maker_leaves_no_part(made: list[Path]) -> None:
    half = place("tool").with_name(place("tool").name + ".new")
    half.mkdir(parents=True)
    (half / "rest").touch()
    assert [file.name for file in make("tool").iterdir()] == ["program"]


def test_a_maker_that_waited_takes_what_the_other_made(
    made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: place("tool").mkdir())
    assert make("tool") == place("tool")
    assert made == []


def test_a_maker_has_the_lock(made: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def second(_: Path) -> None:
        lock = os.open(cache.cache_directory() / "programs.lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(lock)
        made.append(cache.cache_directory())

    monkeypatch.setattr(cache, "PARTS", {"tool": CachedProgram(("d/pins",), (), second)})
    make("tool")
    assert len(made) == 1


def test_main_takes_known_names_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert cache.main(["toxiproxi"]) == 2
    assert "toxiproxy" in capsys.readouterr().err


def test_the_pins_of_every_part_exist() -> None:
    pins = [pin for part in cache.PARTS.values() for pin in part.pins]
    files = [pin for pin in pins if pin.startswith(("tests/", "bench/"))]
    assert [pin for pin in files if not any(cache.ROOT.glob(pin))] == []


def test_help_of_the_comparison_installs_nothing(tmp_path: Path) -> None:
    """In a checkout without .venv, with a PATH on which an installer would be found and fail."""
    script = cache.ROOT / "bench/run"
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/run").write_bytes(script.read_bytes())
    command = ["bash", str(tmp_path / "bench/run"), "--quick", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "bench/run --quick" in done.stdout
    assert not (tmp_path / ".venv").exists()
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    command[-1] = "-h"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "bench.side_by_side" in done.stderr, "it has python print the help"
