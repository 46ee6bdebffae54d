"""Sandboxed templates: what a workflow file may compute, and how little that is.

A workflow file is data from somebody who may not be trusted, and its templates are filled with
what models wrote. Jinja2's sandbox is the base; on top of it the language is cut down until its
cost is bounded by construction:

- the syntax tree may hold only `template_syntax.NODES`: text, values, filters, tests, `if` and
  `for`. No calls, no assignment, no macros, no imports, no powers;
- there are no globals, and a name is an error unless it is in scope (`StrictUndefined`);
- attributes are looked up in tables, in steps and in `loop`, never on Python objects;
- only the filters of `config.template_filters` and the tests of `template_syntax.TESTS` exist;
- every filter, comparison, concatenation and loop round is paid from one budget per rendering,
  in proportion to the text it touches; the output has a limit of its own. The charges are written
  into the tree as filters that a template itself cannot name.

All of this is checked when the file is read, so a mistake is found before anything starts.

See also: `config.expressions` (``until``), `config.workflow_checks` (which names are in scope).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError, Undefined, nodes
from jinja2.environment import TemplateExpression

from maestroctl.config.step_view import StepView
from maestroctl.config.template_filters import as_text
from maestroctl.config.template_meter import (
    BUDGET,
    ENVIRONMENT,
    METER,
    Meter,
    compile_tree,
    metered,
    metered_expression,
)
from maestroctl.config.template_syntax import (
    TemplateMistake,
    find_references,
    only_expression,
    parse_template,
)

MAX_OUTPUT = 4 << 20
"""Characters of one rendered text."""
MAX_ITEMS = 1000
"""Items of one fan-out."""


class PromptTemplate:
    """A template of text, checked and compiled.

    Args:
        source: as written in the file.

    Raises:
        TemplateMistake: it is not valid, or uses something that is not allowed.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        tree = parse_template(ENVIRONMENT, source)
        self.references = find_references(tree)
        self._template = compile_tree(metered(tree))

    def render(self, scope: Mapping[str, Any]) -> str:
        """The text for one set of values.

        Raises:
            TemplateMistake: a value is missing or of the wrong kind, or a limit was reached.
        """
        with _mistakes():
            context = self._template.new_context({**scope, METER: Meter(BUDGET)})
            return _collect(self._template.root_render_func(context))


class ListTemplate:
    """A template that is one ``{{ expression }}`` and gives a list: `for_each`.

    Args:
        source: as written in the file.

    Raises:
        TemplateMistake: it is not valid, or is more than one expression.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        tree = parse_template(ENVIRONMENT, source)
        self.references = find_references(tree)
        expression = only_expression(tree)
        target = nodes.Name("result", "store", lineno=1)
        assign = nodes.Assign(target, metered_expression(expression), lineno=1)
        self._expression = TemplateExpression(
            compile_tree(nodes.Template([assign], lineno=1)), undefined_to_none=False
        )

    def items(self, scope: Mapping[str, Any]) -> list[Any]:
        """The list for one set of values.

        Raises:
            TemplateMistake: it is no list, or has more than `MAX_ITEMS` items.
        """
        with _mistakes():
            value = self._expression({**scope, METER: Meter(BUDGET)})
            if isinstance(value, Undefined):
                as_text(value)
        if not isinstance(value, (list, tuple)):
            kind = "a text" if isinstance(value, (str, StepView)) else f"a {type(value).__name__}"
            raise TemplateMistake(
                f"for_each gave {kind}, not a list", hint="use .lines, .items or .json of a step"
            )
        if len(value) > MAX_ITEMS:
            raise TemplateMistake(f"for_each gave {len(value)} items, at most {MAX_ITEMS}")
        return list(value)


@lru_cache(maxsize=1024)
def prompt_template(source: str) -> PromptTemplate:
    """`PromptTemplate`, kept: a workflow is checked, then run, often many times over."""
    return PromptTemplate(source)


@lru_cache(maxsize=256)
def list_template(source: str) -> ListTemplate:
    """`ListTemplate`, kept like `prompt_template`."""
    return ListTemplate(source)


def _collect(chunks: Iterable[str]) -> str:
    parts: list[str] = []
    length = 0
    for chunk in chunks:
        length += len(chunk)
        if length > MAX_OUTPUT:
            raise TemplateMistake(f"the text is longer than {MAX_OUTPUT} characters")
        parts.append(chunk)
    return "".join(parts)


@contextmanager
def _mistakes() -> Iterator[None]:
    """Turns what goes wrong while rendering into a `TemplateMistake`."""
    try:
        yield
    except TemplateMistake:
        raise
    except TemplateError as exc:
        raise TemplateMistake(exc.message or "the template failed") from exc
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as exc:
        raise TemplateMistake(str(exc) or type(exc).__name__) from exc
