"""Puts a fault into modules that are loaded already, and marks in them which lines were run.

Owns the two ways to change a module: new code for the functions that tests already imported, and
marks that are compiled in when a module is imported. Must not know which faults there are.
"""

import ast
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Collection, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Final

_SEEN: Final = "__mutate_seen__"
MARKS_MAX: Final = 60_000
"""Statements in all files together."""

Key = tuple[str, int]
"""Qualified name and first line: two functions of a file may have one name."""
Functions = dict[str, dict[Key, list[FunctionType]]]


class NotPlantableError(Exception):
    """Python takes no such code for this function."""


class NotLoadedError(Exception):
    """No loaded function would be another one with this code."""


def functions_by_file() -> Functions:
    """Return all functions that exist now. What was frozen is no longer so: gc lists none of it."""
    gc.unfreeze()
    functions: Functions = {}
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType):
            code = thing.__code__
            key = (code.co_qualname, code.co_firstlineno)
            functions.setdefault(code.co_filename, {}).setdefault(key, []).append(thing)
    return functions


def plant(tree: ast.Module, file_name: str, functions: Functions) -> None:
    """Give the functions of a file the code of this tree, wherever it is another one.

    Raises NotPlantableError and NotLoadedError."""
    changed = 0
    for code in _codes(compile(tree, file_name, "exec", dont_inherit=True)):
        for function in functions.get(file_name, {}).get(
            (code.co_qualname, code.co_firstlineno), ()
        ):
            if function.__code__ == code:
                continue
            try:
                function.__code__ = code
            except ValueError as error:
                raise NotPlantableError(f"{code.co_qualname}: {error}") from error
            changed += 1
    if not changed:
        raise NotLoadedError(f"{file_name}: no function is another one with it")


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


class Marks:
    """Which statements of which files were run. One byte each, so that marking costs little."""

    def __init__(self) -> None:
        self.seen = bytearray(MARKS_MAX)
        self.places: list[tuple[str, int]] = []
        """Path and line of each mark."""

    def marked(self, path: str, tree: ast.Module) -> ast.Module:
        """Change the tree of a file so that it marks each statement of its functions."""
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._mark_blocks(path, node)
        return ast.fix_missing_locations(tree)

    def _mark_blocks(self, path: str, owner: ast.AST) -> None:
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            block = getattr(owner, field, None)
            if not isinstance(block, list):
                continue
            marked: list[ast.AST] = []
            for node in block:
                if isinstance(node, ast.stmt) and not _is_text(node):
                    marked.append(self._mark(path, node))
                marked.append(node)
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    self._mark_blocks(path, node)
            block[:] = marked

    def _mark(self, path: str, node: ast.stmt) -> ast.stmt:
        number = len(self.places)
        assert number < MARKS_MAX, f"{number} statements; raise MARKS_MAX"
        self.places.append((path, node.lineno))
        name = ast.Name(_SEEN, ast.Load())
        target = ast.Subscript(name, ast.Constant(number), ast.Store())
        return ast.copy_location(ast.Assign([target], ast.Constant(1)), node)

    def clear(self) -> None:
        self.seen[:] = bytes(MARKS_MAX)

    def numbers(self) -> list[int]:
        """Return the marks that were set since they were cleared."""
        marks, at = [], self.seen.find(1)
        while at >= 0:
            marks.append(at)
            at = self.seen.find(1, at + 1)
        return marks


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class _MarkingLoader(importlib.machinery.SourceFileLoader):
    marks: Marks
    relative_path: str

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_data(self.path), self.path)
        marked = self.marks.marked(self.relative_path, tree)
        return compile(marked, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, _SEEN, self.marks.seen)
        super().exec_module(module)


class MarkingFinder(importlib.abc.MetaPathFinder):
    """Imports the files that are named with marks in them. Belongs in front of `sys.meta_path`."""

    def __init__(self, marks: Marks, paths: Collection[str]) -> None:
        self._marks = marks
        self._paths = {_module_name(path): path for path in paths}
        loaded = [name for name in self._paths if name in sys.modules]
        assert not loaded, f"imported before they could be marked: {loaded}"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        relative_path = self._paths.get(fullname)
        if relative_path is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return spec
        loader = _MarkingLoader(fullname, spec.origin)
        loader.marks, loader.relative_path = self._marks, relative_path
        return importlib.util.spec_from_file_location(fullname, spec.origin, loader=loader)


def _module_name(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")
