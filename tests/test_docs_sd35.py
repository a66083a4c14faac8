"""docs/sd35.md from start to finish: every command parses, and all of them run on tiny weights."""

import importlib.util
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from marble.cli import app
from marble.doctor import examine
from marble.recipe import load_recipe

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "sd35.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.M | re.S)


LINES = [line for body in blocks("sh") for line in body.strip().splitlines()]
YAML = {re.match(r"# (\S+)\n", body).group(1): body for body in blocks("yaml")}


def marble_words(line):
    """The words after `marble` of a line, without a launcher and a redirection."""
    words = shlex.split(line.split(" > ")[0])
    return words[words.index("marble") + 1 :]


def parse(command, words):
    """As the command line would, without running anything; a mistake raises."""
    command.commands[words[0]].make_context(words[0], list(words[1:]))


@pytest.mark.parametrize("line", [line for line in LINES if "marble " in line])
def test_marble_commands_parse(line):
    if not line.startswith("pip"):
        parse(typer.main.get_command(app), marble_words(line))


def test_downloads_are_understood_by_the_hubs_own_command(monkeypatch, tmp_path):
    """Without a network it gets as far as looking for the repository: status 2 would be usage."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    told = [c for check in examine("sd35m-5rewards") for c in check.fetch]
    (written,) = [line for line in LINES if line.startswith("hf download")]
    assert written in told
    some = [written, *(next(c for c in told if kind in c) for kind in ("--include", ".pt "))]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path)}
    for line in some:
        words = [str(Path(sys.executable).parent / "hf"), *shlex.split(line)[1:]]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert done.returncode == 1 and "option" not in done.stderr.lower(), done.stderr[-500:]


def test_launch_lines_parse_for_accelerate():
    from accelerate.commands.launch import launch_command_parser

    (line,) = [line for line in LINES if line.startswith("accelerate")]
    args = launch_command_parser().parse_args(shlex.split(line)[2:])
    assert args.module and args.training_script == "marble" and args.num_processes == 8
    assert args.training_script_args[:2] == ["train", "sd35m-5rewards"]


@pytest.mark.parametrize("name", YAML)
def test_recipes_of_the_page_are_valid(name, tmp_path):
    (tmp_path / name).write_text(YAML[name])
    recipe = load_recipe(str(tmp_path / name))
    every = {entry.name: entry for entry in (*recipe.rewards.train, *recipe.rewards.heldout)}
    if name == "my-sd35.yaml":
        assert every["geneval"].reward == "remote" and len(recipe.rewards.train) == 5
    else:
        assert [e.name for e in recipe.rewards.heldout][-1] == "unifiedreward"


def test_recipes_and_fields_that_the_page_names_exist():
    for name in re.findall(r"^\| `(sd35m-\S+)` \|", TEXT, re.M):
        load_recipe(name)
    overrides = set(re.findall(r"`((?:model|data|eval|balance|rewards)\.[a-z0-9_.]+)=", TEXT))
    assert len(overrides) >= 6
    for key in overrides:
        recipe = "sd35m-sequential" if key.startswith("balance") else "sd35m-5rewards"
        load_recipe(recipe, [f"{key}=x" if key.endswith("path") else f"{key}=1"])


def numbers():
    path = ROOT / "scripts" / "sd35_numbers.py"
    spec = importlib.util.spec_from_file_location("sd35_numbers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_figures_are_those_of_the_result():
    script = ROOT / "scripts" / "sd35_numbers.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        (("phases", "decode pictures", "peak_gb"), "| 98.7 GB |"),
        (("phases", "optimiser step, ordinary", "seconds_total"), "| 98.7 |"),
        (("memory", "peak_on_device_gb"), "it was 98.7 GB"),
        (("exported_lora", "pictures_change_after_unloading"), "differed by 98.7 from"),
        (("score_changes", "hpsv2, fp32", "on_cpu"), "by 9.9e+01 between"),
    ],
)
def test_a_changed_result_is_noticed(keys, shown):
    module = numbers()
    result = json.loads(module.RESULT.read_text())
    inner = result
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = 98.7
    changed = module.block(result)
    assert shown in changed and module.replaced(TEXT, changed) != TEXT


def test_the_page_says_no_more_than_the_run_showed():
    """The benchmark's words on the page, as conditions on its result."""
    result = json.loads(numbers().RESULT.read_text())
    assert result["complete"] and [row["step"] for row in result["steps"]] == [1, 2, 3, 4, 5]
    assert result["phases"]["run: resume, 2 more steps"]["calls"] == 1
    lora = result["exported_lora"]
    assert lora["pictures_finite"] and lora["pictures_change_with_lora"] > 0
    assert lora["pictures_change_after_unloading"] == 0
    recipe = load_recipe("sd35m-5rewards-1gpu")
    whole = (recipe.samples_per_epoch, recipe.timesteps_per_sample, recipe.eval.steps)
    assert whole == (1152, 12, 40) and "has 1152 pictures and 12 timesteps each" in TEXT


