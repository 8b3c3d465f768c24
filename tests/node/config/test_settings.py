"""Settings: who wins, where each came from, and that everything wrong is said at once."""

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from deploy import local_nodes
from node.config.limits import Limits
from node.config.load import ConfigError, ConfigProblem, load
from node.config.reference import EXAMPLE, page
from node.config.settings import FRAMED_PORT_DISTANCE, Settings
from node.config.types import Address, Peer
from node.config.users import KEY_VARIABLE
from store.config import StoreConfig
from tests.node.users_files import user_settings
from tests.tidy import repository

THREE = "1=a:1/b:2,2=c:3/d:4,3=e:5/f:6"
SERVERS = "127.0.0.1:8081, ns.example:8082"


def problems(
    file: Path | None = None,
    environment: dict[str, str] | None = None,
    /,
    **flags: Any,
) -> list[ConfigProblem]:
    """What is wrong; a node number and a directory are given unless the test gives others."""
    with pytest.raises(ConfigError) as caught:
        load(file, {"node_id": "1", "directory": "d", **flags}, environment or {})
    return list(caught.value.problems)


def settings(**flags: Any) -> Settings:
    """Good settings."""
    return load(None, {"node_id": "1", "directory": "d", **flags}, {}).settings


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('node_id = 1\ndirectory = "d"\nlog_level = "error"\nflush = "async"\n')
    environment = {"QUORUMLOG_FLUSH": "sync", "QUORUMLOG_LOG_LEVEL": "warning"}
    loaded = load(file, {"log_level": "debug", "broker_group": None}, environment)
    assert (loaded.settings.log_level, loaded.settings.flush) == ("debug", "sync")
    origins = {
        name: loaded.origins[name] for name in ("node_id", "log_level", "flush", "broker_group")
    }
    assert origins == {
        "node_id": f"{file}:1",
        "log_level": "flag --log-level",
        "flush": "environment QUORUMLOG_FLUSH",
        "broker_group": "default",
    }
    assert set(loaded.origins) == set(Settings.model_fields)


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('node_id = 7\ndirectory = "d"\n')
    assert load(None, {}, {"QUORUMLOG_CONFIG": str(file)}).settings.node_id == 7


TEXTS = {
    "node_id": "1",
    "directory": "d",
    "peers": THREE,
    "bootstrap": "1, 2",
    "listen": "127.0.0.1:1",
    "advertise": "[::1]:2",
    "peer_listen": "127.0.0.1:3",
    "http_listen": "off",
    "nameserver_listen": "127.0.0.1:4",
    "nameserver_members": "127.0.0.1:4, 127.0.0.1:5",
    "flush": "async",
    "file_size_bytes": "64MiB",
    "retention_ms": "1.5h",
    "warm_up": "false",
    "disk_full_ratio": "0.5",
}


