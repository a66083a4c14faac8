"""Every code block of README and docs: commands parse and run, Python runs, recipes load.

Here is what takes seconds. `test_blocks_run.py` runs the commands; README.md and docs/sd35.md have
tests of their own that run theirs on tiny weights.
"""

import importlib.util
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer
from _blocks import LANGUAGES, PAGES, ROOT, blocks, commands, inline, write_files

from marble.cli import app
from marble.cli.common import find_policy
from marble.cli.options import one_recipe
from marble.recipe import Recipe, load_recipe
from marble.studio import TRAINED
from marble.study import load_study

WITH_WEIGHTS = ("docs/sd35.md", "docs/steer.md")
"""Pages whose Python needs a download or a run: tests/test_docs_sd35.py has tiny weights for it,
and tests/training/test_steer_export.py runs the same lines from a run's model card."""


def where(block):
    return f"{block.page}:{block.line}"


def test_every_block_says_what_it_is():
    assert [where(b) for b in blocks() if b.language not in LANGUAGES] == []
    fences = sum(p.read_text().count("\n```") + p.read_text().startswith("```") for p in PAGES)
    assert fences == 2 * len(blocks())


@pytest.mark.parametrize("block", blocks("yaml"), ids=where)
def test_recipes_load(block, tmp_path, monkeypatch):
    monkeypatch.chdir(write_files(block.page, tmp_path))
    body = block.body if "extends:" in block.body else "extends: studio\n" + block.body
    Path("shown.yaml").write_text(body)
    assert load_recipe("shown.yaml").rewards.train


@pytest.mark.parametrize("block", blocks("toml"), ids=where)
def test_toml_is_toml(block):
    assert tomllib.loads(block.body)


@pytest.mark.parametrize(
    "block", [b for b in blocks("python") if b.page not in WITH_WEIGHTS], ids=where
)
def test_python_runs(block, tmp_path, monkeypatch, request):
    monkeypatch.chdir(write_files(block.page, tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    if "runs/mine" in block.body:
        Path("runs").mkdir()
        Path("runs/mine").symlink_to(request.getfixturevalue("trained"))
    exec(compile(block.body, where(block), "exec"), {"__name__": "shown"})


def parse(words):
    """As the command line would, without running anything; a mistake raises."""
    verb, rest = typer.main.get_command(app), list(words)
    while hasattr(verb, "commands"):
        name, *rest = rest
        verb = verb.commands[name]
    params = verb.make_context(name, rest).params
    if params.get("fields"):
        assert set(params["words"] or ()) <= set(Recipe.model_fields)
    elif params.get("words") and name in ("train", "doctor", "recipes"):
        recipe, overrides = one_recipe(params["words"])
        load_recipe(recipe or "studio", overrides)
    if name in ("sample", "eval") and params["target"] in ("base", TRAINED):
        find_policy(params["target"], params["recipe"], params.get("overrides") or [])
    if name == "study":
        for path in params["paths"]:
            load_study(ROOT / path)


def check(words):
    name, *rest = words
    if name == "marble":
        parse(rest)
    elif name == "make":
        done = subprocess.run(["make", "-n", *rest], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    elif name == "python" and rest[0] != "-m":
        compile((ROOT / rest[0]).read_text(), rest[0], "exec")
    elif name == "python" and rest[1].startswith("marble"):
        assert importlib.util.find_spec(rest[1])
    elif name == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        package, _, asked = rest[-1].rstrip("]").partition("[")
        assert package == extras["name"]
        assert set(asked.split(",")) <= set(extras["optional-dependencies"])
    elif name == "accelerate":
        from accelerate.commands.launch import launch_command_parser

        told = launch_command_parser().parse_args(rest[1:])
        assert told.module and told.training_script == "marble"
        parse(told.training_script_args)
    elif name == "torchrun":
        from torch.distributed.run import parse_args

        told = parse_args(rest)
        assert told.module and told.training_script == "marble"
        parse(told.training_script_args)
    else:  # the hub's own command, and a server of others'
        assert words[:2] in (["hf", "auth"], ["hf", "download"]) or "sglang" in words[2]


@pytest.mark.parametrize("block", blocks("sh"), ids=where)
def test_commands_parse(block, tmp_path, monkeypatch):
    found = commands(block.body, tmp_path)
    assert found
    monkeypatch.chdir(write_files(block.page, tmp_path))
    for words in found:
        check(words)


@pytest.mark.parametrize(("page", "command"), inline())
def test_commands_in_sentences_parse(page, command, tmp_path, monkeypatch):
    write_files("README.md", tmp_path)  # docs/studio.md has times of its commands
    monkeypatch.chdir(write_files(page, tmp_path))
    words = shlex.split(command.split(" > ")[0])
    if len(words) > 2:
        check(words)
    else:  # the verb's name
        assert words[1] in typer.main.get_command(app).commands


def test_a_wrong_command_is_noticed(tmp_path):
    assert commands(
        "for m in a b; do\n  marble train x.m=$m \\\n    --out r # no\ndone", tmp_path
    ) == [["marble", "train", f"x.m={m}", "--out", "r"] for m in "ab"]
    for body in (
        "mabrle train",
        "marble train --stepps 3",
        "marble train optim.lrr=1",
        "marble eval studio-trained --recipe studio",
    ):
        with pytest.raises(BaseException, match=r"not found|stepps|lrr|--recipe"):
            for words in commands(body, tmp_path):
                check(words)
