"""Each run of a job has a directory of its own, and removes no other."""

import tempfile
from pathlib import Path

import pytest

from deploy.jobs.job_summary import JobDirectory
from quorumlog.command_errors import CliError


def test_two_runs_have_two_directories_and_each_removes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept, other = JobDirectory.make(None), JobDirectory.make(None)
    (Path(kept.path) / "local.json").touch()
    assert other.remove_temporary() is None
    assert list(tmp_path.rglob("*")) == [Path(kept.path), Path(kept.path, "local.json")]


def test_a_named_directory_stays(tmp_path: Path) -> None:
    assert JobDirectory.make(str(tmp_path)).remove_temporary() == str(tmp_path)
    assert tmp_path.is_dir()
    assert not (tmp_path / "new").exists()
    JobDirectory.make(str(tmp_path / "new")).remove_temporary()


def test_a_directory_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CliError, match="is not empty"):
        JobDirectory.make(str(tmp_path))
