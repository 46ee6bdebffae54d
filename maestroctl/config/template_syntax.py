"""The language of templates: which parts of Jinja2's syntax a workflow file may use.

Text, values, filters, tests, ``if`` and ``for``. No calls, no assignment, no macros, no imports, no
powers: with these gone, the cost of a template is bounded by its length, its values and its loops,
and `config.template_meter` charges for those.

See also: `config.templates` for the whole picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError, TemplateSyntaxError, Undefined, nodes
from jinja2.meta import find_undeclared_variables

from maestroctl.config.kinds import did_you_mean
from maestroctl.config.template_filters import FILTERS

MAX_TEMPLATE = 64 << 10
"""Characters of one template."""

RESERVED_NAMES = (
    "input",
    "steps",
    "previous",
    "visit",
    "item",
    "index",
    "vars",
    "loop",
)
"""Names with a meaning; a loop variable may not hide one."""


NODES = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.If,
    nodes.For,
    nodes.Name,
    nodes.Const,
    nodes.List,
    nodes.Tuple,
    nodes.CondExpr,
    nodes.Filter,
    nodes.Test,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Slice,
    nodes.Concat,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Add,
    nodes.Sub,
    nodes.Mul,
    nodes.Div,
    nodes.FloorDiv,
    nodes.Mod,
    nodes.Neg,
    nodes.Pos,
    nodes.Keyword,
)

_HINTS: Mapping[type[nodes.Node], str] = {
    nodes.Call: "use a filter, for instance {{ input | upper }}",
    nodes.Assign: "write the value where it is needed",
    nodes.Pow: "multiply instead",
}

TESTS: Mapping[str, Callable[[Any], bool]] = {
    "defined": lambda value: not isinstance(value, Undefined),
    "undefined": lambda value: isinstance(value, Undefined),
    "none": lambda value: value is None,
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "mapping": lambda value: isinstance(value, Mapping),
    "sequence": lambda value: isinstance(value, (list, tuple)),
    "odd": lambda value: value % 2 == 1,
    "even": lambda value: value % 2 == 0,
}


class TemplateMistake(ValueError):
    """A template that cannot be accepted, or a rendering that failed.

    Args:
        message: what is wrong; names the line of the template where it is known.
        hint: what to try.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class References:
    """What a template reads.

    Attributes:
        names: top-level names that come from outside.
        steps: (step, field) of every ``steps.STEP.FIELD``; field None = the step as a whole.
        variables: names after ``vars.``.
        guarded: names that the template can do without: it asks whether they are defined, or has
            a default.
    """

    names: frozenset[str]
    steps: frozenset[tuple[str, str | None]]
    variables: frozenset[str]
    guarded: frozenset[str] = frozenset()


def parse_template(environment: Environment, source: str) -> nodes.Template:
    """The tree of a template in which every node is allowed.

    Raises:
        TemplateMistake: it is not valid, or uses something that is not allowed.
    """
    if len(source) > MAX_TEMPLATE:
        raise TemplateMistake(f"the template has {len(source)} characters, at most {MAX_TEMPLATE}")
    try:
        tree = environment.parse(source)
        for node in walk(tree):
            _check_node(node)
    except TemplateSyntaxError as exc:
        raise TemplateMistake(f"{exc.message} (line {exc.lineno} of the template)") from exc
    except (RecursionError, MemoryError) as exc:
        raise TemplateMistake("the template is nested too deeply") from exc
    except ValueError as exc:
        if isinstance(exc, TemplateMistake):
            raise
        raise TemplateMistake(f"the template cannot be read: {exc}") from exc
    return tree


