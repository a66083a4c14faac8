"""`make studio` from the outside: what happens to the second process, and to what lay there."""

import signal
import subprocess
import sys

import pytest

import marble.studio.pretrain.__main__ as make


@pytest.fixture
def sleeper(monkeypatch):
    """Stands in for the process that trains the reward models."""
    started = []

    def start(args):
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return started[-1]

    monkeypatch.setattr(make, "_start_rewards", start)
    yield started
    for process in started:
        process.kill()


def test_a_failing_generator_stops_the_reward_models(monkeypatch, tmp_path, sleeper):
    def generator(args, before_training):
        before_training()
        raise RuntimeError("out of memory")

    monkeypatch.setattr(make, "_generator", generator)
    monkeypatch.setattr(sys, "argv", ["studio", "--out", str(tmp_path)])
    with pytest.raises(RuntimeError, match="out of memory"):
        make.main()
    assert [process.wait(10) for process in sleeper] == [-signal.SIGTERM]


def test_only_the_old_autoencoder_is_removed(monkeypatch, tmp_path, sleeper):
    for name in ("vae", "vae.part", "mine"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(make, "_generator", lambda args, before_training: None)
    monkeypatch.setattr(sys, "argv", ["studio", "--out", str(tmp_path), "--only-generator"])
    make.main()
    assert [p.name for p in tmp_path.iterdir()] == ["mine"] and not sleeper


def test_going_on_in_place_is_refused(monkeypatch, tmp_path, capsys):
    argv = ["studio", "--out", str(tmp_path), "--resume", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit, match="2"):
        make.main()
    assert "must differ" in capsys.readouterr().err
