"""A stranger's reward, word for word from the README and from the documentation."""

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from marble.evaluation import compare_table
from marble.recipe import load_recipe
from marble.training.run import train

ROOT = Path(__file__).parents[2]
TOLD = {"README.md": "Add a reward of your own", "docs/training.md": "Your own reward"}


@pytest.fixture(params=TOLD)
def yaml_file(request, tmp_path, monkeypatch) -> Path:
    """The section's two files as a reader would make them, in the current folder."""
    text = (ROOT / request.param).read_text()
    section = text.split(f"## {TOLD[request.param]}\n")[1].split("\n## ")[0]
    monkeypatch.chdir(tmp_path)
    for text in re.findall(r"```(?:python|yaml)\n(.*?)```", section, re.DOTALL):
        name = text.split("\n")[0].removeprefix("# ")
        Path(name).write_text(text)
    return Path("warm.yaml")


def inherited(yaml_file: Path) -> list[str]:
    """The rewards that it adds to."""
    return load_recipe(str(yaml_file)).rewards.names[:-1]


def test_it_takes_under_five_lines(yaml_file):
    lines = [line for line in yaml_file.read_text().splitlines() if line.strip()]
    lines = [line for line in lines if not line.lstrip().startswith("#")]
    assert len(lines) < 5
    recipe = load_recipe(str(yaml_file))
    assert recipe.rewards.names == [*load_recipe("studio").rewards.names, "warmth"]


def check_run(folder: Path, others: list[str]) -> None:
    """Balanced, logged and evaluated like every other reward."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    first, other = rows[0], others[0]
    like_the_others = {
        k.replace(other, "warmth") for k in first if f"/{other}" in k and "|" not in k
    }
    assert like_the_others <= set(first)
    assert {f"cos/{other}|warmth", f"cos/warmth|{other}"} & set(first)
    assert first["reward/warmth/applicable"] == 1 and first["reward/warmth/informative"] == 1
    assert first["alpha/warmth"] > 0 and first["grad_norm/warmth"] > 0
    assert sum(first[f"alpha/{name}"] for name in [*others, "warmth"]) == pytest.approx(1)
    evals = [json.loads(line) for line in (folder / "evals.jsonl").read_text().splitlines()]
    assert all("warmth" in record["rewards"] for record in evals)
    index = json.loads((folder / evals[-1]["folder"] / "index.json").read_text())
    assert all(-1 <= sample["scores"]["warmth"] <= 1 for sample in index["samples"])
    (_, row) = compare_table([folder])["rows"]
    assert row["gains"]["warmth"]["n"] == len(index["samples"])
    card = next(folder.glob("checkpoints/step-*/lora/README.md")).read_text()
    assert "| warmth |" in card


def test_a_run_with_it(toy, yaml_file):
    """On the toy's model and beside two of its rewards, so that it takes seconds."""
    toys = ", ".join(f"{{name: {n}, reward: '{toy.rewards_file}:{n}'}}" for n in ("red", "dark"))
    drop = inherited(yaml_file)
    model = [word for word in toy.overrides() if not word.startswith("rewards.train")]
    quick = ["train.steps=2", "rollout.steps=2", "eval.prompts=1", "log.harmony_every=1"]
    quick += ["data.prompts_per_epoch=2", "data.images_per_prompt=3", "train.batch_size=6"]
    recipe = load_recipe(
        str(yaml_file),
        [*model, *quick, f"rewards.drop=[{', '.join(drop)}]", f"rewards.add=[{toys}]"],
    )
    train(recipe, Path("run"), device="cpu", console=Console(quiet=True))
    check_run(Path("run"), ["red", "dark"])


@pytest.mark.slow
def test_a_run_with_it_on_the_studio(yaml_file):
    """With `studio-fast`'s settings, whichever recipe it extends."""
    text = yaml_file.read_text().replace("extends: studio\n", "extends: studio-fast\n")
    yaml_file.write_text(text)
    train(load_recipe(str(yaml_file)), Path("run"), device="cpu", console=Console(quiet=True))
    check_run(Path("run"), inherited(yaml_file))
