"""The figures of the repository are counted, its size is bounded, planted circles are found."""

from pathlib import Path
from typing import Final

import pytest

from tests.tidy import features, figures, repository
from tests.tidy.checks import Source

ROWS: Final = Path(__file__).with_name("sizes.txt")
LIMITED: Final = ("product", "tools", "tests", *features.OTHERS)
SLACK_COUNT: Final = 500
"""Lines of fewer than the last row says, after which another row is due."""


@pytest.fixture(scope="module")
def values(all_sources: list[Source]) -> dict[str, int]:
    return dict(figures.figures(all_sources))


def test_the_size_is_within_the_last_row(values: dict[str, int]) -> None:
    row = ROWS.read_text().splitlines()[-1].split()
    assert row[len(LIMITED) :], "a row has a reason"
    for name, allowed in zip(LIMITED, row, strict=False):
        limit, count = int(allowed.replace(",", "")), values[name]
        where = f"{name} has {count:,} lines, the last row of {ROWS.name} says {limit:,}: "
        assert count <= limit, where + "take lines out, or add a row with the reason"
        assert count > limit - SLACK_COUNT, where + "add a row, so that they do not come back"


def test_a_file_belongs_to_the_feature_with_the_longest_path() -> None:
    for path, feature in (
        ("node/broker/pop/receive.py", "broker: pop"),
        ("node/broker/broker.py", "broker: append, pull, groups, topics"),
        ("deploy/local_nodes.py", "local clusters"),
        ("tests/node/test_node.py", "node: assembly, runtime, administration"),
        ("store/blob.dat", "store: ledger, queues, keys, durability, retention"),
        ("tests/cluster/program", "tests of real clusters"),
        ("quorumlog/pb/new_pb2.pyi", "data"),
        ("raft/new.txt", "data"),
        ("node/README.md", "documents"),
    ):
        assert features.feature_of(path) == feature
        assert sum(map(sum, features.sizes([(path, 7)]).values())) == 7


def test_every_file_has_a_feature() -> None:
    assert figures.strays(repository.files()) is None
    assert figures.strays(["raft/raft.py", "new/file.sh", "raft_new/a.md", "n.out"]) == (
        "new/file.sh, raft_new/a.md, n.out: name the feature in tests/tidy/features.py"
    )


def test_planted_circles_are_found_and_chains_are_none() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"g"}}
    imports["g"] = {"f"}
    assert sorted(map(sorted, figures.circles(imports))) == [["a", "b", "c"], ["f", "g"]]


def test_every_figure_of_the_repository_is_counted(values: dict[str, int]) -> None:
    assert min(values["product"], values["tools"], values["tests"]) > 0
    # A simulated world makes its parts, and they act on each other: `simulation.raft.world`.
    assert values["circles of modules"] == 1
    assert values["Protocols in the product"] < values["Protocols in all folders"]
