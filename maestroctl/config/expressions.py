"""Sandboxed conditions: the ``until`` of a loop, for instance ``'APPROVED' in output``.

simpleeval walks the tree, and only after every node of it was found on a short list. There are no
attributes but those of steps and tables, no comprehensions, lambdas, powers, shifts or formatted
text; functions are the few of `FUNCTIONS`, each linear in its input. So a condition of at most
`MAX_NODES` nodes takes a bounded time, and there is no way from a value to a Python object.

A handful of text methods (``output.strip()``) are understood as the function of the same name.

See also: `config.templates`, the same idea for texts.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from simpleeval import InvalidExpression, SimpleEval

from maestroctl.config.kinds import did_you_mean
from maestroctl.config.step_view import STEP_FIELDS, StepView, parse_json, split_lines
from maestroctl.config.template_syntax import References

MAX_LENGTH = 2000
"""Characters of one condition."""
MAX_NODES = 120
MAX_TEXT = 4 << 20
"""Characters of a text made by ``+``."""

_NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?")


class ExpressionMistake(ValueError):
    """A condition that cannot be accepted.

    Args:
        message: what is wrong.
        hint: what to try.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ExpressionFailed(ValueError):
    """A condition met a value it cannot work with, for instance text that is not JSON."""


# --- functions and operators --------------------------------------------------------------------


def _text(value: Any) -> str:
    if isinstance(value, StepView):
        return value.output
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r:.60}")
    return value


def _first_number(value: Any) -> float | None:
    match = _NUMBER.search(_text(value))
    return float(match[0]) if match else None


def _length(value: Any) -> int:
    if isinstance(value, StepView):
        return len(value.output)
    if not isinstance(value, (str, list, tuple, dict)):
        raise TypeError(f"{value!r:.60} has no length")
    return len(value)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": lambda value: abs(value),
    "contains": lambda value, part: _text(part) in _text(value),
    "count": lambda value, part: _text(value).count(_text(part)),
    "endswith": lambda value, end: _text(value).endswith(_text(end)),
    "float": lambda value: float(value),
    "int": lambda value: int(float(value)),
    "json": lambda value: parse_json(_text(value)),
    "len": _length,
    "lines": lambda value: split_lines(_text(value)),
    "lower": lambda value: _text(value).lower(),
    "number": _first_number,
    "startswith": lambda value, start: _text(value).startswith(_text(start)),
    "strip": lambda value: _text(value).strip(),
    "upper": lambda value: _text(value).upper(),
    "words": lambda value: _text(value).split(),
}
"""By name. `number` is the first number in a text, `lines` are those that are not empty."""

_METHODS = ("count", "endswith", "lower", "startswith", "strip", "upper")


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        if len(left) + len(right) > MAX_TEXT:
            raise ValueError("the text becomes too long")
        return left + right
    return _numbers(operator.add)(left, right)