def test_the_old_name_of_the_broker_group_is_refused_with_its_new_one(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('group = "g1"\n')
    (problem,) = problems(file)
    assert (problem.key, problem.suggestion) == ("group", "did you mean broker_group?")


@pytest.mark.parametrize("written", [str.upper, str.lower])
def test_a_variable_is_read_as_a_flag_is(written: Callable[[str], str]) -> None:
    environment = {written(f"quorumlog_{name}"): text for name, text in TEXTS.items()}
    environment[written("quorumlog_log_level")] = ""
    loaded = load(None, {}, environment)
    assert loaded.settings == load(None, TEXTS, {}).settings
    assert {name for name, origin in loaded.origins.items() if origin != "default"} == set(TEXTS)


@pytest.mark.parametrize("name", ["listen", "advertise", "peer_listen", "http_listen"])
def test_a_wrong_address_in_a_variable_is_a_wrong_setting(name: str) -> None:
    (problem,) = problems(None, {f"QUORUMLOG_{name.upper()}": "nowhere"})
    assert (problem.key, problem.value) == (name, "nowhere")
    assert problem.origin == f"environment QUORUMLOG_{name.upper()}"


def test_a_secret_in_a_variable_is_no_setting_and_is_never_shown() -> None:
    secrets = dict.fromkeys(("QUORUMLOG_TOKEN", "QUORUMLOG_TOKEN_FILE", KEY_VARIABLE), "5" * 64)
    with pytest.raises(ConfigError) as caught:
        load(None, {"node_id": "1", "directory": "d"}, secrets | {"QUORUMLOG_TOKN": "qlt_abc"})
    assert [problem.key for problem in caught.value.problems] == ["QUORUMLOG_TOKN"]
    assert "qlt_abc" not in str(caught.value)


def test_a_wrong_variable_hides_no_conflict_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORUMLOG_FLUSH", "snyc")
    with pytest.raises(ConfigError) as caught:
        load(None, {"node_id": "1", "directory": "d", "heartbeat_ms": "2s"})
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["flush", "heartbeat_ms + election_min_ms"]


def test_everything_wrong_is_said_at_once_with_its_place_and_a_suggestion(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    lines = [
        "node_id = 1",
        'directory = "d"',
        'flsh = "sync"',
        'flush = "snyc"',
        'file_size_bytes = "64MB"',
        'heartbeat_ms = "2s"',
        "[peers.1]",
        'addres = "127.0.0.1:1"',
        'peer_address = "x"',
    ]
    file.write_text("\n".join(lines))
    environment = {"QUORUMLOG_NODEID": "3", "QUORUMLOG_WARM_UP": "maybe"}
    with pytest.raises(ConfigError) as caught:
        load(file, {"log_level": "inf"}, environment)
    by_key = {problem.key: problem for problem in caught.value.problems}
    assert {key: (p.origin, p.suggestion) for key, p in by_key.items()} == {
        "QUORUMLOG_NODEID": ("environment", "did you mean QUORUMLOG_NODE_ID?"),
        "flsh": (f"{file}:3", "did you mean flush?"),
        "flush": (f"{file}:4", "did you mean sync?"),
        "file_size_bytes": (f"{file}:5", "use a number, or one with a unit, for example 64MiB"),
        "heartbeat_ms + election_min_ms": (
            f"{file}:6, default",
            "use election_min_ms = 6000 or more",
        ),
        "peers.1.address": (f"{file}:7", "add it"),
        "peers.1.addres": (f"{file}:8", "did you mean address?"),
        "peers.1.peer_address": (
            f"{file}:9",
            "use host:port, for example 127.0.0.1:8081 or [::1]:8081",
        ),
        "warm_up": ("environment QUORUMLOG_WARM_UP", "use true or false"),
        "log_level": ("flag --log-level", "did you mean info?"),
    }
    assert str(caught.value).splitlines()[0] == "10 settings are wrong"


@pytest.mark.parametrize(
    ("flags", "key", "suggestion"),
    [
        ({"node_id": "0"}, "node_id", "see docs/configuration.md"),
        ({"node_id": "one"}, "node_id", "see docs/configuration.md"),
        ({"cluster_id": "a b"}, "cluster_id", "use 1 to 64 of"),
        ({"listen": "8081"}, "listen", "use host:port"),
        ({"listen": "a:99999"}, "listen", "use host:port"),
        ({"peers": "1=a:1"}, "peers", "use ID=PEER_HOST:PORT/CLIENT_HOST:PORT"),
        ({"peers": "2=a:1/b:2"}, "peers + node_id", "add [peers.1]"),
        ({"peers": "1=a:1/a:1"}, "peers.1.peer_address", "give each its own"),
        ({"peers": "1=0.0.0.0:1/a:2"}, "peers.1.peer_address", "name the host"),
        ({"peers": THREE, "bootstrap": "1,4"}, "bootstrap + peers", "add [peers.4]"),
        ({"peers": THREE, "preferred_leader": "9"}, "preferred_leader + peers", "name one"),
        ({"peers": THREE, "bootstrap": "1", "join": True}, "join + bootstrap", "remove one"),
        ({"listen": "0.0.0.0:8081"}, "listen + advertise", "set advertise"),
        ({"advertise": "0.0.0.0:8081"}, "advertise", "name a host"),
        ({"http_listen": "127.0.0.1:8081"}, "http_listen + listen", "its own port"),
        ({"http_listen": "127.0.0.1:9081"}, "listen_framed + http_listen", "its own port"),
        ({"listen_framed": "8081"}, "listen_framed", "use host:port"),
        ({"advertise_framed": "0.0.0.0:9081"}, "advertise_framed", "name a host"),
        ({"file_size_bytes": "9000001"}, "file_size_bytes", "use 9003008"),
        ({"file_size_bytes": "4MiB"}, "file_size_bytes + batch_size_bytes_max", "= 2097152"),
        (
            {"in_flight_size_bytes_max": "1MiB"},
            "in_flight_size_bytes_max + batch_size_bytes_max",
            "8388608",
        ),
        (
            {"retention_size_bytes": "1MiB"},
            "retention_size_bytes + file_size_bytes",
            "= 2147483648",
        ),
        ({"heartbeat_ms": "80"}, "heartbeat_ms", "see docs/configuration.md"),
        ({"disk_full_ratio": "1.5"}, "disk_full_ratio", "see docs/configuration.md"),
        ({"tls_certificate_file": __file__}, "tls_certificate_file + tls_key_file", "set both or"),
        ({"tls_ca_file": __file__}, "tls_ca_file + tls_client_auth", "set tls_certificate_file"),
        ({"secret_file": "no/such"}, "secret_file", "correct the path"),
        ({"retention_ms": "3 weeks"}, "retention_ms", "use a number, or one with a unit"),
        ({"retention_ms": "9" * 400 + ".5 d"}, "retention_ms", "use a smaller number"),
        ({"retention_ms": "9" * 5_000}, "retention_ms", "use a smaller number"),
        ({"copies": "9" * 5_000}, "copies", "use a smaller number"),
        ({"nameserver_listen": "10.0.0.1:9876"}, "nameserver_members", "set a password"),
        ({"nameserver_listen": "0.0.0.0:9876"}, "nameserver_members", "name one address"),
        ({"nameserver_listen": "ns.example:9876"}, "nameserver_members", "write an IP address"),
        ({"nameserver_listen": "127.0.0.1:0"}, "nameserver_members", "write an IP address"),
        (
            {"nameserver_listen": "127.0.0.1:1", "nameserver_members": "127.0.0.1:2"},
            "nameserver_members",
            "add this replica, 127.0.0.1:1",
        ),
        (
            {"nameserver_members": "127.0.0.1:2"},
            "nameserver_members + nameserver_listen",
            "set nameserver_listen",
        ),
        (
            {"nameserver_listen": "127.0.0.1:1", "nameserver_secret_file": "/none"},
            "nameserver_secret_file",
            "correct the path",
        ),
        ({"nameserver_listen": "127.0.0.1:8081"}, "nameserver_listen + listen", "its own port"),
        (
            {"nameserver_servers": SERVERS, "nameserver_listen": "127.0.0.1:9876"},
            "nameserver_servers + nameserver_listen",
            "remove one",
        ),
    ],
)
def test_a_wrong_setting(flags: dict[str, Any], key: str, suggestion: str) -> None:
    mistakes = problems(**flags)
    assert [problem.key for problem in mistakes] == [key]
    assert suggestion in mistakes[0].suggestion
    assert mistakes[0].what


def test_required_settings_are_named_with_the_ways_to_set_them() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {}, {})
    assert [problem.key for problem in caught.value.problems] == ["node_id", "directory"]
    assert "--node-id or QUORUMLOG_NODE_ID" in caught.value.problems[0].suggestion


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (None, "there is no such file"),
        ("node_id = \n", "line 1"),
        ("a = 1\na = 2\n", "line 2"),
        ("a = " + "9" * 5_000, "4,300 digits"),
        ("a = " + "[" * 5_000, "nested"),
    ],
)
def test_an_unreadable_file(tmp_path: Path, text: str | None, what: str) -> None:
    file = tmp_path / "node.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, {}, {})
    mistakes = caught.value.problems
    assert [problem.origin for problem in mistakes] == [str(file)]
    assert what in mistakes[0].what


