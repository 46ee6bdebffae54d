"""Who may import what, and what a decision may touch: the shape of the code as a test.

The imports of every module are read from its syntax tree, so nothing is imported to be judged.
`ALLOWED` is the one table; a package that is not in it has no place in the architecture yet.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "maestroctl"

PURE = ("domain", "estimate", "scheduler")
"""Decisions and what they are made of: no clock, I/O, environment or logger; own randomness."""

_SIM = ("domain", "estimate", "scheduler", "predict", "telemetry", "config")
ALLOWED: dict[str, tuple[str, ...]] = {
    "errors": (),
    "domain": (),
    "estimate": ("domain",),
    "scheduler": ("domain", "estimate"),
    "predict": ("domain", "estimate"),
    "config": ("domain", "estimate"),
    # Events and effects are recorded as they are.
    "telemetry": ("domain", "scheduler.events", "scheduler.effects"),
    "replay": ("domain", "estimate", "scheduler", "telemetry"),
    "store": ("domain",),
    "gateway": ("domain", "config", "telemetry"),  # reaches `live` through `gateway.submit`
    "sim": _SIM,
    "live": (*_SIM, "store", "gateway.submit", "gateway.auth"),
    "profiling": ("domain", "estimate", "config", "live.engine"),
    "deploy": ("domain", "config"),
    "experiments": (*_SIM, "sim"),
    "tui": ("domain",),
    "cli": (
        *_SIM,
        "store",
        "gateway",
        "live",
        "profiling",
        "deploy",
        "experiments",
        "sim",
        "tui",
        "replay",
    ),
    "testing": (*_SIM, "store", "live", "sim"),
    "examples": (),
    "__main__": ("cli",),
}
"""Package -> what of maestroctl it may import besides itself, `errors` and the package root."""

THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "errors": (),
    "domain": (),
    "estimate": (),
    "scheduler": (),
    "predict": (
        *("numpy", "lightgbm", "sklearn", "scipy", "quantile_forest", "zstandard", "pyarrow"),
        *("sentence_transformers", "transformers", "torch"),
    ),
    "config": ("tomli", "jinja2", "markupsafe", "simpleeval", "jsonschema", "referencing"),
    "telemetry": ("msgspec", "prometheus_client"),
    "replay": (),
    "store": ("sqlalchemy", "msgspec"),
    "gateway": ("aiohttp", "httptools", "msgspec", "multidict", "yarl"),
    "sim": ("msgspec", "zstandard"),
    "live": (
        *("aiohttp", "asyncssh", "httptools", "msgspec", "multidict", "psutil", "pynvml", "uvloop"),
        *("vllm", "torch", "transformers"),  # inside engine processes alone
    ),
    "profiling": ("aiohttp", "httpx", "msgspec"),
    "deploy": ("asyncssh", "ray", "kubernetes"),
    "experiments": ("numpy", "matplotlib"),
    "tui": ("textual", "rich"),
    "cli": ("typer", "click", "rich", "aiohttp", "msgspec", "psutil", "uvloop"),
    "testing": ("aiohttp", "httptools", "hypothesis", "msgspec", "psutil", "uvloop"),
    "examples": (),
    "__main__": (),
}

FORBIDDEN_IN_PURE = frozenset(
    (
        *("time", "datetime", "sched", "locale", "warnings", "logging", "weakref"),
        *("os", "sys", "io", "pathlib", "shutil", "tempfile", "glob", "platform", "ctypes"),
        *("asyncio", "concurrent", "threading", "multiprocessing", "subprocess", "signal"),
        *("socket", "select", "selectors", "ssl", "http", "urllib", "queue"),
        *("pickle", "sqlite3", "importlib", "secrets", "uuid"),
    )
)
FORBIDDEN_CALLS = frozenset(("open", "print", "input", "eval", "exec", "id", "hash"))
"""`id` and `hash` differ from one process to the next."""


@dataclass(frozen=True)
class Import:
    """One import: the module named, what is taken from it, and whether it runs at import time."""

    module: str
    names: tuple[str, ...]
    line: int
    at_top: bool


@dataclass
class Module:
    """One file of the package."""

    name: str
    path: Path
    tree: ast.Module
    imports: list[Import] = field(default_factory=list)

    @property
    def package(self) -> str:
        """The part after ``maestroctl.``, up to the next dot."""
        return self.name.split(".")[1] if "." in self.name else ""


def read_modules() -> dict[str, Module]:
    """Every module of maestroctl by its dotted name."""
    modules = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        module = Module(name, path, ast.parse(path.read_text(encoding="utf-8"), str(path)))
        module.imports = list(find_imports(module.tree, at_top=True))
        modules[name] = module
    return modules


def find_imports(node: ast.AST, *, at_top: bool) -> Iterator[Import]:
    """Imports below `node`; those under TYPE_CHECKING or in a function do not run at import."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Import(names):
                for alias in names:
                    yield Import(alias.name, (), child.lineno, at_top)
            case ast.ImportFrom(module, names, level):
                assert level == 0, f"line {child.lineno}: write absolute imports"
                yield Import(module or "", tuple(a.name for a in names), child.lineno, at_top)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                yield from find_imports(child, at_top=False)
            case ast.If(test) if "TYPE_CHECKING" in ast.dump(test):
                yield from find_imports(child, at_top=False)
            case _:
                yield from find_imports(child, at_top=at_top)


