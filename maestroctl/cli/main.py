"""``maestroctl``: the Typer application, and the top of the process.

Command files are imported for their help texts alone; whatever is heavy (HTTP, configuration,
tables) is imported by the command that runs, so that ``--help`` and completion answer at once.
"""

from __future__ import annotations

import inspect
import itertools
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from maestroctl import __version__
from maestroctl.cli import context
from maestroctl.cli.commands import (
    config,
    demo,
    doctor,
    evaluate,
    experiments,
    explain,
    init,
    jobs,
    models,
    node,
    predict,
    predictor,
    profile,
    ps,
    replay,
    serve,
    simulate,
    submit,
    train,
)
from maestroctl.cli.exit_codes import exit_code_of
from maestroctl.cli.terminal import prepare_streams

EPILOG = (
    "Exit codes: 0 ok, 1 failed, 2 wrong arguments or a mistake in a file, 3 nothing answers,"
    " 4 state or port in use, 70 a bug, 130 interrupted."
    " MAESTROCTL_URL and MAESTROCTL_API_KEY name the coordinator and its key;"
    " MAESTROCTL_HOME the folder of state, engines and models."
)

app = typer.Typer(
    name="maestroctl",
    help="Serve many language models to multi-agent workflows on few GPUs.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"maestroctl {__version__}")
        raise typer.Exit


@app.callback()
def main(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show it and exit."),
    ] = False,
) -> None:
    """Serve many language models to multi-agent workflows on few GPUs."""
    del version
    context.terminal.verbose = verbose or debug
    context.terminal.debug = debug


_START = "Start"
_RUN = "Run"
_LOOK = "Look"
_STUDY = "Study"

app.command("demo", rich_help_panel=_START)(demo.demo)
app.command("init", rich_help_panel=_START)(init.init)
app.command("serve", rich_help_panel=_START)(serve.serve)
app.command("submit", rich_help_panel=_RUN)(submit.submit)
app.command("jobs", rich_help_panel=_RUN)(jobs.list_jobs)
app.add_typer(jobs.app, name="job", rich_help_panel=_RUN)
app.add_typer(models.app, name="models", rich_help_panel=_RUN)
app.command("ps", rich_help_panel=_LOOK)(ps.ps)
app.command("explain", rich_help_panel=_LOOK)(explain.explain)
app.command("doctor", rich_help_panel=_LOOK)(doctor.doctor)
app.add_typer(config.app, name="config", rich_help_panel=_LOOK)
app.add_typer(node.app, name="node", rich_help_panel=_LOOK)
app.add_typer(profile.app, name="profile", rich_help_panel=_STUDY)
app.command("replay", rich_help_panel=_STUDY)(replay.replay)
app.add_typer(predictor.app, name="predictor", rich_help_panel=_LOOK)
app.command("predict", rich_help_panel=_STUDY)(predict.predict)
app.command("train", rich_help_panel=_STUDY)(train.train)
app.command("evaluate", rich_help_panel=_STUDY)(evaluate.evaluate)
app.command("simulate", rich_help_panel=_STUDY)(simulate.simulate)
app.add_typer(experiments.app, name="experiments", rich_help_panel=_STUDY)


def _unwrap_help(group: typer.Typer) -> None:
    """Paragraphs of help texts on one line each, so that they fold where the terminal ends.

    Typer keeps the line breaks of a docstring, which are those of the source.
    """
    for command in group.registered_commands:
        text = inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            _unwrap_help(inner.typer_instance)


_unwrap_help(app)


def _let_completion_take_a_shell(words: Sequence[str]) -> None:
    """``--show-completion zsh`` is about zsh, whatever shell runs us.

    Typer's two options are flags that go by the parent process, and would ignore the word behind
    them; with this variable they take it, and refuse a shell that they do not know.
    """
    for word, following in itertools.pairwise(words):
        if word in ("--show-completion", "--install-completion") and following[:1] != "-":
            os.environ["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"


def run() -> None:
    """Run the command line; every error becomes one paragraph and an exit code."""
    prepare_streams()
    _let_completion_take_a_shell(sys.argv[1:])
    try:
        app(prog_name="maestroctl")
    except Exception as exc:
        context.terminal.error(exc)
        sys.exit(exit_code_of(exc))
