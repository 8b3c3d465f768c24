"""The features of the repository: which files are of which, so that size is counted by feature.

A file belongs to the feature with the longest matching path. Features of a user are the product;
those that only developers need are tools.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple


class Size(NamedTuple):
    """Lines of hand-written Python."""

    code: int
    tests: int


PRODUCT: Final[dict[str, str]] = {
    "store: ledger, queues, keys, durability, retention": "store tests/store",
    "store: mending, scrub, restore": """store/ledger/mending store/maintenance node/offline
        tests/store/ledger/mending tests/store/maintenance tests/node/offline""",
    "store: check and repair without a server": "store/fsck tests/store/fsck",
    "Raft core": "raft tests/raft",
    "Raft mode": "node/replication tests/node/replication",
    "digests of the state": """node/replication/raft/digests
        tests/node/replication/raft/digests""",
    "master-slave mode": "node/replication/ha tests/node/replication/ha",
    "name server and controller": """node/nameserver node/nameserver_process.py
        tests/node/nameserver""",
    "peer link": "node/peers tests/node/peers",
    "gRPC services and bounds": "node/services tests/node/services",
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
    "commands: import from RocketMQ": "qlog/rocketmq tests/qlog/rocketmq",
    "local clusters": "deploy/local tests/deploy/test_local",
    "capacity planning": "planning bench/calibration.py tests/planning",
    "data pipeline": "pipeline tests/pipeline",
}
TOOLS: Final[dict[str, str]] = {
    "set-up, jobs, generators": "deploy tests/deploy",
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
_FEATURE_OF: Final = {
    path: feature
    for table in (PRODUCT, TOOLS)
    for feature in table
    for path in table[feature].split()
}


def feature_of(path: str) -> str | None:
    """Return the feature of a file; None: it has none."""
    while path not in _FEATURE_OF:
        shorter = path[: max(path.rfind("/"), path.rfind("_"), path.rfind("."), 0)]
        if not shorter:
            return None
        path = shorter
    return _FEATURE_OF[path]


def sizes(lines: Iterable[tuple[str, int]]) -> Mapping[str, Size]:
    """Return the size of each feature, by the lines of each file. Raises KeyError for a file of no
    feature."""
    code, tests = Counter[str](), Counter[str]()
    for path, count in lines:
        feature = feature_of(path)
        if feature is None:
            raise KeyError(f"{path}: name its feature in tests/tidy/features.py")
        (tests if path.startswith("tests/") else code)[feature] += count
    return {name: Size(code[name], tests[name]) for name in (*PRODUCT, *TOOLS)}
