"""The studio as a stranger meets it: whatever is typed gives a picture or one clear line."""

import json
import os
import shutil

import pytest
from PIL import Image

from marble.studio import asset

ODD_PROMPTS = {
    "an unknown word": "a photo of a gryphon",
    "nothing": "",
    "white space": " \t\n ",
    "Cyrillic": "красная кошка",
    "Chinese": "一只红色的猫",
    "right to left": "قطة حمراء",
    "emoji": "🐱 👩‍🚀 🏳️‍🌈",
    "a word in quotes in another script": 'a sign that says "ЧАЙ"',
    "a quote that never ends": 'sign "TEA',
    "combining marks": "a c̷̡͝a̴t",
    "what looks like a special token": "<|endoftext|> a cat",
}


def test_odd_prompts_give_pictures(marble, tmp_path):
    result = marble("sample", "base", *ODD_PROMPTS.values(), "--steps", "2", "-o", tmp_path)
    assert result.status == 0, result.err
    assert "Traceback" not in result.err
    files = result.out.split()
    assert len(files) == len(ODD_PROMPTS)
    for file in files:
        picture = Image.open(file)
        assert picture.size == (64, 64)
        assert max(high - low for low, high in picture.getextrema()) > 20  # not one flat colour


@pytest.fixture
def refuses(marble):
    """Asserts one line and status 2; gives the line."""

    def check(*words: object) -> str:
        result = marble(*words)
        assert result.status == 2, result.err
        assert result.out == "" and "Traceback" not in result.err
        (line,) = result.err.strip().splitlines()
        assert line.startswith("marble: ")
        return line

    return check


@pytest.mark.parametrize("words", [20, 100_000])
def test_a_prompt_longer_than_the_encoder_takes(refuses, tmp_path, words):
    line = refuses("sample", "base", "cat " * words, "--out", tmp_path / "pictures")
    if words == 20:
        assert "prompt too long" in line and "the text encoders take 16" in line
    else:  # no tokenizer is asked
        assert "400000 characters; at most 8192 are taken" in line
    assert len(line) < 400  # it does not repeat the whole prompt


def test_bytes_that_are_no_text(refuses, tmp_path):
    line = refuses("sample", "base", os.fsdecode(b"a \xff cat"), "--out", tmp_path / "pictures")
    assert "not text" in line and not (tmp_path / "pictures").exists()


@pytest.fixture
def copy(tmp_path):
    """A copy of the pipeline to damage, and a recipe that uses it."""
    folder = shutil.copytree(asset("pipeline"), tmp_path / "pipeline")
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"extends: studio\nmodel: {{path: '{folder}'}}\n")
    return folder, recipe


@pytest.mark.parametrize(
    ("verb", "part", "damage"),
    [
        (("sample", "a cat"), "transformer", "missing"),
        (("sample", "a cat"), "text_encoder_2", "cut short"),
        (("sample", "a cat"), "vae", "empty"),
        (("eval",), "transformer", "cut short"),
        (("train",), "transformer", "cut short"),
    ],
)
def test_a_weight_file_that_is_not_whole(refuses, copy, monkeypatch, verb, part, damage):
    folder, recipe = copy
    monkeypatch.chdir(folder.parent)
    (file,) = (folder / part).glob("*.safetensors")
    if damage == "missing":
        file.unlink()
    else:
        os.truncate(file, 0 if damage == "empty" else file.stat().st_size // 2)
    verb, *rest = verb
    words = ("train", recipe) if verb == "train" else (verb, "base", *rest, "--recipe", recipe)
    line = refuses(*words)
    assert str(folder / part) in line
    assert ("no .safetensors" if damage == "missing" else "damaged or cut short") in line
    assert not (folder.parent / "runs").exists()


def test_a_folder_that_is_no_pipeline(refuses, copy, tmp_path):
    folder, recipe = copy
    (folder / "model_index.json").unlink()
    line = refuses("sample", "base", "a cat", "--recipe", recipe)
    assert str(folder) in line and "not a diffusers pipeline folder" in line
    (folder / "model_index.json").write_text("{ this is no JSON")
    assert "cannot be read as JSON" in refuses("sample", "base", "a cat", "--recipe", recipe)
    (folder / "model_index.json").write_text(json.dumps({"vae": ["diffusers", "AutoencoderKL"]}))
    assert "names no pipeline class" in refuses("sample", "base", "a cat", "--recipe", recipe)


@pytest.mark.parametrize("file", ["tokenizer/tokenizer.json", "transformer/config.json"])
@pytest.mark.parametrize("text", [None, "", "{ this is no JSON", "{}", "[]"])
def test_a_small_file_that_is_damaged(refuses, copy, file, text):
    folder, recipe = copy
    if text is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(text)
    line = refuses("sample", "base", "a cat", "--recipe", recipe, "--out", folder / "pictures")
    assert str(folder) in line
