"""README.md keeps its promises: python blocks run, shell commands exist, figures are measured.

Here every command is checked quickly: `make TARGET` must be a target of the Makefile (shown with
`make -n`), `marble VERB …` must parse (run with `--help` appended), `python SCRIPT …` must name a
script that compiles. `test_readme_commands.py` runs them.
"""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(*languages: str) -> list[str]:
    return [
        body
        for language, body in re.findall(r"^```(\w+)\n(.*?)^```", README, re.M | re.S)
        if language in languages
    ]


def commands() -> list[str]:
    lines = [
        line.split("#")[0].strip() for body in blocks("sh", "bash") for line in body.split("\n")
    ]
    return [line for line in lines if line]


def script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def numbers():
    return script("readme_numbers")


def test_every_block_has_a_language():
    assert README.count("```") == 2 * len(blocks("sh", "bash", "python", "yaml"))


def test_the_trainer_example_is_short_and_reports_what_the_page_promises():
    page = (ROOT / "docs" / "integrations.md").read_text()
    body = re.search(r"```python\n(.*?)```", page, re.S).group(1)
    assert len([line for line in body.splitlines() if line.strip()]) <= 25
    scope: dict = {"__name__": "shown"}
    exec(compile(body, "docs/integrations.md", "exec"), scope)
    report = scope["report"]
    assert report.finite and report.refreshed and report.harmony and report.gap is not None
    assert all(parameter.requires_grad for parameter in scope["balancer"].parameters)


@pytest.mark.parametrize("command", commands())
def test_shell_commands_exist(command):
    words = shlex.split(command)
    if words[0] == "make":
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    elif words[0] == "marble":
        from marble.cli import app

        done = CliRunner().invoke(app, [*words[1:], "--help"])
        assert done.exit_code == 0, done.output
    elif words[0] == "python":
        compile((ROOT / words[1]).read_text(), words[1], "exec")
    elif words[0] == "accelerate":
        from marble.cli import app

        done = CliRunner().invoke(app, [*words[words.index("marble") + 1 :], "--help"])
        assert done.exit_code == 0, done.output
    else:
        assert words[0] in ("pip", "git"), f"unknown command in README.md: {command}"


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_figures_are_those_of_the_results():
    module = numbers()
    for (file, name), write in module.BLOCKS.items():
        page = file.read_text()
        fresh = module.replaced(page, name, write())
        assert page == fresh, f"{file.name} is out of date: run python scripts/readme_numbers.py"


def test_the_walk_follows_the_page():
    """scripts/walk.py takes every command of a newcomer's from here, and so did the last walk."""
    walk = script("walk")
    whole, short = walk.steps(README, None), walk.steps(README, 3)
    assert [step.command for step in whole][:2] == ["make install", "make train"]
    told = set(commands()) | set(re.findall(r"`(marble sample [^`]+)`", README))
    assert all(step.command in told for step in whole[1:])
    own = [line for line in commands() if "warm" in line]
    assert [step.command for step in whole][3:] == own and len(own) == 3
    assert set(walk.own_files(README)) == {"warm.py", "warm.yaml"}
    trained = [step.command.endswith(" train.steps=3") for step in short]
    assert trained == [False, True, False, True, True, False]
    taken = json.loads(walk.RESULT.read_text())
    now = whole if taken["steps"] is None else walk.steps(README, taken["steps"])
    assert [row["command"] for row in taken["walk"]] == ["git clone", *(s.command for s in now)]


def compared(row: str) -> list[str]:
    """The cells of a row of the comparison, links reduced to their text."""
    [line] = [line for line in README.splitlines() if line.startswith(f"| {row}")]
    return [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", cell.strip()) for cell in line.split("|")]


def test_the_comparison_has_the_measured_speed():
    gradients = json.loads((numbers().RESULTS / "sd35m_gradients.json").read_text())["ratios"]
    loop = json.loads((numbers().RESULTS / "loop_sd35m_h200.json").read_text())
    cells = compared("a step that solves")
    assert cells[3] == f"{gradients['retained K=5 / ordinary']:.1f}"
    assert cells[5] == f"{loop['ratios']['refresh by ordinary step, training']:.2f}"
    speed = {name: step["pictures_per_gpu_second"] for name, step in loop["steps"].items()}
    cells = compared("SD3.5 Medium, pictures per GPU-second")
    assert cells[3] == f"{speed['public']:.2f}"
    assert cells[5] == f"{speed['ours, MARBLE N = 10']:.2f}"


def test_a_changed_result_is_noticed(tmp_path):
    module = numbers()
    result = json.loads((module.RESULTS / "sd35m_gradients.json").read_text())
    result["ratios"]["K=5"]["refresh / ordinary"] = 9.87
    (tmp_path / "sd35m_gradients.json").write_text(json.dumps(result))
    changed = module.gradients(tmp_path)
    assert "9.87×" in changed
    engine = module.ENGINE.read_text()
    assert module.replaced(engine, "numbers", changed) != engine
    result = json.loads((module.RESULTS / module.TRAIN).read_text())
    result["gains"]["ocr"]["lo"] = -0.987
    (tmp_path / module.TRAIN).write_text(json.dumps(result))
    for page, name, write in (
        (README, "trained", module.trained),
        (module.STUDIO.read_text(), "trained", module.trained_table),
    ):
        assert "−0.987" in write(tmp_path)
        assert module.replaced(page, name, write(tmp_path)) != page


def test_import_marble_is_free_of_torch():
    code = "import sys, marble; assert 'torch' not in sys.modules; from marble import Balancer"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
