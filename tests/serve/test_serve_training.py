"""A training run whose reward lives on a server that misbehaves."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from _peers import Peer
from _training_toy import make_toy

from marble.errors import RewardError
from marble.rewards.pictures import from_png
from marble.training.run import train


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make_toy(tmp_path_factory.mktemp("toy"))


def redness(request):
    return [float(from_png(item["image"])[0].float().mean()) / 255 for item in request["items"]]


def honest(handler, request):
    return 200, {"scores": redness(request)}


def too_few(handler, request):
    return 200, {"scores": redness(request)[1:]}


def not_a_number(handler, request):
    return 200, b'{"scores": [' + b", ".join([b"NaN"] * len(request["items"])) + b"]}"


def hang_up(handler, request):
    handler.connection.close()


def run(toy, url, out, *more):
    """One optimiser step on the remote reward and a local one; rows of scores as trained on."""
    remote = f"{{name: red, reward: remote, options: {{url: '{url}', reward: red, retries: 2}}}}"
    local = f"{{name: dark, reward: '{toy.rewards_file}:dark'}}"
    recipe = toy.recipe(
        f"rewards.train=[{remote}, {local}]",
        "train.steps=1",
        "train.probe=0",
        "eval.at_start=false",
        *more,
    )
    train(recipe, out, device="cpu")
    (line,) = (out / "metrics.jsonl").read_text().splitlines()
    (table,) = [json.loads(path.read_text()) for path in (out / "advantages").glob("*.json")]
    return json.loads(line), np.array(table["score"], dtype=float)


def test_the_run_goes_on_over_a_server_that_stumbles(toy, tmp_path):
    with Peer(honest, rewards=["red"]) as steady:
        row, scores = run(toy, steady.url, tmp_path / "steady")
    with Peer(hang_up, (503, b"{}"), too_few, not_a_number, honest, rewards=["red"]) as peer:
        same_row, same_scores = run(
            toy, peer.url, tmp_path / "stumbled", "rewards.train.0.options.retries=5"
        )
    np.testing.assert_array_equal(same_scores, scores)  # not one of them made up
    assert np.isfinite(scores).all() and row["reward/red/mean"] == same_row["reward/red/mean"]
    assert row["loss"] == same_row["loss"]


@pytest.mark.parametrize(
    ("peer", "said"),
    [
        (too_few, "it gave 0 scores for 1 pictures"),
        (not_a_number, "NaN"),
        (hang_up, "red failed on"),
    ],
)
def test_the_run_stops_at_a_server_that_lies(peer, said, toy, tmp_path):
    with Peer(honest, peer, rewards=["red"]) as server, pytest.raises(RewardError) as told:
        run(toy, server.url, tmp_path / "run")
    line = str(told.value)
    assert said in line and "reward red failed on '" in line and "\n" not in line
    assert (
        not (tmp_path / "run" / "metrics.jsonl").exists()
        or not (tmp_path / "run" / "metrics.jsonl").read_text()
    )


def test_the_run_skips_what_a_dead_server_left_unscored(toy, tmp_path):
    with Peer(honest, hang_up, rewards=["red"]) as server:
        row, (red, dark) = run(
            toy, server.url, tmp_path / "run", "rewards.on_error=skip_sample", "eval.prompts=1"
        )
    assert np.isfinite(red[:5]).all() and np.isnan(red[5:]).all()  # the second batch is missing
    assert np.isfinite(dark).all()
    assert row["reward/red/skipped"] == 4 and row["reward/red/applicable"] == pytest.approx(5 / 9)
