"""`python -m tests.tidy.figures`: the size and the structure of the repository, in one table.

Lines are lines of hand-written Python. An import counts also under TYPE_CHECKING. A circle is a
set of modules that import each other directly or through others.
"""

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tests.tidy import repository
from tests.tidy.checks import Source

PRODUCT: Final = ("node", "store", "quorumlog", "qlog", "raft", "deploy")
OTHERS: Final = (
    *("simulation", "bench", "chaos-tests", "pipeline", "campaign"),
    *("planning", "checkers"),
)


def main() -> None:
    """Print the table."""
    names = [name for name in repository.files() if name.endswith(".py")]
    sources = [Source.parse(name, repository.text(name) or "") for name in names]
    for name, value in figures(sources):
        print(f"{name:<60} {value:>8,}")


def figures(sources: Iterable[Source]) -> Iterator[tuple[str, int]]:
    """Yield the name and the value of each figure."""
    sources = [source for source in sources if not repository.is_generated(source.path)]
    product = [source for source in sources if source.is_in(*PRODUCT)]
    house = [source for source in sources if source.is_in(*PRODUCT, *OTHERS)]
    yield f"lines of {', '.join(PRODUCT)}", _line_count(product)
    yield f"lines of these and {', '.join(OTHERS)}", _line_count(house)
    yield "lines of tests", _line_count(source for source in sources if source.is_in("tests"))
    for title, part in (("in the product", product), ("in all folders", house)):
        protocols = {node.name for source in part for node in _protocols(source)}
        yield f"Protocols {title}", len(protocols)
    imports = _imports(house)
    ranks = _ranks()
    upward = {
        (importer, imported)
        for importer, names in imports.items()
        for imported in names
        if _rank(imported, ranks, 0) > _rank(importer, ranks, len(ranks))
    }
    yield "imports of a higher folder", len(upward)
    yield "circles of modules", len(circles(imports))


def _line_count(sources: Iterable[Source]) -> int:
    return sum(len((repository.text(source.path) or "").splitlines()) for source in sources)


def _protocols(source: Source) -> Iterator[ast.ClassDef]:
    for node in source.nodes:
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
            if bases & {"Protocol", "typing.Protocol"}:
                yield node


def _ranks() -> dict[str, int]:
    """Return the layer of each package, from below, as the first import contract has it."""
    settings = tomllib.loads(repository.text("pyproject.toml") or "")
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    return {
        package: rank
        for rank, layer in enumerate(reversed(layers))
        for package in layer.split(" | ")
    }


def _rank(module: str, ranks: Mapping[str, int], default: int) -> int:
    """Return the layer of a module: that of its package, or of its folder if that has one."""
    package, _, rest = module.partition(".")
    folder = f"{package}.{rest.partition('.')[0]}"
    return ranks.get(folder, ranks.get(package, default))


def _imports(sources: Iterable[Source]) -> dict[str, set[str]]:
    """Return the modules that each module imports, among these."""
    modules = {_module(source.path): source for source in sources}
    imports: dict[str, set[str]] = defaultdict(set)
    for module, source in modules.items():
        for node in source.nodes:
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                parts = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [part if part in modules else node.module for part in parts]
            else:
                continue
            imports[module].update(name for name in names if name in modules and name != module)
    return imports


def _module(path: str) -> str:
    name = path.removesuffix(".py").removesuffix("/__init__").removeprefix("chaos-tests/")
    return name.replace("/", ".")


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules that reach each other (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    sets: list[set[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        path.append(module)
        for imported in sorted(imports.get(module, ())):
            if imported not in order:
                visit(imported)
            if imported in path:
                low[module] = min(low[module], low[imported])
        if low[module] == order[module]:
            at = path.index(module)
            if len(path) - at > 1:
                sets.append(set(path[at:]))
            del path[at:]

    for module in sorted(imports):
        if module not in order:
            visit(module)
    return sets


if __name__ == "__main__":
    main()
