"""The command `marble`. Each verb is a small file; none of them holds logic."""

from __future__ import annotations

import typer

from marble.cli import (
    bench,
    boundary,
    compare,
    doctor,
    eval,
    geometry,
    recipes,
    report,
    sample,
    serve,
    study,
    train,
)

app = typer.Typer(
    name="marble",
    help="Fine-tune diffusion models on many rewards at once.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command("train")(train.train)
app.command("eval")(eval.evaluate)
app.command("compare")(compare.compare)
app.command("report")(report.report)
app.command("geometry")(geometry.geometry)
app.command("sample")(sample.sample)
app.command("study")(study.study)
app.command("serve")(serve.serve)
app.command("recipes")(recipes.recipes)
app.command("doctor")(doctor.doctor)
app.add_typer(bench.app, name="bench")


def main() -> None:
    """A user's mistake is one clear line and status 2, never a traceback."""
    boundary.run(app)