def walk(tree: nodes.Node) -> Iterator[nodes.Node]:
    """Every node, without recursion: the tree may be as deep as the parser could stand."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.iter_child_nodes())


def _check_node(node: nodes.Node) -> None:
    if not isinstance(node, NODES):
        what = type(node).__name__.lower()
        hint = next((text for kind, text in _HINTS.items() if isinstance(node, kind)), None)
        _refuse(node, f"{what} is not allowed in a template", hint)
    if isinstance(node, nodes.Filter):
        if node.node is None or node.name not in FILTERS:
            _refuse(node, f"unknown filter {node.name!r}", did_you_mean(node.name, FILTERS))
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            _refuse(node, "arguments of a filter must be written out", None)
    if isinstance(node, nodes.Test) and node.name not in TESTS:
        _refuse(node, f"unknown test {node.name!r}", did_you_mean(node.name, TESTS))
    if isinstance(node, nodes.For) and node.recursive:
        _refuse(node, "a loop cannot be recursive", None)
    if isinstance(node, nodes.Name) and node.ctx != "load" and _is_reserved(node.name):
        _refuse(node, f"{node.name!r} cannot be the name of a loop variable", None)
    if isinstance(node, nodes.Getattr) and node.attr.startswith("_"):
        _refuse(node, f"{node.attr!r}: names that start with an underscore are out of reach", None)


def _is_reserved(name: str) -> bool:
    return name in RESERVED_NAMES or name.startswith("_")


def _refuse(node: nodes.Node, message: str, hint: str | None) -> NoReturn:
    raise TemplateMistake(f"{message} (line {node.lineno} of the template)", hint=hint)


def only_expression(tree: nodes.Template) -> nodes.Expr:
    """The one ``{{ expression }}`` that a template consists of.

    Raises:
        TemplateMistake: it is anything else.
    """
    parts = [part for output in tree.body for part in getattr(output, "nodes", [output])]
    parts = [p for p in parts if not (isinstance(p, nodes.TemplateData) and not p.data.strip())]
    if len(parts) != 1 or not isinstance(parts[0], nodes.Expr) or _is_text(parts[0]):
        raise TemplateMistake(
            "for_each must be one expression that gives a list",
            hint='for instance "{{ steps.plan.lines }}"',
        )
    return parts[0]


def _is_text(node: nodes.Node) -> bool:
    return isinstance(node, nodes.TemplateData)


def find_references(tree: nodes.Template) -> References:
    """What the template reads from outside.

    Raises:
        TemplateMistake: ``steps`` or ``vars`` stands without a name after it.
    """
    steps: set[tuple[str, str | None]] = set()
    variables: set[str] = set()
    parents = {id(child): node for node in walk(tree) for child in node.iter_child_nodes()}
    try:
        names = frozenset(find_undeclared_variables(tree))
    except RecursionError as exc:
        raise TemplateMistake("the template is nested too deeply") from exc
    except TemplateError as exc:
        raise TemplateMistake(f"the template cannot be read: {exc}") from exc
    for node in walk(tree):
        if isinstance(node, nodes.Name) and node.ctx == "load" and node.name in ("steps", "vars"):
            parent = parents.get(id(node))
            key = _constant_key(parent)
            if key is None:
                example = 'steps.NAME or steps["NAME"]' if node.name == "steps" else "vars.NAME"
                _refuse(node, f"{node.name} must be followed by a name, as in {example}", None)
            if node.name == "vars":
                variables.add(key)
            else:
                steps.add((key, _constant_key(parents.get(id(parent)), of=parent)))
    guarded = frozenset(
        node.node.name
        for node in walk(tree)
        if isinstance(node, (nodes.Filter, nodes.Test))
        and node.name in ("default", "d", "defined", "undefined")
        and isinstance(node.node, nodes.Name)
    )
    return References(names, frozenset(steps), frozenset(variables), guarded)


def _constant_key(node: nodes.Node | None, of: nodes.Node | None = None) -> str | None:
    """NAME of ``x.NAME`` or ``x["NAME"]``; with `of`, only when x is that node."""
    if isinstance(node, (nodes.Getattr, nodes.Getitem)) and (of is None or node.node is of):
        if isinstance(node, nodes.Getattr):
            return node.attr
        if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            return node.arg.value
    return None
