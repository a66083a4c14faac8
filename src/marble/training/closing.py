"""The end of a run: the table before → after on held-out prompts, the report, the model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from marble.errors import MarbleError
from marble.evaluation import compare_table
from marble.harmonise import Steerable
from marble.recipe import Recipe
from marble.training.display import signed


def gains_of(run: Path) -> dict[str, Any] | None:
    """Base and trained scores with paired gains, from the run's own evaluations."""
    rows = compare_table([run])["rows"]
    if len(rows) < 2 or "gains" not in rows[1]:
        return None
    return {"base": rows[0]["scores"], "trained": rows[1]["scores"], **rows[1]}


def closing_table(
    run: Path, checkpoint: Path, trained: list[str], console: Console, best: str | None = None
) -> None:
    """Prints before → after for every score, and where everything lies; `best`: which step that
    is, and why."""
    found = gains_of(run)
    if found is not None:
        table = Table(title="held-out prompts, same seeds", box=None, padding=(0, 1))
        table.add_column("score", no_wrap=True)
        for heading in ("base", "trained", "gain", "95 % interval", "won"):
            table.add_column(heading, justify="right", no_wrap=True)
        known = {name: gain for name, gain in found["gains"].items() if gain["mean"] is not None}
        for name in filter(trained.__contains__, known):
            table.add_row(*_row(name, known[name], found))
        others = [name for name in known if name not in trained]
        if others:
            table.add_row(Text("not trained on", style="dim"))
        for name in others:
            table.add_row(*_row(name, known[name], found))
        console.print(table)
    if best is not None:
        console.print(f"best    {best}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"LoRA    {checkpoint / 'lora'}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"folder  {run}", highlight=False, markup=False, soft_wrap=True)
    told = write_report(run)
    console.print(f"report  {told}", highlight=False, markup=False, soft_wrap=True)


def _row(name: str, gain: dict[str, Any], found: dict[str, Any]) -> list[Text]:
    sure = gain["lo"] > 0 or gain["hi"] < 0
    colour = ("green" if gain["mean"] > 0 else "red") if sure else "yellow"
    cells = [
        name,
        f"{found['base'][name]['mean']:.3f}",
        f"{found['trained'][name]['mean']:.3f}",
        signed(gain["mean"]),
        f"{signed(gain['lo'])} … {signed(gain['hi'])}",
        f"{found['won'][name]:.0%}",
    ]
    return [Text(cell, style=colour if number == 3 else "") for number, cell in enumerate(cells)]


def write_report(run: Path) -> Path | str:
    """The report page, or why there is none: a run that is done does not fail for want of it."""
    try:
        import marble.report

        return marble.report.write([run], run / "report.html")
    except (ImportError, MarbleError) as error:
        return f"not drawn ({error}); afterwards: marble report {run}"


def write_model_card(path: Path, recipe: Recipe, run: Path) -> None:
    """Recipe, table and seeds, in the form that model hubs show."""
    found = gains_of(run)
    lines = [
        "---",
        f"base_model: {recipe.model.path}",
        "library_name: diffusers",
        "tags: [lora, text-to-image, reinforcement-learning, marble]",
        "---",
        "",
        f"# LoRA trained on {len(recipe.rewards.train)} rewards at once",
        "",
        f"Recipe `{recipe.name}`, method `{recipe.balance.method}`, {recipe.train.steps} optimiser "
        f"steps, seed {recipe.train.seed}. Load it with diffusers:",
        "",
        "```python",
        *_loading(recipe),
        "```",
        "",
        "Only the transformer was trained; diffusers may note while loading that there is nothing "
        "for the text encoders.",
        "",
    ]
    if issubclass(recipe.balance.rule, Steerable):
        lines += _sliders(recipe)
    if found is not None:
        lines += [
            f"Held-out prompts, one seed list for both models (`eval.seed: {recipe.eval.seed}`); "
            "gain with its 95 % bootstrap interval over prompts.",
            "",
            "| score | base | trained | gain | interval |",
            "|---|---|---|---|---|",
        ]
        for name, gain in found["gains"].items():
            if gain["mean"] is None:
                continue
            before, after = (found[key][name]["mean"] for key in ("base", "trained"))
            lines.append(
                f"| {name} | {before:.4f} | {after:.4f} | {gain['mean']:+.4f} "
                f"| {gain['lo']:+.4f} … {gain['hi']:+.4f} |"
            )
        lines.append("")
    lines += ["## The recipe", "", "```yaml", recipe.dump().rstrip(), "```", ""]
    path.write_text("\n".join(lines))


def _sliders(recipe: Recipe) -> list[str]:
    """How the weight of each reward is chosen in stock diffusers."""
    names = ["shared", *recipe.rewards.names]
    rule = recipe.balance.rule(**recipe.balance.rule_options)
    top = min(rule.options.most, len(names) - 1)
    return [
        "## Sliders",
        "",
        "The file above has every reward at its default weight, 1. To choose them, load the parts "
        f"in its place; `shared` stays at 1, the others go from 0 to {top:g} (`sliders.json`):",
        "",
        "```python",
        f"names = {names}",
        "for name in names:",
        '    pipe.load_lora_weights("path/to/this/folder/sliders", '
        'weight_name=f"{name}.safetensors", adapter_name=name)',
        f"pipe.set_adapters(names, {[1.0] * len(names)})",
        "```",
        "",
    ]


def _loading(recipe: Recipe) -> list[str]:
    """Python that loads and draws, with the settings of the evaluation."""
    from marble.models.build import stock_call

    try:
        pipeline, call = stock_call(recipe)
    except MarbleError as error:  # moved since, or no pipeline at all: the card is written anyway
        return [f"# {error}"]
    imports, where = [f"from diffusers import {pipeline}"], f'"{recipe.model.path}"'
    if recipe.model.path == "studio":
        imports = ["from importlib.resources import files", "", *imports]
        where = 'files("marble") / "studio/assets/pipeline"'
    options = [f"{k}={v:g}" if isinstance(v, float) else f"{k}={v!r}" for k, v in call.items()]
    return [
        *imports,
        "",
        f"pipe = {pipeline}.from_pretrained({where})",
        'pipe.load_lora_weights("path/to/this/folder")',
        f'pipe("your prompt", {", ".join(options)}).images[0].save("picture.png")',
    ]
