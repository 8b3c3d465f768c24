"""`python -m tests.tidy.figures`: the size and the structure of the repository, in two tables.

Lines are those of all files, by feature (`features`); a file has at least one for each 100 bytes.
An import counts also under TYPE_CHECKING. A circle is a set of modules that import each
other directly or through others. A class implements a Protocol if it has all of its members,
inherited ones of the repository included.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tests.tidy import features, repository
from tests.tidy.checks import Source

DRIVERS: Final = {"RaftDriver", "HaDriver"}
VAGUE_NAMES: Final = {"found", "one", "known", "asked", "told"}


def main() -> str | None:
    """Print the tables; return which files have no feature, if there are some."""
    names = [name for name in repository.files() if name.endswith(".py")]
    sources = [Source.parse(name, repository.text(name) or "") for name in names]
    print(f"{'lines by feature':<52} {'code':>8} {'tests':>8} {'tests/code':>10}")
    for name, size in features.sizes(map(_lines, repository.files())).items():
        ratio = f"{size.tests / size.code:.2f}" if size.code else "-"
        print(f"{name:<52} {size.code:>8,} {size.tests:>8,} {ratio:>10}")
    print()
    for name, value in figures(sources):
        print(f"{name:<52} {value:>8,}")
    return strays(repository.files())


def strays(names: Iterable[str]) -> str | None:
    """Return what is to be done with files of no feature; None: there are none."""
    found = ", ".join(name for name in names if features.feature_of(name) is None)
    return f"{found}: name the feature in tests/tidy/features.py" if found else None


def _written(sources: Iterable[Source]) -> list[Source]:
    return [source for source in sources if not repository.is_generated(source.path)]


def _lines(name: str) -> tuple[str, int]:
    data = (repository.text(name) or "").encode()  # A picture has no lines.
    return name, max(len(data.splitlines()), len(data) // 100)


def figures(sources: Iterable[Source]) -> Iterator[tuple[str, int]]:
    """Yield the name and the value of each figure."""
    sources = _written(sources)
    sizes = features.sizes(map(_lines, repository.files()))
    yield "product", sum(sizes[name].code for name in features.PRODUCT)
    yield "tools", sum(sizes[name].code for name in features.TOOLS)
    yield "tests", sum(size.tests for size in sizes.values())
    yield from ((name, sizes[name].code) for name in features.OTHERS)
    house = [source for source in sources if not source.is_in("tests")]
    product = [one for one in house if features.feature_of(one.path) in features.PRODUCT]
    for title, part in (("in the product", product), ("in all folders", house)):
        protocols = {node.name for source in part for node in _protocols(source)}
        yield f"Protocols {title}", len(protocols)
    yield "Protocols with one class of the product or none", _lonely_count(product)
    for limit in (6, 8):
        name = f"functions of the product with over {limit} parameters"
        yield name, sum(_parameter_count(node) > limit for one in product for node in one.nodes)
    outside = [one for one in product if not one.path.startswith("node/replication/")]
    drivers = sum(any(_named(node) in DRIVERS for node in one.nodes) for one in outside)
    yield "modules outside of node/replication with a driver", drivers
    vague = sum(_vague_count(node) for one in sources for node in one.nodes)
    yield f"assignments to {', '.join(sorted(VAGUE_NAMES))}", vague
    yield "circles of modules", len(circles(_imports(house)))


def _named(node: ast.AST) -> str:
    if isinstance(node, ast.alias):
        return node.name
    return node.attr if isinstance(node, ast.Attribute) else ""


def _vague_count(node: ast.AST) -> int:
    if not isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
        return 0
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = (name for target in targets for name in ast.walk(target))
    return sum(isinstance(name, ast.Name) and name.id in VAGUE_NAMES for name in names)


def _parameter_count(node: ast.AST) -> int:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return 0
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in every)


def _lonely_count(product: Iterable[Source]) -> int:
    """Return how many Protocols at most one class of the product implements."""
    classes = {
        node.name: node for one in product for node in one.nodes if isinstance(node, ast.ClassDef)
    }
    protocols = {node.name for source in product for node in _protocols(source)}
    members = {name: _members(name, classes) for name in classes}
    has = {
        protocol: [n for n in members.keys() - protocols if members[protocol] <= members[n]]
        for protocol in protocols
    }
    return sum(len(names) <= 1 for names in has.values())


def _members(name: str, classes: Mapping[str, ast.ClassDef]) -> set[str]:
    """Return the members of a class and of its bases, as far as they are ours."""
    members = set[str]()
    for node in ast.walk(classes[name]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            members.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    members.add(target.id)
                elif isinstance(target, ast.Attribute):
                    members.add(target.attr)
    for base in classes[name].bases:
        parent = ast.unparse(base).partition("[")[0]
        if parent in classes and parent != name:
            members |= _members(parent, classes)
    return members


def _protocols(source: Source) -> Iterator[ast.ClassDef]:
    for node in source.nodes:
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
            if bases & {"Protocol", "typing.Protocol"}:
                yield node


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


def circles(imports: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules that reach each other."""
    left = dict(imports)
    while leaves := [module for module, names in left.items() if not names & left.keys()]:
        for module in leaves:
            del left[module]
    reached = {module: _reached(module, left) for module in left}
    sets = {
        frozenset(n for n in names if module in reached[n]) for module, names in reached.items()
    }
    return [set(modules) for modules in sets if modules]


def _reached(module: str, imports: Mapping[str, set[str]]) -> set[str]:
    reached, open_modules = set[str](), [module]
    while open_modules:
        names = imports[open_modules.pop()] & imports.keys() - reached
        reached |= names
        open_modules += names
    return reached


if __name__ == "__main__":
    sys.exit(main())
