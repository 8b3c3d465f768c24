"""`qlog context`: which cluster commands use, and that it is nothing but what was saved."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from qlog import main
from qlog.connection import (
    CA_VARIABLE,
    CERTIFICATE_VARIABLE,
    KEY_VARIABLE,
    SERVER_VARIABLE,
    addresses,
)
from qlog.server.authority import Authority
from tests.node.processes import SingleNode


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of settings; no variable names a cluster."""
    for name in (SERVER_VARIABLE, CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "quorumlog"


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words], prog_name="qlog")
    assert result.exit_code == code, (result.stdout, result.stderr)
    return result


def in_use() -> list[str]:
    rows = json.loads(run("context", "list", "-o", "json").stdout)
    return [row["context"] for row in rows if row["is_current"]]


def test_commands_use_the_servers_and_the_files_of_a_context(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Authority(tmp_path).files("node")
    flags = {f"tls_{name}_file": str(file) for name, file in own._asdict().items()}
    files = [word for name, file in own._asdict().items() for word in (f"--tls-{name}", file)]
    with SingleNode(tmp_path / "n", **flags, tls_client_auth="") as node:
        at = node.node_json()["address"]
        run("context", "create", "prod", "--server", at, *files)
        assert (home / "contexts.json").stat().st_mode & 0o777 == 0o600
        run("context", "use", "prod")
        assert run("context", "list").stdout.splitlines()[2].startswith("*  prod     127.0.0.1:")
        monkeypatch.chdir("/")
        run("topic", "create", "orders")
        assert "orders" in run("topic", "list").stdout
        # The files belong to the servers of the context: others do not get them.
        assert "speaks TLS" in run("topic", "list", "--server", at, code=3).stderr
        monkeypatch.setenv(CA_VARIABLE, str(own.ca))
        assert "certificate" in run("topic", "list", code=3).stderr, "variables go first"


def test_a_context_is_chosen_by_name_and_taken_out(home: Path) -> None:
    run("context", "create", "one", "--server", "127.0.0.1:1")
    assert in_use() == ["default"]
    run("context", "use", "one")
    assert addresses(None) == "127.0.0.1:1"
    assert "did you mean 'one'?" in run("context", "use", "on", code=4).stderr
    assert "there is a context 'one'" in run("context", "create", "one", "-s", "a:1", code=3).stderr
    assert "the local cluster" in run("context", "create", "default", "-s", "a:1", code=2).stderr
    run("context", "use", "default")
    run("context", "use", "one")
    run("context", "delete", "one")
    assert in_use() == ["default"]
    (home / "contexts.json").write_text("[]")
    assert f"{home / 'contexts.json'} has no contexts" in run("topic", "list", code=3).stderr
