"""A family from outside the package: the example of docs/extend-model.md, as it stands there."""

import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from _families import PROMPTS, SEEDS, STEPS

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from _survive import make_world, rows

from marble.cli import main
from marble.errors import MarbleError
from marble.models import check, load, registry
from marble.models.quiet import quiet

PAGE = (Path(__file__).parents[2] / "docs" / "extend-model.md").read_text()


@pytest.fixture(scope="module")
def aura(tmp_path_factory):
    """The page's file, and a tiny pipeline that it made."""
    folder = tmp_path_factory.mktemp("aura")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    file = folder / "aura.py"
    file.write_text(code)
    family = registry.resolve(f"{file}:AuraFlow")
    return file, family.tiny(folder / "model")


def test_it_draws_what_stock_diffusers_draws(aura):
    import diffusers

    file, folder = aura
    adapter = load(str(folder), family=f"{file}:AuraFlow")
    latents = adapter.sample(adapter.encode(PROMPTS), SEEDS, steps=STEPS, sampler="euler")
    ours = adapter.decode(latents).numpy().astype(int)
    with quiet():
        pipeline = diffusers.AuraFlowPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    for i, prompt in enumerate(PROMPTS):
        theirs = pipeline(
            prompt,
            num_inference_steps=STEPS,
            guidance_scale=1.0,
            height=32,
            width=32,
            generator=torch.Generator().manual_seed(SEEDS[i]),
            output_type="np",
        ).images[0]
        theirs = (theirs * 255).round().astype(int).transpose(2, 0, 1)
        assert np.abs(ours[i] - theirs).max() <= 1


def marble(monkeypatch, *words) -> int:
    monkeypatch.setattr(sys, "argv", ["marble", *map(str, words)])
    try:
        main()
    except SystemExit as leaving:
        return int(leaving.code or 0)
    return 0


def test_train_and_doctor_with_it_in_a_recipe(aura, tmp_path, monkeypatch, capfd):
    file, folder = aura
    recipe = make_world(tmp_path / "world")
    monkeypatch.syspath_prepend(str(file.parent))
    words = [f"model.path={folder}", "model.family=aura:AuraFlow", "train.steps=2"]
    words += ["eval.every=0", "eval.at_start=false", "log.samples_every=0", "eval.prompts=1"]
    out = tmp_path / "run"
    assert marble(monkeypatch, "train", recipe, *words, "--device", "cpu", "--out", out) == 0
    assert [row["step"] for row in rows(out)] == [1, 2]
    card = next(out.glob("checkpoints/step-*/lora/README.md")).read_text()
    assert "from diffusers import AuraFlowPipeline" in card
    capfd.readouterr()
    marble(monkeypatch, "doctor", recipe, *words)
    assert "AuraFlowPipeline in" in capfd.readouterr().out


def test_without_it_the_pipeline_is_refused_in_one_line(aura, tmp_path, monkeypatch, capfd):
    _, folder = aura
    recipe = make_world(tmp_path / "world")
    assert (
        marble(monkeypatch, "train", recipe, f"model.path={folder}", "--out", tmp_path / "r") == 2
    )
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert "holds a AuraFlowPipeline, which is not supported" in line and "FluxPipeline" in line
    assert not (tmp_path / "r").exists()


def test_an_entry_point_is_found_by_the_pipeline(aura, monkeypatch):
    file, folder = aura
    monkeypatch.syspath_prepend(str(file.parent))
    point = EntryPoint("auraflow", "aura:AuraFlow", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    registry.families.cache_clear()
    try:
        assert check(str(folder))[1].pipeline == "AuraFlowPipeline"
    finally:
        registry.families.cache_clear()


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("aura", "'aura' is not of the form package.module:Class"),
        ("nowhere:AuraFlow", "nowhere:AuraFlow: cannot import nowhere: No module named"),
        ("nowhere.py:AuraFlow", "nowhere.py does not exist"),
        ("marble.models.sd3:Other", "marble.models.sd3 has no 'Other'"),
        ("marble.models.sd3:SD3Adapter", "is no marble.models.family.Family"),
        ("marble.models.sd3:SD3", "is for a StableDiffusion3Pipeline"),
    ],
)
def test_a_family_that_cannot_be_had(aura, family, said):
    with pytest.raises(MarbleError, match=said) as caught:
        check(str(aura[1]), family=family)
    assert "\n" not in str(caught.value)


def test_no_other_file_names_a_family():
    """One line in the registry is all: its class and its pipeline appear nowhere else in src/."""
    source = Path(registry.__file__).parents[1]
    own = {Path(sys.modules[f.__module__].__file__) for f in registry.families()}
    words = {f.pipeline for f in registry.families()} | {f.__module__ for f in registry.families()}
    for file in source.rglob("*.py"):
        if file in own or file.name == "registry.py" or "pretrain" in file.parts:
            continue  # the studio's making, and its bench below, are about one model on purpose
        if file.name == "bench_studio.py":
            continue
        text = file.read_text()
        assert not [word for word in words if word in text], file
