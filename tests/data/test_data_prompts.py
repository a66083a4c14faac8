import json
from pathlib import Path

import pytest

from marble.data import load_prompts, studio_sources
from marble.errors import MarbleError

GENEVAL = {"tag": "counting", "include": [{"class": "cat", "count": 2}], "prompt": "two cats"}


def test_txt_layout(tmp_path):
    folder = tmp_path / "ocr"
    folder.mkdir()
    (folder / "train.txt").write_text('\ufeffa sign "TEA"\n\n  a mug\u2028of "JOE"  \n', "utf-8")
    (folder / "test.txt").write_text("held out\n")
    train = load_prompts(str(folder), "train")
    assert [p.text for p in train] == ['a sign "TEA"', 'a mug\u2028of "JOE"']
    assert all(p.metadata == {"source": "ocr"} for p in train)
    assert [p.text for p in load_prompts(str(folder), "test", source="x")] == ["held out"]
    assert load_prompts(str(folder), "test", source="x")[0].source == "x"


def test_metadata_layout_is_kept_verbatim(tmp_path):
    folder = tmp_path / "geneval"
    folder.mkdir()
    (folder / "test_metadata.jsonl").write_text(json.dumps(GENEVAL) + "\n")
    (prompt,) = load_prompts(str(folder), "test")
    assert prompt.text == "two cats"
    assert prompt.metadata == {**GENEVAL, "source": "geneval"}


def test_jsonl_lines_may_name_their_own_source(tmp_path):
    file = tmp_path / "mixed.jsonl"
    file.write_text('{"prompt": "a", "source": "ocr"}\n{"prompt": "b"}\n')
    assert [p.source for p in load_prompts(str(file), "train", source="rest")] == ["ocr", "rest"]
    assert [p.source for p in load_prompts(str(file), "test")] == ["ocr", "mixed"]


def test_metadata_is_not_shared_between_prompt_and_caller():
    from marble.data import Prompt

    given = {"a": 1}
    prompt = Prompt("x", "s", given)
    assert given == {"a": 1} and prompt.metadata == {"a": 1, "source": "s"}


@pytest.mark.parametrize(
    ("name", "text", "expect"),
    [
        ("p.txt", "\n \n", "no prompts"),
        ("p.jsonl", "", "no prompts"),
        ("p.jsonl", '{"prompt": "a"}\n{oops\n', "p.jsonl:2: not valid JSON"),
        ("p.jsonl", '{"prompt": "a"}\n\n{"text": "b"}\n', "p.jsonl:3: needs a 'prompt'"),
        ("p.jsonl", '{"prompt": ""}\n', "p.jsonl:1: needs a 'prompt'"),
        ("p.jsonl", "[1]\n", "p.jsonl:1: expected a JSON object"),
        ("p.jsonl", '{"prompt": "a", "source": 3}\n', "'source' must be a string"),
        ("p.csv", "a,b\n", "not '.csv'"),
    ],
)
def test_bad_files_are_named(tmp_path, name, text, expect):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(MarbleError, match=expect) as caught:
        load_prompts(str(file))
    assert "\n" not in str(caught.value)


def test_missing_and_undecodable(tmp_path):
    with pytest.raises(MarbleError, match="no such prompt file or folder"):
        load_prompts(str(tmp_path / "nowhere"))
    with pytest.raises(MarbleError, match=r"split 'train'.*train\.txt"):
        load_prompts(str(tmp_path))
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(MarbleError, match="not UTF-8"):
        load_prompts(str(tmp_path / "b.txt"))
    with pytest.raises(MarbleError, match="no studio prompts called 'nope'"):
        load_prompts("studio:nope")


@pytest.mark.parametrize("name", studio_sources())
def test_studio_sources_load_and_are_disjoint(name):
    train = {p.text for p in load_prompts(f"studio:{name}", "train")}
    test = {p.text for p in load_prompts(f"studio:{name}", "test")}
    assert train and test and not train & test


SHARED = Path(__file__).parents[3] / "shared" / "prompts"


@pytest.mark.skipif(not SHARED.is_dir(), reason="public prompt files are not beside the checkout")
def test_public_files_are_read_whole_and_verbatim():
    geneval = load_prompts(str(SHARED / "geneval"), "test")
    lines = (SHARED / "geneval" / "test_metadata.jsonl").read_text().splitlines()
    assert len(geneval) == len(lines) == 2212
    assert all(p.metadata == {**json.loads(x), "source": "geneval"} for p, x in zip(geneval, lines))
    assert len({p.text for p in geneval}) == 553
    ocr = load_prompts(str(SHARED / "ocr"), "test")
    lines = (SHARED / "ocr" / "test.txt").read_text().split("\n")
    assert [p.text for p in ocr] == [line.strip() for line in lines if line.strip()]
