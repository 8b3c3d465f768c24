"""The peers that bench/peers/install builds and fetches into the cache of `deploy.cache`.

Owns the versions, which each peer's go.mod or pom.xml names, and the words for what is missing.
"""

import importlib.util
import re
import shutil
from pathlib import Path
from typing import Final, NamedTuple

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


class _Parts(NamedTuple):
    """The parts of a peer: a program or folders in the cache, and a client in Python."""

    program: str = ""
    folders: tuple[str, ...] = ()
    """Of a peer in Java."""
    module: str = ""
    package: str = ""


_PARTS: Final = {
    "etcd": _Parts("etcd"),
    "nats": _Parts("nats-server", module="nats", package="nats-py"),
    "kafka": _Parts(folders=("lib",), module="confluent_kafka", package="confluent-kafka"),
    "bookkeeper": _Parts(folders=("lib", "classes")),
    "rocketmq": _Parts(folders=("lib", "classes")),
}


def installed_version(peer: str) -> str:
    """Return the version that is installed, or would be."""
    file, pattern = _FILES[peer]
    match = re.search(pattern, (_HERE / peer / file).read_text("utf-8"), re.MULTILINE)
    assert match is not None, f"{file} of {peer} names no version"
    return match[1]


def why_missing(peer: str) -> str | None:
    """Return the reason why a part of a peer is missing; None if all are there."""
    parts, cached = _PARTS[peer], place(peer)
    if parts.folders and shutil.which("java") is None:
        return "no java in PATH; install a JDK and run bench/peers/install"
    are_there = [(cached / folder).is_dir() for folder in parts.folders]
    if parts.program:
        are_there.append((cached / parts.program).is_file())
    if not all(are_there):
        version = installed_version(peer)
        return f"no {peer} {version} in the cache; run bench/peers/install {peer}"
    if parts.module and importlib.util.find_spec(parts.module) is None:
        return f"no {parts.package}; run bench/peers/install"
    return None
