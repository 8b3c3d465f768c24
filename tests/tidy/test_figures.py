"""The figures of the repository are counted, and planted circles are found."""

from tests.tidy import figures
from tests.tidy.checks import Source


def test_planted_circles_are_found_and_chains_are_none() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"g"}}
    imports["g"] = {"f"}
    assert sorted(map(sorted, figures.circles(imports))) == [["a", "b", "c"], ["f", "g"]]


def test_every_figure_of_the_repository_is_counted(all_sources: list[Source]) -> None:
    values = dict(figures.figures(all_sources))
    assert all(value > 0 for value in values.values()), values
    assert values["Protocols in the product"] < values["Protocols in all folders"]