def test_a_setting_below_a_table_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    peers = "".join(f"[peers.{n}]\naddress='a:{n}'\npeer_address='b:{n}'\n" for n in (1, 2, 3))
    file.write_text(f"node_id = 1\ndirectory = 'd'\n{peers}tls_ca_file = 'ca.pem'\n")
    (problem,) = problems(file)
    assert (problem.key, problem.origin) == ("peers.3.tls_ca_file", f"{file}:12")
    found = (problem.what, problem.suggestion)
    assert found == ("it stands under [peers.3]", "move it above the first table")


@pytest.mark.parametrize("kind", ["FIFO", "/dev/zero"])
def test_what_is_no_regular_file_is_not_read(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "node.toml"
    if kind == "FIFO":
        os.mkfifo(file)
    else:
        file.symlink_to(kind)
    assert "and no file" in problems(file)[0].what


def test_a_file_that_cannot_even_be_looked_at() -> None:
    (problem,) = problems(Path("x" * 300))
    assert "File name too long" in problem.what
    assert "check the path" in problem.suggestion


def test_variables_of_others_are_not_refused() -> None:
    environment = {
        "QUORUMLOG_FAILPOINTS": "",
        "QUORUMLOG_SERVER": "x",
        "QUORUMLOG_TRANSPORT": "grpc",
        "QUORUMLOG_LOCAL_DIR": "x",
        "QUORUMLOG_CACHE": "x",
        "QUORUMLOG_CLIENT_ID": "x",
        "QUORUMLOG_TEST_SEED": "3",
        "HOME": "h",
    }
    assert load(None, {"node_id": 1, "directory": "d"}, environment).settings.node_id == 1


def test_a_secret_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("  123456789012345\n")
    file.chmod(0o600)
    mistakes = problems(secret_file=str(file))
    assert [(p.key, p.what) for p in mistakes] == [
        ("secret_file", "the secret has 15 bytes, 16 are needed")
    ]
    assert "123456" not in str(mistakes)
    file.write_text("1234567890123456\n")
    assert settings(secret_file=str(file)).secret() == b"1234567890123456"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (
            b"\n  1234567890123456 \r\n\nsixteen letters.\n",
            [b"1234567890123456", b"sixteen letters."],
        ),
        (bytes(range(128, 160)) + b"\n" + bytes(16), [bytes(range(128, 160)) + b"\n" + bytes(16)]),
        (b"1234567890123456\nshort\n", "the secret has 5 bytes, 16 are needed"),
        (b"1234567890123456\n" * 3, "the file has 3 lines with secrets, 2 are allowed"),
    ],
)
def test_a_secret_file_may_hold_the_next_secret_too(
    tmp_path: Path, content: bytes, found: list[bytes] | str
) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    file.chmod(0o600)
    if isinstance(found, str):
        assert [p.what for p in problems(secret_file=str(file))] == [found]
    else:
        assert list(settings(secret_file=str(file)).secrets()) == found


