"""`qlog user`, `qlog role` and `qlog acl` against a node that has users on."""

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from node.config.users import read_first_user
from qlog import main
from qlog.connection import SERVER_VARIABLE
from qlog.transport import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from quorumlog import sync
from quorumlog.admin.types import NewCredential
from quorumlog.local_cluster import DIRECTORY_VARIABLE, STATE_FILE, TOKEN_FILE, started_at
from quorumlog.user_files import UserFileError
from quorumlog.user_tokens import TOKEN_PREFIX, digest_of, new_token
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
        assert re.search(rf"{TOKEN_PREFIX}\w", said.output) is None
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
    assert "no rule of its roles (producer-consumer:shop-) allows it" in refused
    assert "ask an admin for a role that does, as operator or admin" in refused
    before = token.read_text()
    qlog("user", "create", "other", "--token-file", token, code=2)
    assert token.read_text() == before

    assert qlog.json("user", "set", "shop", "--connections", 5)["connections"] == 5
    changed = qlog.json("user", "token", "add", "shop", "--token-file", tmp_path / "2")
    assert (changed["connections"], len(changed["credentials"])) == (5, 4)
    refused = qlog("user", "token", "remove", "admin", "first", "--yes", code=5).stderr
    assert "no user could" in refused
    token_id = f"token-{digest_of(shown).hex()[:8]}"
    assert "--yes" in qlog("user", "token", "remove", "shop", token_id, code=2).stderr
    qlog("user", "token", "remove", "shop", token_id, "--yes")
    assert "the token is unknown" in qlog("--token-file", token, "user", "whoami", code=5).stderr
    token.write_text("secret of the cluster")
    refused = qlog("--token-file", token, "user", "whoami", code=2).stderr
    assert "it holds no token: it does not begin with qlt_" in refused
    for wrong in (shown[:30], str(token)):
        environment = only_token | {TOKEN_VARIABLE: wrong}
        said = qlog("user", "whoami", code=2, **environment).stderr
        assert "QUORUMLOG_TOKEN holds no token" in said
    assert "shop" in qlog("user", "describe", "shop").stdout
    assert [row["user"] for row in qlog.json("user", "list")] == ["admin", "shop"]
    qlog("user", "delete", "shop", "--yes")
    qlog("user", "describe", "shop", code=4)


def test_the_token_of_the_local_cluster_is_named_where_it_is_missing(
    qlog: Operator, tmp_path: Path
) -> None:
    port = int((qlog.environment[SERVER_VARIABLE] or "").rpartition(":")[2])
    node: dict[str, Any] = {"address_port": port, "peer_port": 1, "http_port": 1}
    node |= {"pid": os.getpid(), "started": started_at(os.getpid())}
    (tmp_path / STATE_FILE).write_text(json.dumps({"cluster_id": "c", "nodes": {"1": node}}))
    local: Any = {
        SERVER_VARIABLE: None,
        TOKEN_FILE_VARIABLE: None,
        DIRECTORY_VARIABLE: str(tmp_path),
    }
    assert "name the file of a token" in qlog("topic", "list", code=5, **local).stderr
    (tmp_path / TOKEN_FILE).write_text(ADMIN_TOKEN)
    said = qlog("topic", "list", code=5, **local).stderr
    assert f"be its user admin: export {TOKEN_FILE_VARIABLE}={tmp_path}/{TOKEN_FILE}\n" in said


def test_a_credential_that_has_ended_is_marked(qlog: Operator) -> None:
    with sync.connect(qlog.environment[SERVER_VARIABLE] or "", token=ADMIN_TOKEN) as client:
        ended = NewCredential("old", token=new_token(), expires_unix_ms=1)
        client.admin.put_user("late", add=[ended])
    qlog("user", "certificate", "add", "late", "CN=late")
    (row,) = (row for row in qlog.json("user", "list") if row["user"] == "late")
    assert (row["credentials"], row["ended"]) == (2, 1)
    assert qlog("user", "describe", "late").stdout.count("  ended 1970") == 1
    remove = ("user", "certificate", "remove", "late", "--yes")
    assert "it has CN=late" in qlog(*remove, "CN=x", code=4).stderr
    removed = qlog(*remove, "CN=late").stdout
    assert "no credential now that has not ended" in removed
    rated = qlog.json("user", "set", "late", "--bytes-per-second", "10MiB")
    assert rated["bytes_per_second"] == 10 << 20


