"""The features of the repository: which files are of which, so that size is counted by feature.

A file belongs to the feature with the longest matching path. Features of a user are the product;
those that only developers need are tools. Documents and data count apart, wherever they lie; all
other files count as programs, whatever their names end with.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple


class Size(NamedTuple):
    """Lines of programs; of documents or data, all are `code`."""

    code: int
    tests: int


PRODUCT: Final[dict[str, str]] = {
    "store: ledger, queues, keys, durability, retention": "store tests/store",
    "store: mending, scrub, restore": """store/ledger/mending store/maintenance node/offline
        tests/store/ledger/mending tests/store/maintenance tests/node/offline""",
    "store: check and repair without a server": "store/fsck tests/store/fsck",
    "store: microscope": "store/microscope tests/store/microscope",
    "Raft core": "raft tests/raft",
    "Raft mode": "node/replication tests/node/replication",
    "digests of the state": """node/replication/raft/digests
        tests/node/replication/raft/digests""",
    "master-slave mode": "node/replication/ha tests/node/replication/ha",
    "name server and controller": """node/nameserver node/nameserver_process.py
        tests/node/nameserver""",
    "peer link": "node/peers tests/node/peers",
    "gRPC services and bounds": "node/services proto tests/node/services",
    "framed port": """node/framed quorumlog/cluster/framed tests/node/framed
        tests/quorumlog/cluster/framed""",
    "RocketMQ 5 over gRPC, and what both gateways share": """node/rocketmq tests/node/rocketmq
        tests/compat""",
    "RocketMQ's classic protocol": "node/rocketmq/remoting tests/node/rocketmq/remoting",
    "broker: append, pull, groups, topics": "node/broker tests/node/broker",
    "broker: pop": "node/broker/pop tests/node/broker/pop",
    "broker: delay": "node/broker/delay tests/node/broker/delay",
    "broker: transactions": "node/broker/transactions tests/node/broker/transactions",
    "broker: retry and dead letters": "node/broker/retry tests/node/broker/retry",
    "replicated state": "node/state tests/node/state",
    "node: assembly, runtime, administration": "node tests/node",
    "node: configuration": "node/config tests/node/config",
    "node: errors": "node/errors tests/node/errors",
    "node: metrics, health, alerts": """node/monitoring node/metrics.py deploy/alerts.py
        deploy/prometheus tests/node/monitoring""",
    "client: connections, records": "quorumlog tests/quorumlog",
    "client: produce": "quorumlog/produce tests/quorumlog/produce",
    "client: consume": "quorumlog/consume tests/quorumlog/consume",
    "client: transactions": "quorumlog/transactions tests/quorumlog/transactions",
    "client: administration": "quorumlog/admin tests/quorumlog/admin",
    "client: without asyncio": "quorumlog/sync tests/quorumlog/sync",
    "commands": "qlog tests/qlog",
    "console": "qlog/console tests/qlog/console",
    "commands: import from RocketMQ": "qlog/rocketmq tests/qlog/rocketmq",
    "local clusters": "deploy/local tests/deploy/test_local",
    "capacity planning": "planning bench/calibration.py tests/planning",
    "data pipeline": "pipeline tests/pipeline",
}
TOOLS: Final[dict[str, str]] = {
    "set-up, jobs, generators": "deploy .ci .dockerignore .gitignore pyproject.toml tests/deploy",
    "checkers of histories": "checkers tests/checkers",
    "simulation of whole nodes": "simulation tests/simulation",
    "simulation of Raft": "simulation/raft tests/simulation/raft",
    "simulated calls": "simulation/rpc tests/simulation/rpc",
    "chaos": "chaos-tests tests/chaos tests/scenarios",
    "chaos: hosts": "chaos-tests/hosts tests/chaos/hosts",
    "fuzzing": "tests/fuzz",
    "bench": "bench tests/bench",
    "bench: peers": "bench/peers tests/bench/peers",
    "planted faults": "tests/mutate",
    "checks of the text": "tests/tidy",
    "tests of real clusters": "tests/cluster",
    "what tests share": "tests",
}
OTHERS: Final[dict[str, str]] = {
    "documents": "docs ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md LICENSE README.md",
    "data": """bench/results quorumlog/pb requirements.lock requirements-build.lock
        qlog/console/static/uplot""",
}
_ENDINGS: Final = {
    "documents": (".md",),
    "data": (".hex", ".json", ".lock", ".mod", ".sha256", ".sum", ".svg", ".txt", ".xml"),
}
_FEATURE_OF: Final = {
    path: feature
    for table in (PRODUCT, TOOLS, OTHERS)
    for feature in table
    for path in table[feature].split()
}
_TOPS: Final = {path.partition("/")[0] for path in _FEATURE_OF}


def feature_of(path: str) -> str | None:
    """Return the feature of a file, or which of `OTHERS` it is; None: it has none."""
    if path.partition("/")[0] not in _TOPS:
        return None
    for other, endings in _ENDINGS.items():
        if path.endswith(endings):
            return other
    while path not in _FEATURE_OF:
        shorter = path[: max(path.rfind("/"), path.rfind("_"), path.rfind("."), 0)]
        if not shorter:
            return None
        path = shorter
    return _FEATURE_OF[path]


def sizes(lines: Iterable[tuple[str, int]]) -> Mapping[str, Size]:
    """Return the size of each feature, by the lines of each file; one of no feature counts not."""
    code, tests = Counter[str | None](), Counter[str | None]()
    for path, count in lines:
        feature = feature_of(path)
        is_test = path.startswith("tests/") and feature not in OTHERS
        (tests if is_test else code)[feature] += count
    return {name: Size(code[name], tests[name]) for name in (*PRODUCT, *TOOLS, *OTHERS)}
