"""The peers that bench/peers/install builds and fetches into the cache of `deploy.cache`.

Owns the versions, which each peer's go.mod or pom.xml names, and the words for what is missing.
"""

import re
import shutil
from pathlib import Path
from typing import Final

from deploy.cache import place

_HERE: Final = Path(__file__).parent
_FILES: Final = {
    "etcd": ("go.mod", r"^require go\.etcd\.io/etcd/server/v3 v(\S+)$"),
    "nats": ("go.mod", r"^\s*github\.com/nats-io/nats-server/v2 v(\S+)"),
    **{
        name: ("pom.xml", rf"<{name}\.version>(.*)</{name}\.version>")
        for name in ("kafka", "bookkeeper", "rocketmq")
    },
}


def installed_version(peer: str) -> str:
    """Return the version that is installed, or would be."""
    file, pattern = _FILES[peer]
    found = re.search(pattern, (_HERE / peer / file).read_text("utf-8"), re.MULTILINE)
    assert found is not None, f"{file} of {peer} names no version"
    return found[1]


def why_no_program(peer: str, program: str) -> str | None:
    """Return the reason why a program built for a peer is missing; None if it is there."""
    if (place(peer) / program).is_file():
        return None
    return _not_in_the_cache(peer)


def why_no_jars(peer: str, *parts: str) -> str | None:
    """Return the reason why Java or folders of a peer are missing; None if all are there."""
    if shutil.which("java") is None:
        return "no java in PATH; install a JDK and run bench/peers/install"
    if all((place(peer) / part).is_dir() for part in parts):
        return None
    return _not_in_the_cache(peer)


def _not_in_the_cache(peer: str) -> str:
    return f"no {peer} {installed_version(peer)} in the cache; run bench/peers/install {peer}"
