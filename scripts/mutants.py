"""Small wrong changes to a Python file, each of which some test should notice.

A mutant is one change at one place: a comparison with or without equality, plus for minus, another constant, a negated
condition, a dropped statement, an entry left out of a dictionary, list or call. Text for people (docstrings, messages,
descriptions) and annotations are left alone: no test should depend on them.
"""

from __future__ import annotations

import ast
import copy
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Mutant(NamedTuple):
    """A changed file.

    Attributes:
        line: Where it was changed.
        change: What was changed, before and after.
        source: The whole changed file.
    """

    line: int
    change: str
    source: str


_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "maximum": "minimum"}
_NEGATED_ELSEWHERE = (ast.Compare, ast.UnaryOp, ast.Constant)
_TEXT_FOR_PEOPLE = {"warn", "warning", "Field", "print", "suggestion"}


@functools.cache
def mutants(source: str) -> tuple[Mutant, ...]:
    """All mutants of a file, in the order of its lines."""
    statements = ast.parse(source).body
    texts = [ast.unparse(statement) for statement in statements]
    found = []
    for place, statement in enumerate(statements):
        part = ast.Module([statement], [])
        for number, (node, parent) in enumerate(_places(part)):
            for change in _changes(node, parent):
                twin = copy.deepcopy(part)
                where, above = next(itertools.islice(_places(twin), number, None))
                before = ast.unparse(above)
                change(where, above)
                after = ast.unparse(ast.fix_missing_locations(above))
                if before != after:
                    text = "\n".join([*texts[:place], ast.unparse(twin), *texts[place + 1 :]])
                    found.append(Mutant(node.lineno, _difference(before, after), text))
    return tuple(sorted(found, key=lambda mutant: mutant.line))


_Change = Callable[[ast.AST, ast.AST], None]


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Every node that may be changed, with its parent."""
    for child, parent in _children(tree):
        if _for_people(child) or (isinstance(parent, ast.ImportFrom | ast.Import)):
            continue
        if hasattr(child, "lineno"):
            yield child, parent
        yield from _places(child)


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_comment", "bases"):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                yield each, node


def _for_people(node: ast.AST) -> bool:
    """Docstrings, errors, warnings, descriptions, imports, and how things are printed."""
    if isinstance(node, ast.Raise | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "__str__", "extra_repr"):
        return True
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
        return True  # what `import *` takes and the reference shows: no program depends on it
    if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith(("TypeVar", "Literal", "tuple[", "dict[")):
        return True
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return True  # of zip: an assertion, which never fails in a program that is right
    if isinstance(node, ast.keyword) and node.arg == "device":
        return True  # the tests run on one device
    return isinstance(node, ast.Call) and _called(node) in _TEXT_FOR_PEOPLE


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _changes(node: ast.AST, parent: ast.AST) -> Iterator[_Change]:
    """What can be changed at a place."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARE:
        yield lambda it, _: it.ops.__setitem__(0, _COMPARE[type(it.ops[0])]())
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _ARITHMETIC:
        yield lambda it, _: setattr(it, "op", _ARITHMETIC[type(it.op)]())
    elif isinstance(node, ast.BoolOp):
        yield lambda it, _: setattr(it, "op", ast.Or() if isinstance(it.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield lambda it, above: _put(above, it, it.operand)
    elif isinstance(node, ast.Constant):
        if (other := _other(node.value)) is not None:
            yield lambda it, _: setattr(it, "value", other)
    elif isinstance(node, ast.Name | ast.Attribute) and isinstance(parent, ast.Call) and node is parent.func:
        if _called(parent) in _NAMES:
            attribute = "id" if isinstance(node, ast.Name) else "attr"
            yield lambda it, _: setattr(it, attribute, _NAMES[getattr(it, attribute)])
    elif isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(node.test, _NEGATED_ELSEWHERE):
        yield lambda it, _: setattr(it, "test", ast.UnaryOp(ast.Not(), it.test))
    elif _droppable(node):
        yield lambda it, above: _put(above, it, ast.Pass())
    yield from _left_out(node)


def _other(value: object) -> object | None:
    """Another constant of the same kind; None for text, which is often a name that must match another one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return value * 1.5 + 0.01 if isinstance(value, float) else None


def _droppable(node: ast.AST) -> bool:
    """A statement whose absence is still a program: a call for its effect, an assignment to an entry, a += 1."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript | ast.Attribute)


def _left_out(node: ast.AST) -> Iterator[_Change]:
    """Leave out one entry of a dictionary, list or set, or one keyword of a call."""
    if isinstance(node, ast.Dict):
        for place in range(len(node.keys)):
            yield lambda it, _, place=place: (it.keys.pop(place), it.values.pop(place))
    elif isinstance(node, ast.List | ast.Set) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        for place in range(len(node.elts)):
            yield lambda it, _, place=place: it.elts.pop(place)
    elif isinstance(node, ast.Call):
        for place, keyword in enumerate(node.keywords):
            if keyword.arg is not None and not isinstance(keyword.value, ast.Constant) and not _for_people(keyword):
                yield lambda it, _, place=place: it.keywords.pop(place)


def _put(parent: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for field, value in ast.iter_fields(parent):
        if value is old:
            setattr(parent, field, new)
        elif isinstance(value, list) and old in value:
            value[value.index(old)] = new


def _difference(before: str, after: str, around: int = 25) -> str:
    """The part of a statement that was changed."""
    before, after = " ".join(before.split()), " ".join(after.split())
    start = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    end = next(
        (i for i, (a, b) in enumerate(zip(before[:start:-1], after[:start:-1], strict=False)) if a != b),
        min(len(before), len(after)) - start - 1,
    )
    low = max(0, start - around)
    return f"{before[low : len(before) - end + around]}  ->  {after[low : len(after) - end + around]}"