def test_a_file_that_others_can_read_is_warned_of(qlog: Operator, tmp_path: Path) -> None:
    file = tmp_path / "open"
    file.write_text(f"K {SECRET}\n")
    file.chmod(0o640)
    said = qlog("user", "import-keys", file, "--role", "reader").stderr
    assert f"warning: others can read {file}; run: chmod 600 {file}" in " ".join(said.split())
    file.chmod(0o600)
    assert "warning" not in qlog("user", "import-keys", file, "--role", "reader").stderr


def test_the_life_of_a_credential_has_a_range(qlog: Operator, tmp_path: Path) -> None:
    create = ("user", "create", "x", "--token-file", tmp_path / "t", "--expires")
    for life in ("0s", "9999999d"):
        assert "give 1s to 36500d" in qlog(*create, life, code=2).stderr
    said = qlog("user", "whoami", "--token-file", "f", code=2).stderr
    assert "it stands in front: qlog --token-file FILE user whoami" in said.replace("main", "qlog")


def test_a_refused_change_leaves_no_file(qlog: Operator, tmp_path: Path) -> None:
    create = ("user", "create", "x", "--token-file", tmp_path / "t", "--role")
    qlog(*create, "none", code=4)
    assert "did you mean 'reader'?" in qlog(*create, "raeder", code=4).stderr
    qlog("user", "token", "add", "none", "--token-file", tmp_path / "t", code=4)
    assert not [*tmp_path.iterdir()]


def test_explain_names_the_rule_that_decides(qlog: Operator) -> None:
    allow, deny = ("--allow", "Topic:x-* Pub,Sub"), ("--deny", "Topic:x-pay Pub")
    made = qlog("role", "create", "team", *allow, *deny).stdout.splitlines()
    assert [" ".join(line.split()) for line in made] == [
        *("role rule", "team ALLOW Topic:x-* Pub,Sub", "DENY Topic:x-pay Pub")
    ]
    qlog("role", "create", "team", *allow, code=5)
    said = qlog("user", "create", "eve", "--role", "team").stdout
    assert "eve cannot log in yet" in said
    assert "qlog user token add eve" in said
    said = qlog("acl", "explain", "eve", "pub", "Topic:x-pay", code=1).stdout
    assert said == (
        "user eve may not Pub on Topic:x-pay: DENY Topic:x-pay Pub of role team\n"
        "an admin changes that: 'qlog user set eve --role' names all its roles\n"
    )
    assert qlog.json("acl", "explain", "eve", "Sub", "Topic:x-pay")["is_allowed"] is True
    for wrong in ("Topic:x Pubb", "Queue:x Pub", "Topic:x"):
        assert "Topic:" in qlog("role", "create", "y", "--allow", wrong, code=2).stderr
    group = ("acl", "explain", "eve", "Get", "Group:g")
    assert ": no rule of its roles (team) allows it\n" in qlog(*group, code=1).stdout
    assert "use Pub, Sub, Create" in qlog("acl", "explain", "eve", "Read", "Group:g", code=2).stderr
    audit = qlog("acl", "explain", "eve", "Get", "Topic:rmq_sys_audit", code=1).stdout
    assert "Get on Topic:rmq_sys_audit, which needs Get on Cluster:users:\nno rule" in audit
    dead = ("acl", "explain", "eve", "Sub", "Topic:%DLQ%x-g")
    assert "%DLQ%x-g, which needs Sub on Group:x-g:" in qlog(*dead, code=1).stdout
    refused = qlog("role", "create", "y", "--deny", "Topic:%DLQ%x-* Sub", code=5).stderr
    assert "use rules for Group:x-*" in " ".join(refused.split())
    qlog("user", "set", "eve", "--disable")
    assert "qlog user set eve --enable" in qlog(*group, code=1).stdout
    assert "team" in qlog("role", "list").stdout
    qlog("role", "delete", "team", "--yes", code=5)  # A user has it.
    qlog("user", "set", "eve", "--no-roles")
    qlog("role", "delete", "team", "--yes")


NAME = "a name has 1 to 64 of letters, digits and . _ @ -, the first no sign"
SPACED = "a name has 1 to 255 characters without spaces"
ACTIONS = "use Pub, Sub, Create, Update, Delete, Get, List, with commas between several"
USER, ROLE = ("user", "create", "new"), ("role", "create", "new", "--allow")
SECOND = ("user", "key", "add", "admin", "K", "--secret-file", "OTHER")


