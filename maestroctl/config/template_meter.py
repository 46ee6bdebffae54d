"""The environment templates run in: values only, and every piece of work paid for.

Charges are written into the syntax tree as filters whose names a template cannot spell, so nothing
that costs time can be reached without one. One rendering has one `Meter`.

See also: `config.templates` for the whole picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

from jinja2 import StrictUndefined, TemplateError, Undefined, nodes, pass_context
from jinja2 import Template as JinjaTemplate
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from maestroctl.config.step_view import StepView
from maestroctl.config.template_filters import FILTERS, GROWTH, as_text
from maestroctl.config.template_syntax import TESTS, TemplateMistake, walk

BUDGET = 4_000_000
"""Units of work of one rendering: a node of a loop body, or 16 characters touched."""

METER = "\0meter"
"""Name under which a rendering finds its `Meter`."""
_SEEN = "\0seen"
_TEXT = "\0text"
_ROUNDS = "\0rounds"
_KIND_WORDS: Mapping[type, str] = {
    str: "text",
    list: "list",
    tuple: "list",
    dict: "table",
    int: "number",
    float: "number",
    StepView: "step",
    LoopContext: "loop",
}
_LOOP_FIELDS = ("index", "index0", "first", "last", "length", "revindex", "revindex0", "depth")


class Meter:
    """Work left of one rendering. Owner: the rendering; falling below zero is an error.

    Args:
        budget: units, see `BUDGET`.
    """

    __slots__ = ("_left",)

    def __init__(self, budget: int) -> None:
        self._left = budget

    def charge(self, units: int) -> None:
        """Pay; raises `TemplateMistake` when nothing is left."""
        self._left -= units
        if self._left < 0:
            raise TemplateMistake("the template does too much work", hint="loop over fewer items")

    def charge_text(self, value: Any) -> None:
        """Pay for touching a value once."""
        self.charge(_weight(value))


def _weight(value: Any) -> int:
    """Units for touching a value once: 16 characters or one element each."""
    if isinstance(value, str):
        return 1 + len(value) // 16
    if isinstance(value, StepView):
        return 1 + sum(len(item) for item in value.items) // 16
    if isinstance(value, (list, tuple)):
        return 1 + sum(map(_weight, value))
    if isinstance(value, dict):
        return 1 + sum(map(_weight, value.values()))
    return 1


def metered(tree: nodes.Template) -> nodes.Template:
    """The tree with charges written in. Changes and returns `tree`."""
    for node in list(walk(tree)):
        if isinstance(node, nodes.For):
            size = sum(1 for part in node.body + node.else_ for _ in walk(part)) + 1
            node.iter = _wrap(_ROUNDS, node.iter, nodes.Const(size, lineno=node.lineno))
        elif isinstance(node, (nodes.Compare, nodes.Operand)):
            node.expr = _wrap(_SEEN, node.expr)
        elif isinstance(node, nodes.Concat):
            node.nodes = [_wrap(_TEXT, part) for part in node.nodes]
    return tree


def metered_expression(expression: nodes.Expr) -> nodes.Expr:
    """The same for a single expression."""
    output = nodes.Output([expression], lineno=1)
    metered(nodes.Template([output], lineno=1))
    return output.nodes[0]


def _wrap(name: str, node: nodes.Node, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(
        cast(nodes.Expr, node), name, list(args), [], None, None, lineno=node.lineno
    )


@pass_context
def _seen(context: Context, value: Any) -> Any:
    context[METER].charge_text(value)
    return value.output if isinstance(value, StepView) else value


@pass_context
def _text(context: Context, value: Any) -> str:
    context[METER].charge_text(value)
    return as_text(value)


@pass_context
def _rounds(context: Context, value: Any, body_size: int) -> Any:
    """Pay for a whole loop before it begins."""
    if isinstance(value, Undefined):
        as_text(value)
    if isinstance(value, StepView):
        value = value.items
    if not isinstance(value, (list, tuple, dict)):
        raise TypeError("a loop needs a list; for text use .lines or the filter lines")
    context[METER].charge((len(value) + 1) * body_size)
    return value


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    growth = GROWTH.get(name)

    @pass_context
    def run(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter = context[METER]
        meter.charge(sum(map(_weight, (value, *args, *kwargs.values()))))
        if growth is not None:
            meter.charge(growth(value, *args, **kwargs) // 16)
        result = function(value, *args, **kwargs)
        meter.charge_text(result)
        return result

    return run


# --- environment --------------------------------------------------------------------------------


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja2's sandbox without anything that reaches a Python object."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        try:
            if isinstance(obj, StepView) and isinstance(argument, str):
                return obj.field(argument)
            if isinstance(obj, LoopContext):
                return (
                    getattr(obj, argument)
                    if argument in _LOOP_FIELDS
                    else self._none(obj, argument)
                )
            if isinstance(obj, Mapping) or (
                isinstance(obj, (str, list, tuple)) and isinstance(argument, (int, slice))
            ):
                return obj[argument]
        except LookupError:
            pass
        if isinstance(obj, Undefined):
            as_text(obj)
        return self._none(obj, argument)

    def _none(self, obj: Any, name: Any) -> Undefined:
        kind = _KIND_WORDS.get(type(obj), type(obj).__name__)
        return self.undefined(f"there is no {name!r} in this {kind}", obj=obj, name=str(name))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        context[METER].charge(_weight(left) + _weight(right))
        numbers = all(isinstance(side, (int, float)) for side in (left, right))
        texts = all(isinstance(side, (str, StepView)) for side in (left, right))
        if operator == "+" and texts:
            return as_text(left) + as_text(right)
        if not numbers or operator == "**":
            kinds = f"{type(left).__name__} and {type(right).__name__}"
            raise TypeError(f"{operator} does not go with {kinds}; use ~ to join texts")
        return self.binop_table[operator](left, right)

    def call(__self, *_: Any, **__: Any) -> NoReturn:
        raise TemplateMistake("calls are not allowed in a template")


@pass_context
def _finalize(context: Context, value: Any) -> str:
    context[METER].charge_text(value)
    return as_text(value)


def _make_environment() -> _Environment:
    environment = _Environment(
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        # Folding constants would run filters while the file is read, outside the meter.
        optimized=False,
        autoescape=False,
        cache_size=0,
    )
    environment.globals.clear()
    environment.filters.clear()
    environment.filters.update({name: _metered_filter(name, f) for name, f in FILTERS.items()})
    environment.filters.update({_SEEN: _seen, _TEXT: _text, _ROUNDS: _rounds})
    environment.tests.clear()
    environment.tests.update(TESTS)
    return environment


ENVIRONMENT = _make_environment()


def compile_tree(tree: nodes.Template) -> JinjaTemplate:
    """A template that can run.

    Raises:
        TemplateMistake: Python cannot hold an expression that deep.
    """
    try:
        return ENVIRONMENT.from_string(tree)
    except (TemplateError, SyntaxError, RecursionError, MemoryError, ValueError) as exc:
        raise TemplateMistake(f"the template is too complicated: {exc}") from exc
