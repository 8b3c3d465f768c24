"""Nodes with users for tests: the first user, its token, and the settings that name them."""

from pathlib import Path

from node.config.users import first_user_text
from node.users.credentials import digest_of

ADMIN_TOKEN = "qlt_" + "a" * 43


def user_settings(directory: Path, mode: str = "on") -> dict[str, str]:
    """Write the files of users into a directory; return the settings of a node with them."""
    directory.mkdir(parents=True, exist_ok=True)
    first, key = directory / "first-user.json", directory / "users.key"
    secret = directory / "node-secret"
    first.write_text(first_user_text("admin", digest_of(ADMIN_TOKEN)))
    key.write_text("5" * 64)
    key.chmod(0o600)
    secret.write_text("secret of the cluster")
    secret.chmod(0o600)
    return {
        "secret_file": str(secret),
        "users": mode,
        "users_file": str(first),
        "users_key_file": str(key),
        "nameserver_secret_file": str(secret),
    }
