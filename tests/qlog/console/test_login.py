"""The console of a node with users: nothing without a token, and no more than its user may see."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.users.credentials import digest_of
from qlog.connection import TLS_VARIABLES
from qlog.console.login import SESSIONS_OF_A_USER_MAX
from qlog.transport import TOKEN_VARIABLE
from quorumlog import sync
from quorumlog.admin.types import NewCredential
from quorumlog.cluster.channels import stub
from quorumlog.cluster.tls import ClientTls
from quorumlog.pb import admin_pb2, users_pb2
from quorumlog.user_tokens import new_token
from tests.node.peers.certificates import tls_settings
from tests.node.processes import SingleNode
from tests.node.users_files import ADMIN_TOKEN, user_settings
from tests.patience import PATIENCE_S
from tests.qlog.console.test_pages import Browser, opened
from tests.qlog.running import started

BOB, LATE = (f"qlt_{letter * 43}" for letter in "bl")
AS_ADMIN = {"metadata": [("authorization", f"Bearer {ADMIN_TOKEN}")], "timeout": PATIENCE_S}
PAGES = (
    "/",
    "/events",
    "/topics",
    "/topics/orders",
    "/groups",
    "/nodes",
    "/nodes/1",
    "/microscope",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SingleNode]:
    root = tmp_path_factory.mktemp("users")
    pages = {"console": "full", "console_listen": "127.0.0.1:0"}
    with SingleNode(root / "n1", **pages, **user_settings(root)) as node:
        with node.client() as client:
            users = stub(client.channel, users_pb2.DESCRIPTOR)
            role = users_pb2.RoleNames(roles=["producer-consumer:shop-"])
            token = users_pb2.Credential(id="t", token_sha256=digest_of(BOB))
            late = users_pb2.Credential(id="l", token_sha256=digest_of(LATE), expires_unix_ms=1_000)
            put = users_pb2.PutUserRequest(name="bob", roles=role, add_credentials=[token, late])
            users.PutUser(put, **AS_ADMIN)
            for topic in ("orders", "shop-a"):
                client.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic=topic), **AS_ADMIN)
        yield node


@pytest.fixture
def browser(node: SingleNode) -> Browser:
    return Browser(node.node_json()["console_address"])


def log_in(
    browser: Browser,
    token: str,
    code: int = 303,
    says: str = "",
    to: str = "/topics",
    **headers: str,
) -> dict[str, str]:
    """Send the form of the login page; return the headers of later requests."""
    found = re.search(r'name="token" value="([^"]+)"', browser.get("/login"))
    assert found is not None
    form = {"token": found[1], "user_token": token, "to": to}
    text = browser.post("/login", code, form, **headers)
    assert token not in text
    assert says in text
    return {"cookie": browser.headers.get("set-cookie", "").partition(";")[0]}


def test_without_a_login_it_shows_nothing_of_the_cluster(
    node: SingleNode, browser: Browser
) -> None:
    for path in PAGES:
        text = browser.get(path, 303)
        assert browser.headers["location"].startswith("/login?to=")
        assert "orders" not in text
        browser.get(f"/stream{path}", 404 if path.startswith("/microscope") else 401)
    browser.get("/", 303, cookie="quorumlog=guessed")
    page = browser.get("/login?to=//evil.example")
    assert node.node_json()["address"] not in page
    assert "evil" not in page
    found = re.search(r'name="token" value="([^"]+)"', page)
    assert found is not None
    form = {"token": found[1], "body": "a long <text>"}
    page = browser.post("/topics/shop-a/send", 401, form)
    assert "a long &lt;text&gt;</textarea>" in page
    assert 'href="/login"' in page
    log_in(browser, "qlt_wrong", 400, "it has 9 characters, and a token 47")
    log_in(browser, new_token(), 401, "the token is unknown: no user of this cluster has it")
    log_in(browser, LATE, 401, "has ended: it was given until 1970-01-01T00:00:01+00:00")
    log_in(browser, ADMIN_TOKEN, 403, origin="http://evil.example")
    assert "set-cookie" not in browser.headers


def test_a_user_sees_what_its_roles_allow_and_the_refusals(
    node: SingleNode, browser: Browser
) -> None:
    admin = log_in(browser, ADMIN_TOKEN)
    assert browser.headers["location"] == "/topics"
    assert {"HttpOnly", "SameSite=strict"} <= set(browser.headers["set-cookie"].split("; "))
    for path in PAGES:
        browser.get(path, 200, **admin)
    assert "orders" in browser.get("/topics", 200, **admin)
    bob = log_in(browser, BOB, to="/")
    assert browser.headers["location"] == "/topics", "no page that it may not see"
    assert bob != admin
    topics = browser.get("/topics", 200, **bob)
    assert "shop-a" in topics
    assert "orders" not in topics
    assert "user &#39;bob&#39; lacks" in browser.get("/topics/orders", 403, **bob)
    for path in ("/", "/nodes"):
        refused = browser.get(path, 403, **bob)
        assert "user &#39;bob&#39; lacks Get on Cluster:nodes: no rule of its roles" in refused
        assert "<h1>Not for this user</h1>" in refused
    found = re.search(
        r'name="token" value="([^"]+)"', browser.get("/topics/shop-a/send", 200, **bob)
    )
    assert found is not None
    form = {"token": found[1], "body": "x", "key": "", "tag": ""}
    browser.post("/topics/shop-a/send", 303, form, **bob)
    browser.post("/topics/orders/send", 403, form, **bob)
    browser.post("/logout", 303, {"token": found[1]}, **bob)
    browser.get("/topics", 303, **bob)
    browser.get("/topics", 200, **admin)

    bob = log_in(browser, BOB)
    for _ in range(SESSIONS_OF_A_USER_MAX):
        log_in(browser, ADMIN_TOKEN)
    browser.get("/topics", 303, **admin)
    browser.get("/topics", 200, **bob)

    with node.client() as client:
        gone = users_pb2.DeleteUserRequest(name="bob")
        late = log_in(browser, BOB)
        stub(client.channel, users_pb2.DESCRIPTOR).DeleteUser(gone, **AS_ADMIN)
    browser.get("/topics", 303, **late)
    log = node.log_path.read_text()
    assert ADMIN_TOKEN not in log
    assert BOB not in log


def test_the_token_of_the_console_opens_no_page(
    node: SingleNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, ADMIN_TOKEN)
    command = ("console", "--port", 0, "--mode", "full")
    with opened(started(*command, server=node.node_json()["address"])) as browser:
        for path in ("/topics", "/nodes", "/topics"):
            browser.get(path, 303)


@pytest.mark.long
def test_the_certificate_of_the_console_opens_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, settings = tls_settings(tmp_path)
    own = authority.files("operator")
    tls = ClientTls(str(authority.path), str(own.certificate), str(own.key))
    for name, value in zip(TLS_VARIABLES, tls, strict=True):
        monkeypatch.setenv(name, value)
    flags = {name: "" if value is True else str(value) for name, value in settings.items()}
    with SingleNode(tmp_path / "n1", **flags | user_settings(tmp_path)) as node:
        address = node.node_json()["address"]
        credentials = tls.credentials()
        with sync.connect(address, token=ADMIN_TOKEN, credentials=credentials) as client:
            client.admin.put_user("admin", add=[NewCredential("c", certificate="CN=operator")])
        with sync.connect(address, credentials=credentials) as client:
            assert client.admin.who_am_i().name == "admin"
        with opened(started("console", "--port", 0, server=address)) as browser:
            for path in ("/topics", "/nodes", "/topics"):
                browser.get(path, 303)
            admin = log_in(browser, ADMIN_TOKEN)
            browser.get("/nodes", 200, **admin)
