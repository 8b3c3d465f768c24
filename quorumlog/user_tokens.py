"""Bearer tokens and the file of a first user, as clients make them and nodes read them.

Owns their forms. Must not know who has a token: a node gets the digest alone.
"""

import hashlib
import json
import re
import secrets
from typing import Final

TOKEN_PREFIX: Final = "qlt_"
"""Makes a token that lies around recognisable."""
TOKEN_LENGTH_MAX: Final = 255
_RANDOM_LENGTH: Final = 43
_TOKEN: Final = re.compile(f"{TOKEN_PREFIX}[A-Za-z0-9_-]{{{_RANDOM_LENGTH}}}")
SECRET_SIZE_BYTES_MIN: Final = 8
"""Of an access key."""


def new_token() -> str:
    """Return a new bearer token with 256 random bits."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def fault_of_token(text: str) -> str:
    """Return why a text is no token, as a sentence about it that has nothing of it; empty: it is
    one."""
    if not text.startswith(TOKEN_PREFIX):
        return f"it does not begin with {TOKEN_PREFIX}"
    rest = text.removeprefix(TOKEN_PREFIX)
    if len(rest) != _RANDOM_LENGTH:
        return f"it has {len(text)} characters, and a token {len(TOKEN_PREFIX) + _RANDOM_LENGTH}"
    return "" if re.fullmatch("[A-Za-z0-9_-]+", rest) else "it has a character that no token has"


def has_token(text: str) -> bool:
    """Whether a text that should be something else, a name or a path, has a token in it."""
    return _TOKEN.search(text) is not None


def digest_of(token: str) -> bytes:
    """Return what is stored of a token. Tokens have 256 random bits, so a plain digest serves."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def first_user_text(name: str, token_sha256: bytes) -> str:
    """Return the content of the file of a first user."""
    return json.dumps({"name": name, "token_sha256": token_sha256.hex()}, indent=2) + "\n"
