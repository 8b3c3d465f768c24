"""No import circle but those with a reason, and planted ones are found."""

import pytest

from tests.tidy import circles, repository
from tests.tidy.checks import Source

PACKAGES = (
    "raft",
    "store",
    "node",
    "quorumlog",
    "pipeline",
    "deploy",
    "bench",
    "campaign",
    "chaos-tests",
)
_COMMENT = "    # A circle of types"
WITH_REASON = {
    "node.nameserver.replica.pysyncobj": "the library's own shape: a node and its transport",
    "node.replication.ha.driver": "the driver makes components that give it inputs",
    "node.replication.ha.simulator.world": "a world makes its parts, and they act on it",
    "raft.simulator.world.world": "a world makes its parts, and they act on it and on each other",
}
"""A module of each circle, and why it is one. Each file of it says so beside the import."""


def test_no_circle_of_imports_is_without_a_reason(all_sources: list[Source]) -> None:
    sources = [source for source in all_sources if source.is_in(*PACKAGES)]
    found = circles.circles(circles.imports(sources))
    new = [sorted(circle) for circle in found if not circle & WITH_REASON.keys()]
    assert not new, "\n".join(["", *map(str, new)])
    gone = [name for name in WITH_REASON if not any(name in circle for circle in found)]
    assert not gone, f"no circle any more, take it off the list: {gone}"
    for circle in found:
        texts = [repository.text(f"{name.replace('.', '/')}.py") or "" for name in circle]
        closing = [text for text in texts if "if TYPE_CHECKING:" in text]
        assert closing, f"a circle at run time: {sorted(circle)}"
        assert all(_COMMENT in text for text in closing), f"say why beside it: {sorted(circle)}"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"p/a.py": "import p.b", "p/b.py": "x = 1"}, []),
        ({"p/a.py": "import p.b", "p/b.py": "from p import a"}, [{"p.a", "p.b"}]),
        (
            {
                "p/a.py": "from p.b import B",
                "p/b.py": "def f():\n    from p.c import C",
                "p/c.py": "if TYPE_CHECKING:\n    from p.a import A",
                "p/d.py": "import p.a",
            },
            [{"p.a", "p.b", "p.c"}],
        ),
        ({"p/__init__.py": "from p.a import A", "p/a.py": "import p"}, [{"p", "p.a"}]),
    ],
)
def test_planted_circles_are_found(files: dict[str, str], expected: list[set[str]]) -> None:
    sources = [Source.parse(path, text) for path, text in files.items()]
    assert [set(found) for found in circles.circles(circles.imports(sources))] == expected
