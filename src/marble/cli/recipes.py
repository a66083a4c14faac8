"""`marble recipes`"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from marble.cli.common import print_json, table_console
from marble.cli.completion import recipe_words
from marble.cli.options import Json, one_recipe


def recipes(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [KEY=VALUE]...",
            help="Show this recipe, resolved; with --fields: sections or fields to explain.",
            autocompletion=recipe_words,
        ),
    ] = None,
    as_json: Json = False,
    fields: Annotated[
        bool, typer.Option("--fields", help="Every field with its default and meaning.")
    ] = False,
) -> None:
    """List the recipes, show one in full, or explain every field.

    Examples:

    - `marble recipes`

    - `marble recipes studio train.steps=10`

    - `marble recipes --fields`

    - `marble recipes --fields balance`
    """
    from marble.recipe import list_recipes, load_recipe

    if fields:
        from marble.cli.fields import as_records, chosen_fields, show_fields

        docs = chosen_fields(words or [])
        if as_json:
            print_json({"fields": as_records(docs)})
        else:
            show_fields(docs, table_console())
        return
    name, overrides = one_recipe(words)
    if name or overrides:
        recipe = load_recipe(name or "studio", overrides)
        if as_json:
            print_json(recipe.model_dump(mode="json"))
        else:
            typer.echo(recipe.dump(), nl=False)
        return
    found = list_recipes()
    if as_json:
        print_json({"recipes": found})
        return
    table = Table(box=None, header_style="dim")
    table.add_column("recipe", no_wrap=True)
    table.add_column("what it is for")
    for known, about in found.items():
        table.add_row(known, about)
    table_console().print(table)
