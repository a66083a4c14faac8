"""What a request may hold: prompts, metadata and pictures, each against an independent reading."""

import base64
import json
import struct
import time
import zlib

import httpx
import numpy as np
import pytest
import torch
from _peers import running
from test_serve_server import Brightness, ask, chunk, item

from marble.data import MAX_PROMPT, load_prompts
from marble.errors import MarbleError
from marble.recipe import load_recipe
from marble.rewards import load
from marble.rewards.pictures import from_png
from marble.sampling import draw_prompts


@pytest.fixture(scope="module")
def server():
    with running([Brightness()]) as url:
        yield url


def post(url, entry):
    """Surrogates and all: as JSON escapes, which httpx's own encoder refuses."""
    return httpx.post(
        f"{url}/v1/rewards/bright/score",
        content=json.dumps({"items": [entry]}).encode(),
        headers={"content-type": "application/json"},
        trust_env=False,
    )


# -- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"prompt": "x" * (MAX_PROMPT + 1)}, "items[0].prompt: 8193 characters; at most 8192"),
        ({"prompt": "a \ud800 b"}, "items[0].prompt: holds half a character"),
        ({"metadata": {"a": "\udfff"}}, "items[0].metadata: holds half a character"),
        ({"metadata": {"\udfff": 1}}, "items[0].metadata: holds half a character"),
        ({"metadata": {"a": "x" * 70_000}}, "at most 65536 are taken"),
        ({"group": [1]}, "items[0].group: must be text or a whole number"),
        ({"group": True}, "items[0].group"),
    ],
)
def test_text_that_no_reward_should_see(server, entry, said):
    answer = post(server, item() | entry)
    assert answer.status_code == 422 and said in answer.json()["error"]


def test_the_longest_prompt_is_taken(server):
    assert ask(server, [item(prompt="x" * MAX_PROMPT)]).status_code == 200


def test_the_longest_word_is_no_trouble_for_a_tokenizer():
    reward = load("studio-clip")
    began = time.monotonic()
    reward.score(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), ["a" * MAX_PROMPT], [{}])
    assert time.monotonic() - began < 15  # 0.3 s; 64k characters took 20 s, 1 MB for ever


def test_prompt_files_are_bounded_too(tmp_path):
    (tmp_path / "p.txt").write_text("a cat\n" + "x" * (MAX_PROMPT + 1))
    with pytest.raises(MarbleError, match=r"p.txt: prompt 2: 8193 characters; at most 8192"):
        load_prompts(str(tmp_path / "p.txt"))
    (tmp_path / "p.jsonl").write_text('{"prompt": "a \\ud800"}\n')
    with pytest.raises(MarbleError, match="lone surrogate"):
        load_prompts(str(tmp_path / "p.jsonl"))


def test_and_the_prompts_of_sample(tmp_path):
    with pytest.raises(MarbleError, match="at most 8192 are taken"):
        draw_prompts(load_recipe("studio"), None, ["x" * 9000], tmp_path)


# -- pictures -------------------------------------------------------------------------------------

KINDS = {0: 1, 2: 3, 4: 2, 6: 4}
"""Channels of PNG's colour types: grey, RGB, grey and alpha, RGB and alpha."""


def encoded(samples, depth, kind):
    """A PNG written byte by byte; samples [H, W, channels] of `depth` bits."""
    height, width, _ = samples.shape
    rows = samples.reshape(height, -1)
    if depth == 16:
        raw = rows.astype(">u2").tobytes()
        lines = [raw[i : i + len(raw) // height] for i in range(0, len(raw), len(raw) // height)]
    else:
        bits = (rows[..., None] >> np.arange(depth - 1, -1, -1)) & 1
        lines = [np.packbits(line.ravel().astype(np.uint8)).tobytes() for line in bits]
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + line for line in lines))
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return base64.b64encode(png).decode()


@pytest.mark.parametrize(
    ("depth", "kind"), [(1, 0), (2, 0), (4, 0), *((d, k) for d in (8, 16) for k in KINDS)]
)
def test_every_kind_of_png_is_read_as_it_is(depth, kind):
    rng = np.random.default_rng(depth + kind)
    samples = rng.integers(0, 2**depth, (5, 6, KINDS[kind]))
    found = from_png(encoded(samples, depth, kind)).permute(1, 2, 0).numpy()
    colours = samples[..., :3] if KINDS[kind] >= 3 else samples[..., :1].repeat(3, axis=2)
    wanted = colours >> 8 if depth == 16 else colours * 255 // (2**depth - 1)
    np.testing.assert_array_equal(found, wanted)


def test_sixteen_bits_of_grey_are_scored_as_eight(server):
    grey = np.full((6, 8, 1), 100)
    answers = [
        ask(server, [item() | {"image": encoded(g, d, 0)}])
        for g, d in ((grey, 8), (grey * 257, 16))
    ]
    assert [a.json()["scores"] for a in answers] == [[100.0], [100.0]]


@pytest.mark.parametrize("size", [(1, 16_777_216), (16_777_216, 1), (3, 100), (0, 5)])
def test_pictures_no_reward_can_look_at(server, size):
    width, height = size
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(bytes(max(1, width + 1) * height)))
    png = b"\x89PNG\r\n\x1a\n" + header + data + chunk(b"IEND", b"")
    answer = ask(server, [item() | {"image": base64.b64encode(png).decode()}])
    assert answer.status_code == 422 and "items[0].image" in answer.json()["error"]