# -- the whole page, executed -------------------------------------------------------------------

SMALL = [
    *("model.resolution=64", "model.max_sequence_length=16", "rollout.steps=2", "eval.steps=2"),
    *("train.batch_size=4", "train.timesteps_fraction=0.5", "rollout.batch_size=4"),
    *("data.prompts_per_epoch=3", "data.images_per_prompt=2", "log.samples_every=0"),
]
HELD_OUT = (
    "rewards.heldout=[{name: geneval-strict, reward: geneval, sources: [geneval], "
    "options: {mode: strict}}, aesthetic]"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with prompts where the page has them, and overrides that name tiny weights."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from sd35m_folders import write_pipeline, write_prompts, write_rewards

    root = tmp_path_factory.mktemp("sd35")
    torch.manual_seed(0)
    cpu = torch.device("cpu")
    write_pipeline(root / "model", cpu, tiny=True, full_t5=False)
    rewards = write_rewards(root / "rewards", cpu, tiny=True)
    write_prompts(root / "data", 8)
    sides = [f"rewards.{name}.options.short_side=64" for name in ("geneval", "geneval-strict")]
    return root, [f"model.path={root / 'model'}", *SMALL, *rewards, *sides]


def line_with(*parts):
    (line,) = [line for line in LINES if all(part in line for part in parts)]
    return line


def run(line, *more):
    words = [*marble_words(line), *more]
    if words[0] == "train":
        words += ["--device", "cpu"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, (line, result.output[-2000:], result.exception)
    return result.stdout


@pytest.mark.slow
def test_the_page_runs_from_start_to_finish(place, monkeypatch):
    root, tiny = place
    monkeypatch.chdir(root)
    assert "is ready: marble train" in run(line_with("marble doctor"), *tiny)
    run(line_with("train sd35m-5rewards-1gpu"), *tiny, "train.steps=1", "eval.prompts=1")
    run(line_with("--resume"), "train.steps=2")
    for model in ("base", "runs/sd35"):
        line = line_with(f"marble eval {model} ")
        told = json.loads(run(line, HELD_OUT, *tiny))
        assert told["geneval"]["geneval-strict"]["n"] == 8  # eval.prompts=null: the whole file
        Path(line.split(" > ")[1]).write_text(json.dumps(told))
    table = run(line_with("compare --paper"))
    assert all(word in table for word in ("GenEval", "OCR", "HPS", "composite", "sd35"))
    run(line_with("marble report"))
    assert (root / "runs" / "sd35" / "report.html").stat().st_size > 100_000
    run(line_with("marble sample"))

    (code,) = blocks("python")
    for there, here in {
        "stabilityai/stable-diffusion-3.5-medium": str(root / "model"),
        "torch.bfloat16": "torch.float32",
        '"cuda"': '"cpu"',
        "step-001000": "step-000002",
        "num_inference_steps=40": "num_inference_steps=2, max_sequence_length=16",
    }.items():
        assert there in code
        code = code.replace(there, here)
    scope = {}
    exec(compile(code, "docs/sd35.md", "exec"), scope)
    assert scope["image"].size == (128, 128)


@pytest.mark.slow
def test_a_reward_served_elsewhere_trains_the_same(place, monkeypatch):
    root, tiny = place
    monkeypatch.chdir(root)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key = line_with("export").partition("=")[2]
    monkeypatch.setenv("MARBLE_API_KEY", key)
    serve = marble_words(line_with("marble serve"))
    serve[serve.index("8765")] = str(port)
    options = [f"geneval.path={root / 'rewards' / 'detector'}", "geneval.short_side=64"]
    options += [f"geneval.clip={root / 'rewards' / 'clip-l'}"]
    command = [sys.executable, "-m", "marble", *serve, *options, "--device", "cpu"]
    with subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE) as server:
        try:
            wait_for(f"http://127.0.0.1:{port}/health", server)
            recipe = YAML["my-sd35.yaml"].replace("reward-machine:8765", f"127.0.0.1:{port}")
            (root / "my-sd35.yaml").write_text(recipe)
            here = [o for o in tiny if not o.startswith("rewards.geneval.")]
            run(line_with("my-sd35.yaml"), *here, "train.steps=1", "eval.prompts=1")
        finally:
            server.terminate()
    (row,) = (root / "runs" / "sd35-remote" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(row)["reward/geneval/applicable"] > 0


def wait_for(url, server):
    for _ in range(240):
        assert server.poll() is None, server.stderr.read().decode()[-2000:]
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"{url} never answered")
