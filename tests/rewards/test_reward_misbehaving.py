"""Rewards whose code does what it should not: the others, and the process, do not notice."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from marble.errors import MarbleError, RewardError
from marble.rewards import Reward, RewardSet, check, load

N = 4
IMAGES = torch.arange(40, 40 + N, dtype=torch.uint8).view(N, 1, 1, 1).expand(N, 3, 4, 4).clone()
PROMPTS = [f"prompt {i}" for i in range(N)]
METADATA = [{"source": "ocr" if i < 3 else "general", "words": ["a"]} for i in range(N)]


def level(images, prompts, metadata):
    return images.float().mean((1, 2, 3)).tolist()


def score(*rewards, **options):
    rewards = RewardSet(rewards, **options)
    return rewards.score(IMAGES, PROMPTS, METADATA), rewards.warnings()


# -- pictures and metadata ------------------------------------------------------------------------


def blacken(images, prompts, metadata):
    images.zero_()
    return [1.0] * len(images)


def blacken_below_torch(images, prompts, metadata):
    images.numpy()[:] = 0  # torch's version counter does not see this one
    return [1.0] * len(images)


def shrink(images, prompts, metadata):
    images.resize_(1, 3, 1, 1)
    return [1.0] * len(prompts)


def blacken_and_fail(images, prompts, metadata):
    images.zero_()
    if len(prompts) > 1:
        raise RuntimeError("after it wrote")
    return [1.0]


@pytest.mark.parametrize("writer", [blacken, blacken_below_torch, shrink, blacken_and_fail])
@pytest.mark.parametrize("sources", [None, frozenset({"ocr"})])
def test_every_reward_sees_the_pictures_as_drawn(writer, sources):
    class Writer(Reward):
        name = "writer"

        def score(self, *batch):
            return writer(*batch)

    first = Writer()
    first.sources = sources

    class After(Reward):  # the same part of the batch, so the same tensor if it were shared
        name = "after"

        def score(self, *batch):
            return level(*batch)

    after = After()
    after.sources = sources
    drawn = IMAGES.clone()
    scores, said = score(first, after, level, on_error="skip_sample")
    assert torch.equal(IMAGES, drawn)  # those that are saved
    np.testing.assert_array_equal(scores[2], [40, 41, 42, 43])
    np.testing.assert_array_equal(scores[1], [40, 41, 42, np.nan if sources else 43])
    (line,) = [text for text in said if "writes" in text]
    assert line.startswith("reward writer: writes into the pictures") and "clone()" in line


def test_one_that_only_looks_is_not_accused_and_tensors_are_still_shared():
    seen = []

    def look(images, prompts, metadata):
        seen.append(images)
        return level(images, prompts, metadata)

    def again(images, prompts, metadata):
        return look(images, prompts, metadata)

    _, said = score(look, again)
    assert said == [] and seen[0] is seen[1] and seen[0] is not IMAGES


def test_a_reward_past_its_deadline_cannot_write_into_the_others_pictures():
    go, written = threading.Event(), threading.Event()

    def slow(images, prompts, metadata):
        go.wait(10)
        images.zero_()
        written.set()
        return [0.0] * len(images)

    def then(images, prompts, metadata):
        go.set()
        assert written.wait(10)
        return level(images, prompts, metadata)

    scores, _ = score(slow, then, on_error="skip_sample", deadline_s=0.2)
    assert np.isnan(scores[0]).all()
    np.testing.assert_array_equal(scores[1], [40, 41, 42, 43])


def test_what_a_reward_writes_into_metadata_stays_there():
    def scribble(images, prompts, metadata):
        prompts.clear()
        metadata[0]["words"].append("b")
        metadata[0]["source"] = "elsewhere"
        return [1.0] * len(images)

    def words(images, prompts, metadata):
        return [len(m["words"]) + 10 * (m["source"] == "elsewhere") for m in metadata]

    scores, _ = score(scribble, words)
    np.testing.assert_array_equal(scores[1], [1, 1, 1, 1])
    assert METADATA[0] == {"source": "ocr", "words": ["a"]}


# -- the process ----------------------------------------------------------------------------------

ENDINGS = {
    "at once": (lambda: os._exit(0), "os._exit(0), which would have ended the run"),
    "exit": (lambda: sys.exit(0), "SystemExit: 0"),
    "exit with words": (lambda: sys.exit("bye"), "SystemExit: bye"),
    "generator": (lambda: (_ for _ in ()).throw(GeneratorExit), "GeneratorExit"),
    "base": (lambda: (_ for _ in ()).throw(BaseException("odd")), "BaseException: odd"),
}


@pytest.mark.parametrize("deadline_s", [None, 5.0])
@pytest.mark.parametrize("how", ENDINGS)
def test_a_reward_cannot_end_the_process(how, deadline_s):
    end, cause = ENDINGS[how]

    def leave(images, prompts, metadata):
        end()
        return [0.0] * len(images)

    with pytest.raises(RewardError) as told:
        score(leave, deadline_s=deadline_s)
    assert str(told.value).startswith("reward leave failed on 'prompt 0': ")
    assert cause in str(told.value)
    scores, said = score(leave, level, deadline_s=deadline_s, on_error="skip_sample")
    assert np.isnan(scores[0]).all() and np.isfinite(scores[1]).all()
    assert cause in said[0]


def test_processes_that_a_reward_makes_end_as_they_want():
    def forks(images, prompts, metadata):
        child = os.fork()
        if child == 0:
            os._exit(7)
        return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])] * len(images)

    for deadline_s in (None, 60.0):
        np.testing.assert_array_equal(score(forks, deadline_s=deadline_s)[0], [[7] * N])
    np.testing.assert_array_equal(forks(IMAGES, PROMPTS, METADATA), [7] * N)  # and ours


SCRIPT = """
import os, sys, threading, time, torch
from marble.rewards import RewardSet
go = threading.Event()
def late(images, prompts, metadata):
    try:
        go.wait(10)
        os._exit(0)  # long after its deadline
    finally:
        go.clear()