def test_units_and_texts() -> None:
    configuration = settings(
        peers=THREE, bootstrap="1, 2", file_size_bytes="64MiB", retention_ms="1.5h", warm_up="false"
    )
    assert configuration.peers[2] == Peer(address=Address("d", 4), peer_address=Address("c", 3))
    assert (configuration.voters, configuration.file_size_bytes) == ((1, 2), 64 << 20)
    assert (configuration.retention_ms, configuration.warm_up) == (5_400_000, False)
    assert settings(http_listen="off").http_listen is None
    assert settings(listen_framed="off").framed_listen is None
    assert settings(listen="[::1]:0").listen == Address("::1", 0)
    assert str(Address("::1", 5)) == "[::1]:5"


def test_voters_of_a_new_cluster_are_its_peers() -> None:
    assert settings().voters == (1,)
    assert settings(peers=THREE).voters == (1, 2, 3)
    assert settings(peers="2=c:3/d:4", join=True).voters == ()


def test_the_advertised_address_is_a_dialable_one() -> None:
    assert settings(listen="127.0.0.1:0").advertised(4711) == Address("127.0.0.1", 4711)
    assert settings(peers=THREE, listen="0.0.0.0:8081").advertised(8081) == Address("b", 2)
    assert settings(peers=THREE, advertise="x:9").advertised(8081) == Address("x", 9)


@pytest.mark.parametrize(
    ("flags", "listen", "advertised"),
    [
        ({}, "127.0.0.1:9081", ":5"),
        ({"listen": "0.0.0.0:8082", "advertise": "a:1"}, "0.0.0.0:9082", ":5"),
        ({"listen": "127.0.0.1:0"}, "127.0.0.1:0", ":5"),
        ({"listen": "127.0.0.1:64535"}, "127.0.0.1:65535", ":5"),
        ({"listen": "127.0.0.1:64536"}, "127.0.0.1:0", ":5"),
        ({"listen_framed": "auto"}, "127.0.0.1:9081", ":5"),
        ({"listen_framed": "0.0.0.0:7"}, "0.0.0.0:7", ":5"),
        ({"listen_framed": "[::1]:7"}, "[::1]:7", "[::1]:5"),
        ({"advertise_framed": "b:1"}, "127.0.0.1:9081", "b:1"),
        ({"advertise_framed": "b:0"}, "127.0.0.1:9081", "b:5"),
    ],
)
def test_the_framed_port_follows_the_client_port(
    flags: dict[str, Any], listen: str, advertised: str
) -> None:
    assert str(settings(**flags).framed_listen) == listen
    assert settings(**flags).framed_advertised(5) == advertised


def test_a_local_cluster_knows_the_default_of_nodes() -> None:
    assert local_nodes.FRAMED_PORT_DISTANCE == FRAMED_PORT_DISTANCE


