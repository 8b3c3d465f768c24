"""`qlog user`, `qlog role` and `qlog acl` against a node that has users on."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from qlog import main
from qlog.connection import SERVER_VARIABLE
from qlog.transport import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from quorumlog.user_tokens import TOKEN_PREFIX, digest_of
from tests.node.processes import SingleNode
from tests.node.users_files import ADMIN_TOKEN, user_settings
from tests.qlog.running import check_keys

SECRET = "secret-of-eight-or-more"


class Operator:
    """Runs `qlog` as the user of a token file. No output may have a token or a secret."""

    def __init__(self, address: str, token_file: Path) -> None:
        self.environment: dict[str, str | None] = {
            SERVER_VARIABLE: address,
            TOKEN_FILE_VARIABLE: str(token_file),
            TOKEN_VARIABLE: None,
            "COLUMNS": "80",
        }

    def __call__(self, *words: object, code: int = 0, **environment: str | None) -> Result:
        said = CliRunner().invoke(
            main, [str(word) for word in words], env=self.environment | environment
        )
        assert said.exit_code == code, (said.exit_code, said.stdout, said.stderr)
        assert TOKEN_PREFIX not in said.output
        assert SECRET not in said.output
        return said

    def json(self, *words: object, code: int = 0) -> Any:
        answer = json.loads(self(*words, "-o", "json", code=code).stdout)
        check_keys(answer, *words)
        return answer


@pytest.fixture(scope="module")
def qlog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    directory = tmp_path_factory.mktemp("users")
    with SingleNode(directory / "n", **user_settings(directory)) as node:
        path = directory / "admin.token"
        path.write_text(f"{ADMIN_TOKEN}\n")
        path.chmod(0o600)
        yield Operator(node.node_json()["address"], path)


def test_a_user_works_with_the_token_that_was_written(qlog: Operator, tmp_path: Path) -> None:
    token, secret = tmp_path / "shop.token", tmp_path / "shop.secret"
    role = "producer-consumer:shop-"
    made = qlog.json(
        *("user", "create", "shop", "--role", role, "--token-file", token, "--expires", "90d"),
        *("--access-key", "SHOP1", "--secret-file", secret, "--certificate", "CN=shop"),
    )
    assert made["roles"] == [role]
    assert [one["kind"] for one in made["credentials"]] == ["certificate", "access_key", "token"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (token, secret)} == {0o600}
    assert qlog("--token-file", token, "user", "whoami", "-o", "json").stdout.count("shop") == 2
    shown = token.read_text().strip()
    only_token: Any = {TOKEN_FILE_VARIABLE: None, TOKEN_VARIABLE: shown}
    assert '"shop"' in qlog("user", "whoami", "-o", "json", **only_token).stdout

    qlog("topic", "create", "shop-orders")
    refused = qlog("--token-file", token, "topic", "create", "shop-b", code=5).stderr
    assert "lacks Create on Topic:shop-b" in refused
    assert "qlog acl explain shop" in refused
    before = token.read_text()
    qlog("user", "create", "other", "--token-file", token, code=2)
    assert token.read_text() == before

    assert qlog.json("user", "set", "shop", "--connections", 5)["connections"] == 5
    changed = qlog.json("user", "token", "add", "shop", "--token-file", tmp_path / "2")
    assert (changed["connections"], len(changed["credentials"])) == (5, 4)
    assert (
        "no user could" in qlog("user", "token", "remove", "admin", "first", "--yes", code=5).stderr
    )
    token_id = f"token-{digest_of(shown).hex()[:8]}"
    assert "--yes" in qlog("user", "token", "remove", "shop", token_id, code=2).stderr
    qlog("user", "token", "remove", "shop", token_id, "--yes")
    assert "credential" in qlog("--token-file", token, "user", "whoami", code=5).stderr
    assert "shop" in qlog("user", "describe", "shop").stdout
    assert [row["user"] for row in qlog.json("user", "list")] == ["admin", "shop"]
    qlog("user", "delete", "shop", "--yes")
    qlog("user", "describe", "shop", code=4)


def test_a_file_that_others_can_read_is_warned_of(qlog: Operator, tmp_path: Path) -> None:
    file = tmp_path / "open"
    file.write_text(f"K {SECRET}\n")
    file.chmod(0o640)
    said = qlog("user", "import-keys", file, "--role", "reader").stderr
    assert f"warning: others can read {file}; run: chmod 600 {file}\n" in said
    file.chmod(0o600)
    assert "warning" not in qlog("user", "import-keys", file, "--role", "reader").stderr


def test_the_life_of_a_credential_has_a_range(qlog: Operator, tmp_path: Path) -> None:
    create = ("user", "create", "x", "--token-file", tmp_path / "t", "--expires")
    for life in ("0s", "9999999d"):
        assert "give 1s to 36500d" in qlog(*create, life, code=2).stderr
    said = qlog("user", "whoami", "--token-file", "f", code=2).stderr
    assert "it stands in front: qlog --token-file FILE user whoami" in said.replace("main", "qlog")


def test_a_refused_change_leaves_no_file(qlog: Operator, tmp_path: Path) -> None:
    qlog("user", "create", "x", "--role", "none", "--token-file", tmp_path / "t", code=4)
    qlog("user", "token", "add", "none", "--token-file", tmp_path / "t", code=4)
    assert not [*tmp_path.iterdir()]


def test_explain_names_the_rule_that_decides(qlog: Operator) -> None:
    allow, deny = ("--allow", "Topic:x-* Pub,Sub"), ("--deny", "Topic:x-pay Pub")
    assert len(qlog.json("role", "create", "team", *allow, *deny)["rules"]) == 2
    qlog("role", "create", "team", *allow, code=5)
    said = qlog("user", "create", "eve", "--role", "team").stdout
    assert "eve cannot log in yet" in said
    assert "qlog user token add eve" in said
    said = qlog("acl", "explain", "eve", "pub", "Topic:x-pay", code=1).stdout
    assert said == "user eve may not Pub on Topic:x-pay: DENY Topic:x-pay Pub of role team\n"
    assert qlog.json("acl", "explain", "eve", "Sub", "Topic:x-pay")["is_allowed"] is True
    for wrong in ("Topic:x Pubb", "Queue:x Pub", "Topic:x"):
        assert "Topic:" in qlog("role", "create", "y", "--allow", wrong, code=2).stderr
    group = ("acl", "explain", "eve", "Get", "Group:g")
    assert qlog(*group, code=1).stdout.endswith(": no rule of its roles allows it\n")
    dead = ("acl", "explain", "eve", "Sub", "Topic:%DLQ%x-g")
    assert "%DLQ%x-g, which counts as Sub on Group:x-g: no" in qlog(*dead, code=1).stdout
    refused = qlog("role", "create", "y", "--deny", "Topic:%DLQ%x-* Sub", code=5).stderr
    assert "use rules for Group:x-*" in " ".join(refused.split())
    qlog("user", "set", "eve", "--disable")
    assert qlog(*group, code=1).stdout.endswith(": it is disabled\n")
    assert "team" in qlog("role", "list").stdout
    qlog("role", "delete", "team", "--yes", code=5)  # A user has it.
    qlog("user", "set", "eve", "--no-roles")
    qlog("role", "delete", "team", "--yes")


def test_who_may_update_users_alone_changes_them(qlog: Operator, tmp_path: Path) -> None:
    token = tmp_path / "t"
    qlog("role", "create", "updates", "--allow", "Cluster:users Update")
    qlog("user", "create", "upd", "--role", "updates", "--token-file", token)
    own = ("--token-file", token, "user")
    qlog(*own, "list", code=5)
    qlog(*own, "set", "upd", "--role", "updates", "--role", "reader")
    qlog(*own, "token", "add", "upd", "--token-file", tmp_path / "2")
    assert "there is no user 'none'" in qlog(*own, "set", "none", "--disable", code=4).stderr


def test_old_keys_become_users_after_a_look(qlog: Operator, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"OLD1 {SECRET}\nOLD2 {SECRET}\n")
    command = ("user", "import-keys", tmp_path / "keys", "--role", "reader")
    for words, change in (((), "new"), (("--yes",), "new"), ((), "none: it is there")):
        assert {row["change"] for row in qlog.json(*command, *words)} == {change}
    assert qlog.json("user", "describe", "OLD2")["credentials"][0]["id"] == "OLD2"
    qlog("user", "key", "remove", "OLD2", "OLD2", "--yes")
    (tmp_path / "keys").write_text("NEW 1234567\n")
    for words in ((), ("--yes",)):
        (row,) = qlog.json(*command, *words)
        assert row["change"] == "none: its secret has 7 bytes of 8 or more"
    (tmp_path / "keys").write_text(f"A {SECRET}\nA {SECRET}\n")
    assert "line 2 has a key that" in qlog(*command, code=2).stderr


def test_the_first_user_has_a_file_of_its_own(tmp_path: Path) -> None:
    first, token = tmp_path / "first.json", tmp_path / "t"
    run = CliRunner().invoke
    assert run(main, ["user", "init", str(first), "--token-file", str(token)]).exit_code == 0
    held = json.loads(first.read_text())
    assert held["token_sha256"] == digest_of(token.read_text().strip()).hex()
    again = run(main, ["user", "init", str(first), "--token-file", str(tmp_path / "t2")])
    assert (again.exit_code, (tmp_path / "t2").exists()) == (2, False)
    shown = run(main, ["user", "init", str(tmp_path / "b.json"), "--name", "bob"])
    digest = digest_of(shown.stdout.strip()).hex()
    assert json.loads((tmp_path / "b.json").read_text()) == {"name": "bob", "token_sha256": digest}


def test_a_context_keeps_the_path_of_the_token(
    qlog: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    address, file = qlog.environment[SERVER_VARIABLE], qlog.environment[TOKEN_FILE_VARIABLE]
    none: Any = {SERVER_VARIABLE: None, TOKEN_FILE_VARIABLE: None}
    (tmp_path / "bad").write_text("two words")
    create = ("context", "create", "prod", "--server", address, "--token-file")
    qlog(*create, tmp_path / "bad", code=2, **none)
    qlog(*create, file, **none)
    qlog("context", "use", "prod", **none)
    assert '"admin"' in qlog("user", "whoami", "-o", "json", **none).stdout
    said = qlog("nameserver", "status", "-o", "json", code=1, **none).stdout
    assert '"state": "off"' in said, "no refusal"