@pytest.mark.parametrize(
    ("words", "what", "why", "do"),
    [
        (("user", "create", "a b"), "'a b' is no name of a user", NAME, "use another name"),
        ((*USER, "--role", "reader:x"), "role 'reader:x' has a prefix",
         "no rule of role reader has {}, where a prefix would go", "use reader"),
        ((*USER, "--role", "producer-consumer"), "role 'producer-consumer' lacks a prefix",
         "a rule of role producer-consumer has {}, where the prefix goes",
         "use producer-consumer:PREFIX"),
        ((*USER, "--role", "producer-consumer:a*b"), "'a*b' is no prefix",
         "a prefix has 1 to 255 characters without spaces and *",
         "use the beginning of names as PREFIX"),
        ((*USER, "--certificate", "www.example"), "'www.example' names no certificate",
         "a name of a certificate begins with where it stands there, and is compared as a whole, "
         "so it has no * and no space at its ends",
         "use CN=NAME, DNS:NAME, URI:NAME or EMAIL:NAME"),
        ((*USER, "--access-key", "A B", "--secret-file", "LONG"),
         "'A B' is no access key and no name of a credential", NAME, "use another one"),
        ((*USER, "--access-key", "A", "--secret-file", "SHORT"), "the secret of 'A' has 5 bytes",
         "a secret has 8 to 255",
         "use another one, or let --secret-file name a new file, which gets one"),
        (SECOND, "user 'admin' has a credential 'K' already", "each has a name of its own",
         "use another name, or remove that one first"),
        ((*ROLE, "Topic:*x Pub"), "'Topic:*x' names no resource", SPACED,
         "use * at the end only, where it stands for all names that begin so"),
        ((*ROLE, "Cluster:foo Get"), "'Cluster:foo' is no part of a cluster",
         "the parts of a cluster are nodes, settings, values, users",
         "use one of them, as Cluster:nodes, or Cluster:* for all"),
        (("role", "create", "a b", "--allow", "Topic:x Pub"), "'a b' is no name of a role", NAME,
         "use another name"),
        (("role", "create", "new"), "role 'new' would have 0 rules", "a role has 1 to 100",
         "give it another number of rules, or a user several roles"),
        (("acl", "explain", "admin", "Get", "Cluster:foo"), "'Cluster:foo' is no part of a cluster",
         "the parts of a cluster are nodes, settings, values, users",
         "use one of them, as Cluster:nodes, or Cluster:* for all"),
        (("topic", "set", "rated", "--bytes-per-second", "9" * 15),
         "a rate of 999999999999999 a second is too high", "the highest is 1099511627776",
         "give a lower one, or 0 for no limit"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_with_the_reason_and_what_to_do(
    qlog: Operator, tmp_path: Path, words: tuple[str, ...], what: str, why: str, do: str
) -> None:
    for name, text in (("LONG", SECRET), ("OTHER", SECRET[::-1]), ("SHORT", "short")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    qlog("topic", "create", "rated", "--exist-ok")
    if words is SECOND:
        qlog(*SECOND[:-1], tmp_path / "LONG")
    files = {name: tmp_path / name for name in ("LONG", "OTHER", "SHORT")}
    said = json.loads(qlog(*(files.get(word, word) for word in words), "-o", "json", code=5).stderr)
    assert (said["what"], said["why"], said["do"]) == (what, why, do)
    assert said["code"] == "node.bad_access"


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
    with pytest.raises(UserFileError, match="it holds a token"):
        read_first_user(token)
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


def test_a_token_in_a_wrong_place_is_never_shown(qlog: Operator) -> None:
    token = new_token()
    for words in (
        ("--token-file", token, "user", "whoami"),
        ("user", "create", token),
        ("user", "key", "add", "admin", token),
        ("context", "create", "c", "--server", "h:1", "--token-file", token),
    ):
        done = qlog(*words, code=2)
        assert "a token stands in the command line" in done.stderr
        assert token not in done.stdout + done.stderr
    said = qlog("user", "whoami", code=2, **{TOKEN_FILE_VARIABLE: token}).stderr
    assert "a token is no path" in said
    assert token not in said
