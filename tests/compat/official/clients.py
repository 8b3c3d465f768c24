"""The official clients that run while a leader is killed: versions and programs.

Owns where each version is pinned and how its program is called. There is one program for each
language, `java/`, `go/`, `python/` and `node/`, and two for classic clients, `classic/` for Java
and `classic_go/` for Go. All do the same:

    produce ENDPOINTS PREFIX COUNT   sends COUNT messages of each kind, to the topic PREFIX-KIND, in
                                     ten lanes a kind: each sends one after the other, and again
                                     until it is acknowledged. Ordered messages of a lane have its
                                     message group. Every seventh transaction is rolled back. Then
                                     it stays, to be asked about transactions.
    consume ENDPOINTS PREFIX COUNT   receives from all topics, with a simple and a push consumer for
                                     a group that is ordinary and one that is set `--orderly`; the
                                     classic ones with push consumers, concurrent and orderly;
                                     that for Java also with a broadcasting one, a lite pull
                                     consumer, and from version 5 on one that reads by pop.
    request ENDPOINTS PREFIX COUNT   the classic one for Java only: asks COUNT questions, which a
                                     consumer of the same process answers.

Each prints a line of JSON for an event (`ready`, `acked`, `received`, `failed`, `done`) and ends
when its input does.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from deploy.cache import place
from tests.compat.official.account import GROUPS
from tests.java import SHORT_LIVED

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[2]
CLASSIC_PAUSE_MS_MAX: Final = 40_000
"""Ordered sends of a classic client go to one broker name, whose route it reads every 30 s."""
PAUSE_MS_MAX: Final = 2_000
"""Of a message group while its leader dies, for a client that turns to another address itself."""
NODE_PAUSE_MS_MAX: Final = 50_000
"""The client for Node.js waits for the dead node itself: a start, and what gRPC waits to dial."""
CLASSIC_GROUPS: Final = ("push", "push-orderly")
CLASSIC_JAVA_GROUPS: Final = (*CLASSIC_GROUPS, "broadcasting", "lite")
_PARTS: Final = {
    "Java": "client-java",
    "Classic Java": "client-classic",
    "Classic Go": "client-classic-go",
    "Go": "client-go",
    "Python": "client-python",
    "Node.js": "client-node",
}


class Official(NamedTuple):
    """A client of one language in one version."""

    language: str
    version: str

    @property
    def name(self) -> str:
        return f"{self.language} {self.version}"

    @property
    def is_classic(self) -> bool:
        """Whether it speaks the remoting protocol."""
        return self.language in ("Classic Java", "Classic Go")

    @property
    def is_classic_java(self) -> bool:
        """Whether its program sends batches, traces and requests, too."""
        return self.language == "Classic Java"

    @property
    def names_brokers(self) -> bool:
        """Whether its requests name the broker that they are for; else each needs a port."""
        return self.language != "Classic Go"

    @property
    def node_settings(self) -> Mapping[str, object]:
        """The settings that nodes need to serve it."""
        return {} if self.names_brokers else {"rocketmq_listen": "127.0.0.1:0"}

    @property
    def groups(self) -> tuple[str, ...]:
        """The consumer groups of its program."""
        if not self.is_classic:
            return GROUPS
        if not self.is_classic_java:
            return CLASSIC_GROUPS
        has_pop = not self.version.startswith("4.")
        return (*CLASSIC_JAVA_GROUPS, "pop") if has_pop else CLASSIC_JAVA_GROUPS

    @property
    def ordered_groups(self) -> tuple[str, ...]:
        """Those that keep the order of a lane."""
        return ("push-orderly",) if self.is_classic else GROUPS

    @property
    def takes_addresses(self) -> bool:
        """Whether it takes several addresses of the cluster."""
        return self.language != "Node.js"

    @property
    def pause_ms_max(self) -> int:
        """How long a message group may stand still at most."""
        if self.is_classic:
            return CLASSIC_PAUSE_MS_MAX
        return PAUSE_MS_MAX if self.takes_addresses else NODE_PAUSE_MS_MAX

    @property
    def part(self) -> str:
        """Its name in deploy/cache.py."""
        return _PARTS[self.language]

    def environment(self, home: Path) -> dict[str, str]:
        """Return what its process needs beside its arguments; `home` takes its own log."""
        match self.language:
            case "Go":
                return {"rocketmq.client.logRoot": str(home), "rocketmq.client.enableSsl": "false"}
            case "Classic Go":
                return {"ROCKETMQ_GO_LOG_LEVEL": "warn"}
            case "Node.js":
                return {"NODE_PATH": str(place(self.part) / "node_modules")}
            case _:
                return {}

    def command(self, home: Path) -> list[str]:
        """Return the program without its arguments; `home` takes its own log."""
        match self.language:
            case "Java" | "Classic Java":
                at = place(self.part) / self.version
                return [
                    "java",
                    *SHORT_LIVED,
                    "-Xmx512m",
                    f"-Duser.home={home}",
                    "-cp",
                    f"{at}/classes:{at}/lib/*",
                    "ClassicClient" if self.is_classic else "OfficialClient",
                ]
            case "Go" | "Classic Go":
                return [str(place(self.part) / "client")]
            case "Python":
                python = place(self.part) / "bin" / "python"
                return [str(python), str(HERE / "python" / "client.py")]
            case _:
                return ["node", str(HERE / "node" / "client.js")]


def pinned() -> list[Official]:
    """Return the clients in the versions that the files of their package managers pin."""
    java = _text("java/pom.xml")
    classic = _text("classic/pom.xml")
    lock = json.loads((HERE / "node" / "package-lock.json").read_text("utf-8"))
    node = lock["packages"]["node_modules/rocketmq-client-nodejs"]["version"]
    return [
        Official("Java", _only(r"<client\.older>(.+)</client\.older>", java)),
        Official("Java", _only(r"<client\.newest>(.+)</client\.newest>", java)),
        Official("Go", _only(r"rocketmq-clients/golang/v5 v(\S+)", _text("go/go.mod"))),
        Official("Python", _only(r"^rocketmq-python-client==(\S+)", _text("python/pins.txt"))),
        Official("Node.js", node),
        *(
            Official("Classic Java", _only(rf"<client\.{which}>(.+)</client\.{which}>", classic))
            for which in ("older", "middle", "recent", "newest")
        ),
        Official("Classic Go", _only(r"rocketmq-client-go/v2 v(\S+)", _text("classic_go/go.mod"))),
    ]


def _text(name: str) -> str:
    return (HERE / name).read_text("utf-8")


def _only(pattern: str, text: str) -> str:
    (match,) = re.findall(pattern, text, re.MULTILINE)
    return str(match)