def pool(images, prompts, metadata):
    thread = threading.Thread(target=os._exit, args=(0,))
    thread.start()
    thread.join()
batch = torch.zeros(2, 3, 4, 4, dtype=torch.uint8), ["a", "b"], [{}, {}]
RewardSet([late], on_error="skip_sample", deadline_s=0.05).score(*batch)
go.set()
while go.is_set(): time.sleep(0.01)
print("still here", file=sys.stderr)
RewardSet([pool]).score(*batch)
"""


def test_no_thread_of_a_reward_ends_the_process_with_status_0():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 1
    late, line = done.stderr.splitlines()
    assert late == "still here" and line.startswith("marble: a thread ended the process: ")
    assert line.endswith("os._exit(0)")


def test_an_interrupt_of_the_reward_s_own_making_is_its_failure():
    def interrupt(images, prompts, metadata):
        raise KeyboardInterrupt

    with pytest.raises(RewardError, match="KeyboardInterrupt"):
        score(interrupt, deadline_s=5.0)
    with pytest.raises(KeyboardInterrupt):  # in the main thread it is the user's
        score(interrupt)


class BadAnswer(Reward):
    name = "picky"

    def applies(self, metadata):
        if metadata["source"] == "general":
            sys.exit(0)
        return True

    def score(self, images, prompts, metadata):
        return level(images, prompts, metadata)


def test_applies_is_a_reward_s_code_too():
    with pytest.raises(RewardError, match=r"picky failed on 'prompt 3': .*SystemExit: 0.*applies"):
        score(BadAnswer())
    rewards = RewardSet([BadAnswer()], on_error="skip_sample")
    np.testing.assert_array_equal(rewards.score(IMAGES, PROMPTS, METADATA), [[40, 41, 42, np.nan]])
    assert rewards.skipped["picky"] == 1


def test_the_working_folder_and_number_format_are_put_back(tmp_path):
    def wander(images, prompts, metadata):
        os.chdir(tmp_path)
        torch.set_default_dtype(torch.float64)
        return level(images, prompts, metadata)

    before = os.getcwd()
    _, said = score(wander)
    assert os.getcwd() == before and torch.get_default_dtype() is torch.float32
    assert [text.split(",")[0] for text in said] == [
        "reward wander: changed the working folder",
        "reward wander: changed torch's default dtype",
    ]


def test_stderr_is_opened_again(tmp_path):
    """In a process of its own, whose stderr is read."""
    script = f"""
import os, sys, torch
from marble.rewards import RewardSet
def hush(images, prompts, metadata):
    how = prompts[0]
    sys.stderr.close() if how == "object" else os.close(2)
    if how == "reused": hush.file = open({str(tmp_path / "other")!r}, "w")
    return [1.0] * len(images)
for how in ("object", "number", "reused"):
    rewards = RewardSet([hush])
    rewards.score(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), [how] * 2, [{{}}, {{}}])
    print("still here after", how, file=sys.stderr, flush=True)
    os.write(2, b"and below " + how.encode())
    assert "closed stderr" in rewards.warnings()[0]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for how in ("object", "number", "reused"):
        assert f"still here after {how}" in done.stderr and f"and below {how}" in done.stderr
    assert (tmp_path / "other").read_text() == ""


# -- before scoring -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", ["import sys; sys.exit(0)", "import os; os._exit(0)", "raise GeneratorExit"]
)
def test_a_file_that_quits_when_imported(code, tmp_path):
    (tmp_path / "quits.py").write_text(code)
    with pytest.raises(
        MarbleError, match=r"reward file .*quits.py: .*(SystemExit|_exit|GeneratorExit)"
    ):
        load(f"{tmp_path / 'quits.py'}:f")
    (tmp_path / "made.py").write_text(
        f"class R:\n    def __init__(self):\n        {code}\n\ndef f(*_): pass\n"
    )
    with pytest.raises(MarbleError, match=r"made.py:R: .*(Exit|_exit)"):
        load(f"{tmp_path / 'made.py'}:R")


def test_a_package_that_quits_when_imported(tmp_path, monkeypatch):
    (tmp_path / "quitting_package.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(str(tmp_path))
    for ask in (load, check):
        with pytest.raises(MarbleError, match=r"quitting_package:f: .*SystemExit: 0"):
            ask("quitting_package:f")


@pytest.mark.parametrize("name", [":f", "x:", "file.py:", ":"])
def test_half_a_name(name):
    with pytest.raises(MarbleError, match=r"package\.module:callable"):
        load(name)