def _numbers(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Without this, ``"x" * 10**9`` and ``"%9999999d" % 1`` would fill the memory."""

    def run(left: Any, right: Any) -> Any:
        if not all(isinstance(side, (int, float)) for side in (left, right)):
            raise TypeError(f"expected two numbers, found {left!r:.40} and {right!r:.40}")
        return function(left, right)

    return run


_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: _add,
    ast.Sub: _numbers(operator.sub),
    ast.Mult: _numbers(operator.mul),
    ast.Div: _numbers(operator.truediv),
    ast.FloorDiv: _numbers(operator.floordiv),
    ast.Mod: _numbers(operator.mod),
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: operator.contains(right, left),
    ast.NotIn: lambda left, right: not operator.contains(right, left),
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}

_NODES = (
    ast.Expression,
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.UnaryOp,
    ast.BinOp,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.Compare,
    ast.IfExp,
    ast.Call,
    ast.Subscript,
    ast.Slice,
    ast.Attribute,
    ast.List,
    ast.Tuple,
    *_OPERATORS,
)


class Condition:
    """A condition, checked and ready to be evaluated.

    Args:
        source: as written in the file.

    Raises:
        ExpressionMistake: it is not valid, or uses something that is not allowed.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._tree = _parse(source)
        self.references = _references(self._tree)

    def holds(self, scope: Mapping[str, Any]) -> bool:
        """Whether it holds for one set of values.

        Raises:
            ExpressionFailed: a value is missing or of the wrong kind.
        """
        evaluator = _Evaluator(scope)
        try:
            return bool(evaluator.eval(self.source, previously_parsed=self._tree.body))
        except InvalidExpression as exc:
            raise ExpressionFailed(str(exc)) from exc
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as exc:
            raise ExpressionFailed(str(exc) or type(exc).__name__) from exc


@lru_cache(maxsize=256)
def condition(source: str) -> Condition:
    """`Condition`, kept: a workflow is checked, then run, often many times over."""
    return Condition(source)


def _parse(source: str) -> ast.Expression:
    if len(source) > MAX_LENGTH:
        raise ExpressionMistake(f"the condition has {len(source)} characters, at most {MAX_LENGTH}")
    try:
        with warnings.catch_warnings():
            # Python warns of odd escapes and comparisons; neither can do harm here.
            warnings.simplefilter("ignore")
            tree = ast.parse(source.strip(), mode="eval")
    except SyntaxError as exc:
        raise ExpressionMistake(f"not a condition: {exc.msg}") from exc
    except (ValueError, RecursionError, MemoryError) as exc:
        raise ExpressionMistake(f"not a condition: {exc or 'nested too deeply'}") from exc
    nodes = list(ast.walk(tree))
    if len(nodes) > MAX_NODES:
        raise ExpressionMistake(f"the condition has {len(nodes)} parts, at most {MAX_NODES}")
    for node in nodes:
        _check_node(node)
    return tree


def _check_node(node: ast.AST) -> None:
    if not isinstance(node, _NODES):
        raise ExpressionMistake(f"{type(node).__name__} is not allowed in a condition")
    if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
        raise ExpressionMistake(
            f"{node.attr!r}: names that start with an underscore are not allowed"
        )
    if isinstance(node, ast.Constant) and not isinstance(
        node.value, (str, int, float, bool, type(None))
    ):
        raise ExpressionMistake(f"{node.value!r} is not allowed in a condition")
    if isinstance(node, ast.Call):
        _check_call(node)


def _check_call(node: ast.Call) -> None:
    if node.keywords:
        raise ExpressionMistake("functions take no named arguments")
    if isinstance(node.func, ast.Name):
        name, known = node.func.id, tuple(FUNCTIONS)
    elif isinstance(node.func, ast.Attribute):
        name, known = node.func.attr, _METHODS
    else:
        raise ExpressionMistake("only functions can be called")
    if name not in known:
        raise ExpressionMistake(f"unknown function {name!r}", hint=did_you_mean(name, known))


def _references(tree: ast.Expression) -> References:
    parents = {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    names: set[str] = set()
    steps: set[tuple[str, str | None]] = set()
    variables: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name):
            continue
        parent = parents[id(node)]
        if isinstance(parent, ast.Call) and parent.func is node:
            continue
        names.add(node.id)
        if node.id in ("steps", "vars"):
            key = _key(parent, node)
            if key is None:
                raise ExpressionMistake(f"{node.id} must be followed by a name")
            if node.id == "vars":
                variables.add(key)
            else:
                steps.add((key, _step_field(parents[id(parent)], parent)))
    return References(frozenset(names), frozenset(steps), frozenset(variables))


def _step_field(parent: ast.AST, step: ast.AST) -> str | None:
    """FIELD of ``steps.STEP.FIELD``; None when the step stands alone or a method follows."""
    key = _key(parent, step)
    return None if key in _METHODS and key not in STEP_FIELDS else key


def _key(node: ast.AST, of: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute) and node.value is of:
        return node.attr
    if isinstance(node, ast.Subscript) and node.value is of:
        return node.slice.value if _is_text(node.slice) else None  # type: ignore[attr-defined]
    return None


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


class _Evaluator(SimpleEval):  # type: ignore[misc]  # simpleeval has no types
    """simpleeval with its own attribute, method and subscript rules."""

    nodes: dict[Any, Any]

    def __init__(self, scope: Mapping[str, Any]) -> None:
        super().__init__(operators=dict(_OPERATORS), functions=dict(FUNCTIONS), names=dict(scope))
        inherited: dict[Any, Any] = self.nodes
        self.nodes = {kind: run for kind, run in inherited.items() if kind in _NODES}
        self.nodes[ast.List] = self.nodes[ast.Tuple] = self._eval_elements

    def _eval_elements(self, node: ast.List | ast.Tuple) -> list[Any]:
        return [self._eval(element) for element in node.elts]

    def _eval_call(self, node: ast.Call) -> Any:
        arguments = [self._eval(argument) for argument in node.args]
        if isinstance(node.func, ast.Attribute):
            return FUNCTIONS[node.func.attr](self._eval(node.func.value), *arguments)
        assert isinstance(node.func, ast.Name), "checked when the condition was read"
        return FUNCTIONS[node.func.id](*arguments)

    def _eval_name(self, node: ast.Name) -> Any:
        if node.id not in self.names:
            raise LookupError(f"{node.id} is not set")
        return self.names[node.id]

    def _eval_attribute(self, node: ast.Attribute) -> Any:
        return _lookup(self._eval(node.value), node.attr)

    def _eval_subscript(self, node: ast.Subscript) -> Any:
        return _lookup(self._eval(node.value), self._eval(node.slice))


def _lookup(value: Any, key: Any) -> Any:
    if isinstance(value, StepView):
        return value.field(key)
    if isinstance(value, Mapping):
        return value[key]
    if isinstance(value, (str, list, tuple)) and isinstance(key, (int, slice)):
        return value[key]
    raise TypeError(f"there is no {key!r} in {value!r:.60}")
