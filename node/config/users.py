"""The files of users: the first user of a cluster, the admin of a reset, and the key that seals
secrets of access keys.

Owns their form; `qlog user init` writes the first one, and the second is a copy of such a file.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from node.users.credentials import KEY_SIZE_BYTES
from quorumlog.foreign_json import read_json
from quorumlog.pb.users_pb2 import Credential, User
from quorumlog.user_files import UserFileError, read_user_text
from quorumlog.user_tokens import fault_of_token, first_user_text

__all__ = [
    "KEY_VARIABLE",
    "RESET_FILE",
    "first_user_text",
    "read_first_user",
    "read_users_key",
    "reset_id_of",
]

KEY_VARIABLE: Final = "QUORUMLOG_USERS_KEY"
RESET_FILE: Final = "reset-admin.json"
"""In the directory of a store: the file of the user that is the admin once a majority has it."""
FIRST_USER_ROLE: Final = "admin"
FIRST_CREDENTIAL: Final = "first"
_DO: Final = "write it again with 'qlog user init FILE'"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}\Z")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")


def read_first_user(path: Path) -> User:
    """Read the file of the first user. Raises UserFileError."""
    try:
        text = read_user_text(path)
        if not fault_of_token(text.strip()):
            do = f"name the other file that 'qlog user init' wrote, or {_DO}"
            raise UserFileError("it holds a token, and no user with its digest", do)
        row: Any = read_json(text)
    except ValueError as error:
        raise UserFileError(f"it is no JSON: {error}", _DO) from error
    if not isinstance(row, dict) or row.keys() != {"name", "token_sha256"}:
        raise UserFileError("it holds something else than a name and a token_sha256", _DO)
    name, digest = row["name"], row["token_sha256"]
    if not isinstance(name, str) or _NAME.match(name) is None:
        raise UserFileError("its name is none: use 1 to 64 of letters, digits and . _ @ -", _DO)
    if not isinstance(digest, str) or _DIGEST.match(digest) is None:
        raise UserFileError("its token_sha256 has not 64 hexadecimal digits", _DO)
    token = Credential(id=FIRST_CREDENTIAL, token_sha256=bytes.fromhex(digest))
    return User(name=name, roles=[FIRST_USER_ROLE], credentials=[token], revision=1)


def reset_id_of(user: bytes) -> bytes:
    """Return what names the reset of an encoded user, 16 bytes: the same for the same file."""
    return hashlib.sha256(user).digest()[:16]


def read_users_key(path: Path | None, environment: Mapping[str, str]) -> bytes | None:
    """Return the key of a file or of the environment; None: there is none. Raises UserFileError."""
    text = environment.get(KEY_VARIABLE, "") if path is None else read_user_text(path)
    if path is None and not text.strip():
        return None
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_SIZE_BYTES:
        where = f"{KEY_VARIABLE} has" if path is None else "it holds"
        do = "write 64 random hexadecimal digits: openssl rand -hex 32"
        raise UserFileError(f"{where} no key of 64 hexadecimal digits", do)
    return key
