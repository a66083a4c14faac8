"""The commands of the documentation, run: on a toy's run, or on the studio made small.

README.md and docs/sd35.md have tests of their own (tests/test_readme_commands.py,
tests/test_docs_sd35.py); a command that is told there too is not run again here.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from _blocks import ROOT, blocks, commands, write_files

SMALL = [
    *("train.steps=2", "train.checkpoint_every=1", "train.probe=0", "eval.every=0"),
    *("data.prompts_per_epoch=3", "data.images_per_prompt=2", "rollout.steps=3"),
    *("eval.prompts=3", "log.samples_every=0", "log.trackers=[]"),
]
NOT_RUN = {
    "make": "they run these tests, or what README's own test runs",
    "pip install": "installs what is being tested; the extras are looked up",
    "hf ": "the hub's own command; needs a network",
    "sglang": "a server of others'; needs a GPU",
    "--nnodes": "needs two machines; tests/training/test_two_machines.py has them as processes",
    "steer_front": "needs the runs of a study",
    "average_ratio": "the same; tests/study has runs for it",
    "marble study": "hours on a GPU; the file is loaded, and tests/study runs studies of seconds",
    "sd35m": "needs real weights; run on tiny ones by the two tests named above",
}
"""What a command contains that is not run here, and why."""
ELSEWHERE = ("README.md", "CONTRIBUTING.md", "docs/sd35.md")
MODULES = {
    "marble": "marble",
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.accelerate_cli",
}


def told(page: str, folder: Path) -> list[list[str]]:
    return [w for b in blocks("sh") if b.page == page for w in commands(b.body, folder)]


def skipped(words: list[str]) -> str | None:
    line = shlex.join(words) + " "
    return next((why for part, why in NOT_RUN.items() if part in line), None)


def pages() -> list[str]:
    return [p for p in dict.fromkeys(b.page for b in blocks("sh")) if p not in ELSEWHERE]


def run(words: list[str], folder: Path) -> str:
    name, *rest = words
    if name == "python":
        words = [sys.executable, *(str(ROOT / w) if w.startswith("scripts/") else w for w in rest)]
        words = [str(ROOT / w) if w.startswith("studies/") else w for w in words]
    else:
        small = SMALL if "train" in rest and "bench" not in rest else []
        words = [sys.executable, "-m", MODULES[name], *rest, *small]
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout[-800:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_what_is_not_run_is_still_told_somewhere(tmp_path):
    """The list holds nothing that no page tells, and no reason hides a page's every command."""
    every = {page: told(page, tmp_path) for page in dict.fromkeys(b.page for b in blocks("sh"))}
    lines = [shlex.join(w) + " " for found in every.values() for w in found]
    assert [part for part in NOT_RUN if not any(part in line for line in lines)] == []
    run_here = [p for p in pages() if any(skipped(w) is None for w in every[p])]
    assert {"docs/training.md", "docs/report.md", "docs/geometry.md", "docs/survive.md"} <= set(
        run_here
    )


def test_diagnose_and_report_on_a_run(marble, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "marble", "uniform"):
        shutil.copytree(trained, tmp_path / "runs" / name)
    for page in ("docs/diagnose.md", "docs/report.md"):
        for words in told(page, tmp_path):
            if words[1] in ("diagnose", "report"):
                assert marble(*words[1:]).status == 0, words
    assert Path("compare.html").is_file() and Path("runs/mine/report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("page", pages())
def test_a_page_from_top_to_bottom(page, tmp_path):
    write_files(page, tmp_path)
    found = [words for words in told(page, tmp_path) if skipped(words) is None]
    named = [w for words in found for w in words if w.startswith("runs/")]
    for i, run_folder in enumerate(dict.fromkeys(named)):  # the reader's, all alike
        if i == 0:
            run(["marble", "train", "studio", "--out", run_folder], tmp_path)
        else:
            shutil.copytree(tmp_path / named[0], tmp_path / run_folder)
    (tmp_path / "docs/img").mkdir(parents=True)
    for words in found:
        again = words[:2] == ["marble", "train"] and "--out" in words
        if again and (tmp_path / words[words.index("--out") + 1]).exists():
            shutil.rmtree(tmp_path / words[words.index("--out") + 1])
        run(words, tmp_path)
