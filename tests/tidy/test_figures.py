"""The figures of the repository are counted, and planted circles are found."""

from tests.tidy import figures
from tests.tidy.checks import Source


def test_planted_circles_are_found_and_chains_are_none() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"g"}}
    imports["g"] = {"f"}
    assert sorted(map(sorted, figures.circles(imports))) == [["a", "b", "c"], ["f", "g"]]


def test_every_figure_of_the_repository_is_counted(all_sources: list[Source]) -> None:
    values = dict(figures.figures(all_sources))
    product, house, tests = list(values.values())[:3]
    assert 0 < product < house
    assert tests > 0
    # `python -m node`, `python -m pipeline` and `quorumlog.testing`: the contracts name them.
    assert values["imports of a higher folder"] == 3
    # A simulated world makes its parts, and they act on each other: `simulation.ha.world` and
    # `simulation.raft.world`.
    assert values["circles of modules"] == 2
    assert values["Protocols in the product"] < values["Protocols in all folders"]