MODULES = read_modules()
PURE_MODULES = [module for module in MODULES.values() if module.package in PURE]


def targets(one: Import) -> Iterator[str]:
    """Dotted modules that an import of maestroctl reaches: the module, or modules taken from it."""
    if one.names and all(f"{one.module}.{name}" in MODULES for name in one.names):
        yield from (f"{one.module}.{name}" for name in one.names)
    else:
        yield one.module


def our_imports(module: Module) -> Iterator[tuple[str, Import]]:
    for one in module.imports:
        if one.module.split(".")[0] == "maestroctl":
            for target in targets(one):
                yield target, one


def ids(modules: list[Module]) -> list[str]:
    return [module.name for module in modules]


@pytest.mark.parametrize("module", MODULES.values(), ids=list(MODULES))
def test_a_package_imports_only_what_the_table_allows(module: Module) -> None:
    if not module.package:
        assert not list(our_imports(module)), "the package root imports nothing"
        return
    allowed = (module.package, "errors", *ALLOWED[module.package])
    for target, one in our_imports(module):
        inside = target.removeprefix("maestroctl").removeprefix(".")
        fits = not inside or any(inside == a or inside.startswith(f"{a}.") for a in allowed)
        assert fits, f"{module.path}:{one.line}: {module.package} may not import {target}"


@pytest.mark.parametrize("module", MODULES.values(), ids=list(MODULES))
def test_a_package_uses_only_its_third_parties(module: Module) -> None:
    allowed = THIRD_PARTY[module.package] if module.package else ()
    for one in module.imports:
        top = one.module.split(".")[0]
        known = top == "maestroctl" or top in sys.stdlib_module_names or top in allowed
        assert known, f"{module.path}:{one.line}: {module.package} may not import {top}"


def test_simulator_and_live_hosts_do_not_know_each_other() -> None:
    for module in MODULES.values():
        for target, one in our_imports(module):
            pair = {module.package, target.split(".")[1] if "." in target else ""}
            assert pair != {"sim", "live"}, f"{module.path}:{one.line}: imports {target}"


def test_hypothesis_is_at_home_in_strategies_alone() -> None:
    for module in MODULES.values():
        for one in module.imports:
            if one.module.split(".")[0] == "hypothesis":
                assert module.name == "maestroctl.testing.strategies", module.path


def test_nothing_private_crosses_a_module() -> None:
    for module in MODULES.values():
        for target, one in our_imports(module):
            parts = [*target.split("."), *one.names]
            private = [p for p in parts if p.startswith("_") and not p.startswith("__")]
            assert not private, f"{module.path}:{one.line}: imports private {private}"


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph = {
        name: {
            target
            for target, one in our_imports(module)
            if one.at_top and target in MODULES and target != name
        }
        for name, module in MODULES.items()
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


# --- decisions are pure -------------------------------------------------------------------------


@pytest.mark.parametrize("module", PURE_MODULES, ids=ids(PURE_MODULES))
def test_a_decision_has_no_clock_no_io_and_no_environment(module: Module) -> None:
    for one in module.imports:
        top = one.module.split(".")[0]
        assert top not in FORBIDDEN_IN_PURE, f"{module.path}:{one.line}: imports {top}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called = node.func.id
            assert called not in FORBIDDEN_CALLS, f"{module.path}:{node.lineno}: calls {called}"


@pytest.mark.parametrize("module", PURE_MODULES, ids=ids(PURE_MODULES))
def test_chance_comes_from_a_generator_of_ones_own(module: Module) -> None:
    for one in module.imports:
        if one.module == "random":
            assert set(one.names) <= {"Random"}, f"{module.path}:{one.line}"
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "random"
        ):
            assert node.attr == "Random", f"{module.path}:{node.lineno}: random.{node.attr}"


@pytest.mark.parametrize("module", PURE_MODULES, ids=ids(PURE_MODULES))
def test_a_decision_never_walks_over_a_set(module: Module) -> None:
    """Its order is the hash seed's. Only what is a set on its face is seen here."""
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.For, ast.comprehension)):
            walked = node.iter
            is_set = isinstance(walked, (ast.Set, ast.SetComp)) or (
                isinstance(walked, ast.Call)
                and isinstance(walked.func, ast.Name)
                and walked.func.id in ("set", "frozenset")
            )
            assert not is_set, f"{module.path}:{walked.lineno}: iterates over a set"


@pytest.mark.parametrize("module", PURE_MODULES, ids=ids(PURE_MODULES))
def test_no_state_lives_in_modules_or_classes(module: Module) -> None:
    """A `global` statement is the one way to change a module's name from inside."""
    for node in ast.walk(module.tree):
        assert not isinstance(node, (ast.Global, ast.Nonlocal)), f"{module.path}:{node.lineno}"


def test_the_checks_see_what_they_look_for() -> None:
    code = "import time\nif TYPE_CHECKING:\n    import os\ndef f():\n    import io\n"
    found = [(one.module, one.at_top) for one in find_imports(ast.parse(code), at_top=True)]
    assert found == [("time", True), ("os", False), ("io", False)]
    assert len(PURE_MODULES) > 30
