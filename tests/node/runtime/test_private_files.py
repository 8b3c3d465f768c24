"""What a node makes is for its user alone, and a secret that others can read is refused."""

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from deploy.local import LocalCluster
from node.runtime.private_files import make_private, unusable
from quorumlog.user_tokens import first_user_text
from tests.node.config.test_settings import problems, settings
from tests.node.processes import SingleNode

SECRETS = ("secret_file", "nameserver_secret_file", "users_key_file")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def open_ones(root: Path) -> dict[str, str]:
    """What others can look into below a directory, by name."""
    paths = [path for path in (root, *root.rglob("*")) if not path.is_symlink()]
    return {str(path.relative_to(root)): f"{mode(path):o}" for path in paths if mode(path) & 0o077}


@pytest.fixture(autouse=True)
def _usual_umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.long
def test_all_that_a_node_makes_is_private_also_in_an_open_directory(tmp_path: Path) -> None:
    """The log, tables, checkpoints, the file with its ports, the directory of an older build."""
    (tmp_path / "data").mkdir(mode=0o755)
    with SingleNode(tmp_path / "data") as node, node.client() as client:
        client.create_topic("orders")
        client.append("orders", b"x")
        assert open_ones(tmp_path / "data") == {}
        node.stop()
    assert open_ones(tmp_path / "data") == {}
    assert "closed the directory to others" in node.log_path.read_text()
    assert '"mode": "0755"' in node.log_path.read_text()


@pytest.mark.parametrize("groups", [1, 2])
def test_a_local_cluster_is_private_before_it_starts(tmp_path: Path, groups: int) -> None:
    LocalCluster.create(tmp_path / "new" / "c", 1, groups=groups)
    assert open_ones(tmp_path / "new") == {}


def test_a_directory_that_everybody_shares_is_named_and_left_open(tmp_path: Path) -> None:
    """A node of root that is given /tmp would close it to the whole machine."""
    tmp_path.chmod(0o1777)
    with capture_logs() as lines:
        make_private(tmp_path)
    assert mode(tmp_path) == 0o1777
    (line,) = lines
    assert (line["log_level"], line["mode"]) == ("warning", "1777")
    assert "a directory of its own" in line["do"]


def test_a_directory_that_cannot_be_closed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A volume of root with a group of its own, as Kubernetes makes it with fsGroup."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o2775)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "chmod", refuse)
    make_private(tmp_path / "data")
    assert mode(tmp_path / "data") == 0o2775


@pytest.mark.parametrize(
    ("file_mode", "uid", "is_taken"),
    [
        (0o600, 1000, True),
        (0o400, 1000, True),
        (0o640, 1000, False),
        (0o604, 1000, False),
        (0o644, 1000, False),
        (0o620, 1000, False),
        (0o400, 0, True),
        (0o440, 0, True),
        (0o640, 0, True),
        (0o644, 0, False),
        (0o660, 0, False),
    ],
)
def test_a_secret_is_taken_by_its_mode_and_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_mode: int, uid: int, is_taken: bool
) -> None:
    """A file of root may be readable by its group: so it is given to one user."""
    path = tmp_path / "secret"
    path.write_text("x" * 40)
    path.chmod(file_mode)
    there = path.stat()
    owned = os.stat_result((*there[:4], uid, *there[5:]))
    monkeypatch.setattr(Path, "stat", lambda *_args, **_more: owned)
    monkeypatch.setattr(os, "access", lambda *_: True)
    problem = unusable(path)
    assert (problem is None) is is_taken
    if problem is not None:
        assert f"mode is {file_mode:04o}" in problem[0]
        assert "chmod 600" in problem[1]


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_that_others_can_read_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "secret"
    path.write_text("5" * 64)
    more = {"nameserver_listen": "127.0.0.1:9876"} if name.startswith("nameserver") else {}
    for file_mode in (0o644, 0o606):
        path.chmod(file_mode)
        (problem,) = problems(**more, **{name: str(path)})
        assert problem.key == name
        assert f"its mode is {file_mode:04o}" in problem.what
    path.chmod(0o600)
    settings(**more, **{name: str(path)})


def test_a_first_user_that_others_can_write_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "first.json"
    path.write_text(first_user_text("admin", b"t" * 32))
    for file_mode in (0o666, 0o664):
        path.chmod(file_mode)
        (problem,) = problems(users_file=str(path))
        assert (problem.key, f"its mode is {file_mode:04o}" in problem.what) == ("users_file", True)
    path.chmod(0o644)  # A digest may be read.
    settings(users_file=str(path))


def test_a_secret_that_cannot_be_read_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    path.write_text("x" * 40)
    path.chmod(0o600)
    monkeypatch.setattr(os, "access", lambda *_: False)
    (problem,) = problems(secret_file=str(path))
    assert "cannot be read by user" in problem.what


@pytest.mark.parametrize("name", [*SECRETS, "tls_ca_file"])
def test_a_file_with_a_path_that_cannot_be_is_refused_by_name(name: str) -> None:
    """Also one in a directory that only others may enter, which tests of root cannot make."""
    more = {"nameserver_listen": "127.0.0.1:9876"} if name.startswith("nameserver") else {}
    all_problems = problems(**more, **{name: "x" * 300})
    (problem,) = (problem for problem in all_problems if "File name" in problem.what)
    assert problem.key == name
    assert "cannot be read: File name too long" in problem.what
