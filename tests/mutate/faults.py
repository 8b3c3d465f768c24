"""Which faults can be planted in a source file, and the file's tree with one of them planted.

Owns the operators and the names of faults; must not know tests or processes. A fault is named by
file, function, operator and its place among those of the function, not by a line, so that the name
outlives changes elsewhere in the file: `raft/rules/read_index.py:_echoed:first:1`. Only bodies of
functions are touched. Left alone by rule: what is logged, texts and arguments of errors, asserts
and failpoints (they are checks themselves), and functions that only describe.
"""

import ast
import copy
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

OPERATORS: Final = {
    "always": "the condition of an if or of a comprehension holds always",
    "never": "the condition of an if or a while holds never",
    "first": "a conditional expression gives what it gives when the condition holds",
    "second": "a conditional expression gives what it gives when the condition does not hold",
    "drop": "a statement is left out",
    "empty": "a function that returns nothing does nothing",
    "bound": "< becomes <=, and the like",
    "opposite": "a comparison inside an expression says the opposite; not is left out",
    "operand": "one operand of and, or is left out",
    "junction": "and becomes or, and the reverse",
    "arithmetic": "+ becomes -, and the like",
    "extreme": "min becomes max, all becomes any, and the reverse",
    "neighbour": "a whole number becomes the next one",
    "flip": "True becomes False, and the reverse",
    "answer": "a function returns the opposite truth value",
    "item": "an item of a dict is left out",
    "uncaught": "one of several exceptions is not caught",
}
_BOUNDS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_OPPOSITES: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}
_EXTREMES: Final = {"min": "max", "max": "min", "all": "any", "any": "all"}
_LOGGERS: Final = frozenset({"_log", "log", "logger"})
_DESCRIBING: Final = frozenset({"__repr__", "__str__", "stats", "describe"})
_FUNCTIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef
_TEXTS: Final = ast.JoinedStr | ast.List | ast.Tuple


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that can be planted in one file."""

    name: str
    path: str
    function: str
    operator: str
    line: int


class Change(NamedTuple):
    """The first line of what a fault changes. With the name it says which fault it is: a name goes
    over to another place when the same operator finds one before it in the function."""

    before: str
    after: str

    @property
    def mark(self) -> str:
        """Differs where the texts do."""
        return f"{zlib.crc32(repr(tuple(self)).encode()):08x}"


@dataclass(frozen=True, slots=True)
class _Site:
    function: str
    operator: str
    line: int
    old: ast.AST
    new: ast.AST
    plant: Callable[[], None]
    """Changes the tree."""


def faults_of(path: str, source: str) -> list[Fault]:
    """Return the faults of a file, in the order of its functions. Raises SyntaxError."""
    return [fault for fault, _ in _numbered(path, ast.parse(source))]


def planted(fault_name: str, path: str, source: str) -> ast.Module:
    """Return the tree of the file with this fault in it. Raises KeyError: there is none."""
    tree = ast.parse(source)
    for fault, site in _numbered(path, tree):
        if fault.name == fault_name:
            site.plant()
            return ast.fix_missing_locations(tree)
    raise KeyError(fault_name)


def changes_of(path: str, source: str, names: Collection[str]) -> dict[str, Change]:
    """Return what those of these faults that the file has would change."""
    return {
        fault.name: Change(_first_line(site.old), _first_line(site.new))
        for fault, site in _numbered(path, ast.parse(source))
        if fault.name in names
    }


def _numbered(path: str, tree: ast.Module) -> Iterator[tuple[Fault, _Site]]:
    counts: dict[tuple[str, str], int] = {}
    for site in _Finder(tree).sites:
        key = (site.function, site.operator)
        number = counts[key] = counts.get(key, 0) + 1
        if isinstance(site.old, ast.Expr) and _is_failpoint(site.old.value):
            continue
        name = f"{path}:{site.function}:{site.operator}:{number}"
        yield Fault(name, path, site.function, site.operator, site.line), site


class _Finder:
    """Walks the functions of a module and notes what can be changed."""

    def __init__(self, tree: ast.Module) -> None:
        self.sites: list[_Site] = []
        self._function = ""
        self._definitions(tree.body, "")

    def _definitions(self, body: list[ast.stmt], prefix: str) -> None:
        for statement in body:
            if isinstance(statement, ast.ClassDef):
                self._definitions(statement.body, f"{prefix}{statement.name}.")
            elif isinstance(statement, _FUNCTIONS):
                self._of_function(statement, prefix)

    def _of_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, prefix: str) -> None:
        if node.name in _DESCRIBING or any("overload" in _text(d) for d in node.decorator_list):
            return
        outer, self._function = self._function, f"{prefix}{node.name}"
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        if _is_empty_worthy(node, body):
            self._empty(node, body)
        self._block(node.body)
        if _text(node.returns) == "bool":
            self._answers(node)
        self._definitions(body, f"{self._function}.")
        self._function = outer

    def _note(
        self, operator: str, old: ast.AST, new: ast.AST, plant: Callable[[], None], line: int = 0
    ) -> None:
        line = line or getattr(old, "lineno", 0)
        self.sites.append(_Site(self._function, operator, line, old, new, plant))

    # Functions.

    def _empty(self, node: ast.FunctionDef | ast.AsyncFunctionDef, body: list[ast.stmt]) -> None:
        def plant() -> None:
            node.body[:] = [ast.copy_location(ast.Pass(), node.body[0])]

        nothing = copy.copy(node)
        nothing.body, nothing.decorator_list = [ast.Pass()], []
        self._note("empty", body[0], nothing, plant)

    def _answers(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for found in _own_nodes(node):
            if isinstance(found, ast.Return) and found.value is not None:
                value = found.value
                if isinstance(value, ast.Constant | ast.Compare | ast.BoolOp | ast.UnaryOp):
                    continue  # Other operators change it.
                negated = ast.copy_location(ast.UnaryOp(ast.Not(), value), value)
                self._note("answer", value, negated, _setter(found, "value", None, negated))

    # Statements.

    def _block(self, body: list[ast.stmt]) -> None:
        for at, statement in enumerate(body):
            if _is_droppable(statement, is_last=at == len(body) - 1, function=self._function):
                self._drop(body, at, statement)
            self._statement(statement)

    def _drop(self, body: list[ast.stmt], at: int, statement: ast.stmt) -> None:
        nothing: ast.stmt = ast.Pass()
        if "super()" in _text(statement):  # The new code must know of the class, as the old does.
            nothing = ast.Expr(ast.Name("__class__", ast.Load()))
        ast.copy_location(nothing, statement)
        self._note("drop", statement, nothing, lambda: body.__setitem__(at, nothing))

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return  # Functions in functions come on their own.
            case ast.Assert() | ast.Raise() | ast.Import() | ast.ImportFrom():
                return
            case ast.Expr(value=ast.Constant()):
                return
            case ast.Expr() if _is_logging(node):
                return
            case ast.If() | ast.While():
                self._condition(node)
        for field, value in ast.iter_fields(node):
            if field in ("body", "orelse", "finalbody") and isinstance(value, list):
                self._block(value)
            elif field == "handlers":
                for handler in value:
                    self._handler(handler)
            elif field == "cases":
                for case in value:
                    self._block(case.body)
            elif field not in ("annotation", "target", "targets"):
                self._field(node, field, value)

    def _condition(self, node: ast.If | ast.While) -> None:
        test = node.test
        if isinstance(test, ast.Constant) or "TYPE_CHECKING" in _text(test):
            return
        for operator, value in (("always", True), ("never", False)):
            if operator == "always" and isinstance(node, ast.While):
                continue  # It would only hang.
            is_single = len(node.body) == 1 and not node.orelse
            if (
                operator == "never"
                and is_single
                and _is_droppable(node.body[0], is_last=True, function=self._function)
            ):
                continue  # The same as to drop the statement.
            constant = ast.copy_location(ast.Constant(value), test)
            self._note(operator, test, constant, _setter(node, "test", None, constant))

    def _handler(self, node: ast.ExceptHandler) -> None:
        caught = node.type
        if isinstance(caught, ast.Tuple) and len(caught.elts) > 1:
            for at in range(len(caught.elts)):
                fewer = copy.copy(caught)
                fewer.elts = caught.elts[:at] + caught.elts[at + 1 :]
                plant = _setter(node, "type", None, fewer)
                # Whoever runs the body depends on it.
                self._note("uncaught", caught, fewer, plant, node.body[0].lineno)
        self._block(node.body)

    # Expressions.

    def _field(self, owner: ast.AST, field: str, value: object) -> None:
        if isinstance(value, list):
            for at, child in enumerate(value):
                if isinstance(child, ast.AST):
                    self._expression(owner, field, at, child)
        elif isinstance(value, ast.AST):
            self._expression(owner, field, None, value)

    def _expression(self, owner: ast.AST, field: str, at: int | None, node: ast.AST) -> None:
        def note(operator: str, new: ast.expr) -> None:
            ast.copy_location(new, node)
            self._note(operator, node, new, _setter(owner, field, at, new))

        is_condition = isinstance(owner, ast.If | ast.While) and field == "test"
        match node:
            case ast.JoinedStr():
                return
            case ast.IfExp():
                note("first", node.body)
                note("second", node.orelse)
            case ast.comprehension():
                for number, test in enumerate(node.ifs):
                    true = ast.copy_location(ast.Constant(value=True), test)
                    self._note("always", test, true, _setter(node, "ifs", number, true))
            case ast.BoolOp():
                self._junction(node, note)
            case ast.Compare():
                self._comparison(node, note, is_condition=is_condition)
            case ast.UnaryOp(op=ast.Not()) if not is_condition:
                note("opposite", node.operand)
            case ast.BinOp():
                swapped = _ARITHMETIC.get(type(node.op))
                if swapped and not isinstance(node.left, _TEXTS) and not _is_text(node.right):
                    note("arithmetic", ast.BinOp(node.left, swapped(), node.right))
            case ast.Call(func=ast.Name(id=name)) if name in _EXTREMES:
                other = ast.copy_location(ast.Name(_EXTREMES[name], ast.Load()), node.func)
                note("extreme", ast.Call(other, node.args, node.keywords))
            case ast.Constant(value=bool() as value):
                note("flip", ast.Constant(not value))
            case ast.Constant(value=int() as value):
                note("neighbour", ast.Constant(value + 1))
            case ast.Dict():
                for number in range(len(node.keys)):
                    keys = node.keys[:number] + node.keys[number + 1 :]
                    values = node.values[:number] + node.values[number + 1 :]
                    note("item", ast.Dict(keys, values))
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "ctx", "op", "ops"):
                self._field(node, name, value)

    def _junction(self, node: ast.BoolOp, note: Callable[[str, ast.expr], None]) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        note("junction", ast.BoolOp(other, node.values))
        for at in range(len(node.values)):
            rest = node.values[:at] + node.values[at + 1 :]
            note("operand", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))

    def _comparison(
        self, node: ast.Compare, note: Callable[[str, ast.expr], None], *, is_condition: bool
    ) -> None:
        for at, operation in enumerate(node.ops):
            bound, opposite = _BOUNDS.get(type(operation)), _OPPOSITES.get(type(operation))
            new = bound or (None if is_condition else opposite)
            if new is not None:
                ops = [*node.ops[:at], new(), *node.ops[at + 1 :]]
                note(
                    "bound" if bound else "opposite", ast.Compare(node.left, ops, node.comparators)
                )


def _setter(owner: ast.AST, field: str, at: int | None, new: ast.AST) -> Callable[[], None]:
    def plant() -> None:
        if at is None:
            setattr(owner, field, new)
        else:
            getattr(owner, field)[at] = new

    return plant


def _text(node: ast.AST | None) -> str:
    return "" if node is None else ast.unparse(node)


def _first_line(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).partition("\n")[0]


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, _TEXTS) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions in it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, _FUNCTIONS | ast.Lambda | ast.ClassDef):
            yield child
            yield from _own_nodes(child)


def _is_empty_worthy(node: ast.FunctionDef | ast.AsyncFunctionDef, body: list[ast.stmt]) -> bool:
    """Whether the function returns nothing and does more than one thing."""
    if len(body) < 2 or node.name == "__init__" or _text(node.returns) != "None":
        return False
    return not any(isinstance(found, ast.Yield | ast.YieldFrom) for found in _own_nodes(node))


def _is_logging(node: ast.Expr) -> bool:
    call = node.value
    while isinstance(call, ast.Call | ast.Attribute | ast.Await):
        call = call.func if isinstance(call, ast.Call) else call.value
    return isinstance(call, ast.Name) and call.id in _LOGGERS


def _is_failpoint(node: ast.expr) -> bool:
    """A hook of tests."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hit"


def _is_droppable(node: ast.stmt, *, is_last: bool, function: str) -> bool:
    match node:
        case ast.Expr():
            value = node.value.value if isinstance(node.value, ast.Await) else node.value
            is_call = isinstance(value, ast.Call) and "assert_" not in _text(value.func)
            return is_call and not _is_logging(node)
        case ast.Assign(targets=[target]):
            # A name that is set for the first time would only be missing.
            if isinstance(target, ast.Name):
                names = (n.id for n in ast.walk(node.value) if isinstance(n, ast.Name))
                return target.id in names
            return not isinstance(target, ast.Tuple) and not function.endswith("__init__")
        case ast.AugAssign() | ast.Raise() | ast.Delete() | ast.Break() | ast.Continue():
            return True
        case ast.Return():
            return not is_last
    return False
