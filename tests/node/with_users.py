"""A real node that has users on, and the token of its first user."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quorumlog.user_tokens import digest_of, first_user_text, new_token
from tests.node.processes import SingleNode


def user_files(directory: Path) -> tuple[dict[str, str], str]:
    """Write the file of the user `admin` and a key; return the settings and the token."""
    token = new_token()
    first, key = directory / "first.json", directory / "users.key"
    secret = directory / "node-secret"
    first.write_text(first_user_text("admin", digest_of(token)))
    key.write_text("5e" * 32)
    key.chmod(0o600)
    secret.write_text("secret of the cluster")
    secret.chmod(0o600)
    return {"secret_file": str(secret), "users_file": str(first), "users_key_file": str(key)}, token


@contextmanager
def node_with_users(directory: Path, **flags: str) -> Iterator[tuple[str, str]]:
    """Run one node with users on; yield its address and the token of the user `admin`."""
    settings, token = user_files(directory)
    with SingleNode(directory / "n", users="on", **settings, **flags) as node:
        yield node.node_json()["address"], token
