"""The command `marble`. Each verb is a small file; none of them holds logic."""

from __future__ import annotations

from typing import Annotated

import typer

import marble
from marble.cli import (
    bench,
    boundary,
    compare,
    diagnose,
    doctor,
    eval,
    geometry,
    merge,
    prompts,
    recipes,
    report,
    sample,
    serve,
    study,
    train,
)
from marble.cli.usage import Command, Group, RecipeCommand

app = typer.Typer(
    name="marble",
    cls=Group,
    help="Fine-tune diffusion models on many rewards at once.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"marble {marble.__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Options of the command itself; every verb has its own."""


app.command("train", cls=RecipeCommand)(train.train)
app.command("eval", cls=RecipeCommand)(eval.evaluate)
app.command("compare", cls=Command)(compare.compare)
app.command("report", cls=Command)(report.report)
app.command("diagnose", cls=Command)(diagnose.diagnose)
app.command("geometry", cls=Command)(geometry.geometry)
app.command("sample", cls=Command)(sample.sample)
app.command("merge", cls=Command)(merge.merge)
app.command("study", cls=Command)(study.study)
app.command("serve", cls=Command)(serve.serve)
app.command("prompts", cls=Command)(prompts.prompts)
app.command("recipes", cls=RecipeCommand)(recipes.recipes)
app.command("doctor", cls=RecipeCommand)(doctor.doctor)
app.add_typer(bench.app, name="bench")


def main() -> None:
    """A user's mistake is one clear line and status 2, never a traceback."""
    boundary.run(lambda: app(prog_name="marble"))
