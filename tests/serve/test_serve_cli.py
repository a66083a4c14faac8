"""`marble serve`: its arguments, what it says when something is missing, and one real start."""

import os
import signal
import subprocess
import sys
import time

import httpx
import pytest
import torch
from typer.testing import CliRunner

from marble.cli import app
from marble.errors import MarbleError
from marble.rewards.remote import Remote
from marble.serve import serve
from marble.serve.settings import Settings

REWARD = """
def level(images, prompts, metadata, scale=1.0):
    return (scale * images.float().mean((1, 2, 3))).tolist()
"""


def run(*words):
    return CliRunner().invoke(app, ["serve", *words], catch_exceptions=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ocr", "engine=ppocr"], "REWARD.OPTION=VALUE"),
        (["ocr", "geneval.mode=strict"], "options for geneval, which is not among ocr"),
        (["no-such"], "unknown reward"),
        (["ocr", "--host", "0.0.0.0"], "needs a key"),
        (["ocr", "ocr.enginee=x"], "enginee"),
    ],
)
def test_mistakes_are_one_clear_error(words, said, monkeypatch):
    monkeypatch.delenv("MARBLE_API_KEY", raising=False)
    with pytest.raises(MarbleError, match=said):
        run(*words)


@pytest.mark.parametrize("package", ["uvicorn", "fastapi"])
def test_the_missing_extra_is_named(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    for module in [name for name in sys.modules if name.startswith("marble.serve.")]:
        if module.endswith((".app", ".requests")):
            monkeypatch.delitem(sys.modules, module)
    with pytest.raises(MarbleError, match=r'pip install "marble-rl\[serve\]"'):
        serve(["ocr"], {}, Settings())


def test_the_client_names_the_extra_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MarbleError, match=r"marble-rl\[rewards\]"):
        Remote("http://127.0.0.1:1", "x").score(
            torch.zeros(1, 3, 2, 2, dtype=torch.uint8), ["a"], [{}]
        )


def test_a_real_start_scores_and_stops(tmp_path):
    """The command itself, with a reward of the user's own, an option and a key."""
    (tmp_path / "mine.py").write_text(REWARD)
    name = f"{tmp_path / 'mine.py'}:level"
    with open(tmp_path / "log", "w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "marble", "serve", name, f"{name}.scale=2", "--port", "0"],
            env={**os.environ, "MARBLE_API_KEY": "k", "OMP_NUM_THREADS": "1"},
            stderr=log,
            stdout=log,
        )
        try:
            url = _address(tmp_path / "log", process)
            images = torch.full((2, 3, 4, 4), 21, dtype=torch.uint8)
            answer = httpx.get(f"{url}/health", trust_env=False).json()
            assert answer["rewards"] == ["level"]
            os.environ["MARBLE_API_KEY"] = "k"
            scores = Remote(url, "level").score(images, ["a", "b"], [{}, {}])
            assert scores.tolist() == [42.0, 42.0]
        finally:
            os.environ.pop("MARBLE_API_KEY", None)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) in (0, 130)


def _address(log, process):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()
        for word in log.read_text().split():
            if word.startswith("http://127.0.0.1:"):
                return word
        time.sleep(0.1)
    raise AssertionError(log.read_text())
