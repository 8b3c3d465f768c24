"""Files that a user names in settings, options and contexts, and what makes one unusable.

Owns the kinds of files and of PEM, and the limit of what is read. Must not know who reads them.
What is no regular file is never opened: a FIFO would hold a command up until a writer comes, and a
device has no end.
"""

import codecs
import os
import re
import stat
from typing import Final

_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
SIZE_BYTES_MAX: Final = 16 << 20
_LABEL: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----")
CERTIFICATE: Final = "CERTIFICATE"
PRIVATE_KEY: Final = "PRIVATE KEY"
"""What a PEM file has to hold: the last words of a label."""


class UserFileError(Exception):
    """A file cannot be used: what it is, as the end of a sentence about it, and what to do."""

    def __init__(self, what: str, do: str) -> None:
        super().__init__(what, do)
        self.what, self.do = what, do


def read_user_file(path: str | os.PathLike[str], size_bytes_max: int = SIZE_BYTES_MAX) -> bytes:
    """Return the content of a regular file. Raises UserFileError, also for a file that is larger;
    its cause is the OSError, if there was one."""
    try:
        kind = _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
        if kind is not None:
            raise UserFileError(f"it is {kind}, and no file", "name a file with content of its own")
        with open(path, "rb") as file:
            content = file.read(size_bytes_max + 1)
    except FileNotFoundError as error:
        do = "correct the path; a relative one counts from the working directory"
        raise UserFileError("there is no such file", do) from error
    except (OSError, ValueError) as error:  # The latter for a path with a zero byte.
        reason = getattr(error, "strerror", None) or error
        do = "check the path, its permissions and the user that reads it"
        raise UserFileError(f"it cannot be read: {reason}", do) from error
    if len(content) > size_bytes_max:
        what = f"it has more than {size_bytes_max} bytes"
        raise UserFileError(what, "check the path: another file may be meant")
    return content


def read_user_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a regular file, without a mark of UTF-8. Raises UserFileError."""
    try:
        return read_user_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"it is no text: no UTF-8 at byte {error.start}"
        raise UserFileError(what, "save it as UTF-8") from error


def read_pem(path: str | os.PathLike[str], holds: str) -> bytes:
    """Return the content of a PEM file, without a mark of UTF-8, behind which gRPC finds nothing.

    `holds` is CERTIFICATE or PRIVATE_KEY. Raises UserFileError, also for a file that is empty or
    holds something else; a file without any label is left to OpenSSL.
    """
    content = read_user_file(path).removeprefix(codecs.BOM_UTF8)
    wanted = holds.lower()
    if not content.strip():
        raise UserFileError("it is empty", f"write the {wanted} into it, as PEM")
    labels = list(dict.fromkeys(label.decode() for label in _LABEL.findall(content)))
    if labels and not any(label.endswith(holds) for label in labels):
        raise UserFileError(
            f"it holds {' and '.join(labels)}, and a {wanted} belongs here",
            f"name the file of the {wanted}; two names may be swapped",
        )
    return content


def read_keys(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the access keys of a file and their secrets, one `key secret` a line. Raises
    UserFileError."""
    secrets, what = {}, ""
    for number, line in enumerate(read_user_text(path).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            what = f"line {number} has {len(words)} words, and not a key and a secret"
            break
        if words[0] in secrets:
            what = f"line {number} has a key that an earlier line has, too"
            break
        secrets[words[0]] = words[1]
    if what or not secrets:
        do = "write one access key and its secret a line"
        raise UserFileError(what or "it holds no key", do)
    return secrets
