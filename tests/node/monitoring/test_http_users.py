"""The HTTP port of a node with users: who reads which page, and how a refusal looks."""

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from node.users.credentials import digest_of
from quorumlog.cluster.channels import stub
from quorumlog.pb import users_pb2
from tests.node.processes import SingleNode
from tests.node.users_files import ADMIN_TOKEN, user_settings
from tests.patience import PATIENCE_S

PAGES = ("/metrics", "/status", "/events")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SingleNode]:
    root = tmp_path_factory.mktemp("users")
    with SingleNode(root / "n1", **user_settings(root)) as node:
        yield node


def answer(node: SingleNode, path: str, authorization: str) -> tuple[int, str, str]:
    """Status, body and the challenge of a page."""
    headers = {"authorization": authorization} if authorization else {}
    url = f"http://{node.node_json()['http_address']}{path}"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=PATIENCE_S
        ) as got:
            return got.status, got.read().decode(), ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers.get("www-authenticate", "")


def test_probes_are_open_and_pages_need_a_user_with_the_right(node: SingleNode) -> None:
    with node.client() as client:
        token = users_pb2.Credential(id="t", token_sha256=digest_of("qlt_bob"))
        stub(client.channel, users_pb2.DESCRIPTOR).PutUser(
            users_pb2.PutUserRequest(name="bob", add_credentials=[token]),
            metadata=[("authorization", f"Bearer {ADMIN_TOKEN}")],
            timeout=PATIENCE_S,
        )
    for page in ("/live", "/ready"):
        assert answer(node, page, "")[0] == 200
    for page in PAGES:
        assert answer(node, page, f"bearer {ADMIN_TOKEN}")[0] == 200
        shown = ("", "Bearer wrong", f"Basic {ADMIN_TOKEN}", "Bearer ", "Bearer " + "x" * 5_000)
        for authorization in shown:
            status, text, challenge = answer(node, page, authorization)
            assert (status, challenge) == (401, "Bearer"), authorization[:20]
            assert text.count("\n") == 3
            assert "pid" not in text
            assert "wrong" not in text
        status, text, _ = answer(node, page, "Bearer qlt_bob")
        assert (status, text.count("\n")) == (403, 3)
        assert "user 'bob' lacks Get on Cluster:nodes" in text
    log = node.log_path.read_text()
    assert ADMIN_TOKEN not in log
    assert "qlt_bob" not in log