@pytest.mark.parametrize("file_size", ["8MiB", "64MiB", "1GiB"])
def test_the_configurations_that_follow_are_accepted_by_their_owners(file_size: str) -> None:
    configuration = settings(
        file_size_bytes=file_size, disk_full_ratio="0.5", retention_ms="0", election_min_ms="1s"
    )
    store, raft = configuration.store_config(), configuration.raft_config()
    assert (store.container, store.disk_warn_ratio) == ("ledger", 0.5)
    assert not store.delete_when_full, "nobody asked for it"
    assert settings(delete_when_full=True).store_config().delete_when_full
    assert store.ledger_index_units_per_file * 1024 == store.file_size_bytes
    assert (raft.election_ticks_min, raft.election_ticks_max, raft.heartbeat_ticks) == (40, 80, 3)
    assert raft.group == "quorumlog/g0"


def test_settings_handed_on_have_the_defaults_of_their_owner() -> None:
    node, store, limits = settings(), StoreConfig(), Limits()
    names = {field.name for field in fields(store)} & Settings.model_fields.keys()
    assert names >= {"retention_ms", "flush", "file_size_bytes", "disk_full_ratio"}
    for name in names:
        default = getattr(store, name)
        assert (getattr(node, name), getattr(node.store_config(), name)) == (default, default), name
    assert node.in_flight_size_bytes_max == limits.in_flight_size_bytes_max
    assert node.delay_ms_max == limits.delay_ms_max


def test_no_limit_by_age_is_0_in_the_store_as_in_the_settings() -> None:
    assert settings(retention_ms="0").store_config().retention_ms == 0
    assert settings(retention_ms="1h").store_config().retention_ms == 3_600_000


def test_the_smallest_file_and_batch_are_accepted() -> None:
    small = settings(
        file_size_bytes="64KiB", batch_size_bytes_max="4KiB", in_flight_size_bytes_max="64KiB"
    )
    assert small.store_config().ledger_index_units_per_file == 128


def test_the_page_is_current_and_names_every_setting() -> None:
    assert repository.text("docs/configuration.md") == page(), (
        "run: python -m node.config.reference > docs/configuration.md"
    )
    assert all(f"| `{name}` |" in page() for name in Settings.model_fields)


def test_the_example_of_the_page_is_good(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)
    file.write_text(EXAMPLE.replace("/etc/quorumlog/secret", str(secret)))
    assert load(file, {}, {}).settings.voters == (1, 2, 3)


# --- The name server ---


def test_the_name_server_is_off_unless_it_listens() -> None:
    assert settings().nameserver() is None
    name_server = settings(nameserver_listen="127.0.0.1:9876").nameserver()
    assert name_server is not None
    assert (name_server.address, name_server.members) == ("127.0.0.1:9876", ("127.0.0.1:9876",))
    assert (name_server.directory, name_server.password) == ("d/nameserver", None)


def test_the_password_of_the_name_server_is_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef0123456789abcdef\n")
    file.chmod(0o600)
    members = "10.0.0.1:9876, 10.0.0.2:9876"
    name_server = settings(
        nameserver_listen="10.0.0.1:9876",
        nameserver_members=members,
        nameserver_secret_file=str(file),
    ).nameserver()
    assert name_server is not None
    assert name_server.members == ("10.0.0.1:9876", "10.0.0.2:9876")
    assert name_server.password == "0123456789abcdef0123456789abcdef"


def test_a_replica_of_the_name_server_needs_its_secret_once_users_are_on(tmp_path: Path) -> None:
    given = {"node_id": "1", "directory": "d", "nameserver_listen": "127.0.0.1:1"}
    users = user_settings(tmp_path)
    load(None, given | users, {})
    del users["nameserver_secret_file"]
    (problem,) = problems(**given, **users)
    assert problem.key == "nameserver_secret_file + users"
    load(None, given | users | {"users": "prepare"}, {})


def test_a_node_asks_others_for_names() -> None:
    addresses = settings(nameserver_servers=SERVERS, listen="127.0.0.1:8083").nameserver_servers
    assert addresses == (Address("127.0.0.1", 8081), Address("ns.example", 8082))


def test_a_setting_that_is_gone_is_refused_with_what_to_do() -> None:
    variable = "QUORUMLOG_ROCKETMQ_KEYS_FILE"
    flag, of_environment = problems(None, {variable: "k"}, rocketmq_keys_file="k")[::-1]
    assert (flag.key, of_environment.key) == ("rocketmq_keys_file", variable)
    for problem in (flag, of_environment):
        assert "qlog user import-keys FILE" in problem.suggestion
