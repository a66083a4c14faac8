"""GenEval's two averages, and the paper's table from run folders and evaluation files."""

import json
import math

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from marble.cli import app
from marble.errors import MarbleError
from marble.evaluation import geneval_record, paper_table, read_evaluations, tag_scores
from marble.evaluation.geneval_tags import TAGS
from marble.rewards.geneval.rules import TAGS as RULES_TAGS


def test_tags_are_those_of_the_rules():
    assert TAGS == RULES_TAGS


def test_mean_over_tags_and_micro_average_differ_with_unequal_tags():
    counts = [80, 99, 80, 94, 100, 100]  # of the 553 published prompts
    means = [0.98, 0.8, 0.5, 0.75, 0.25, 0.5]
    tags, scores = [], []
    for tag, n, mean in zip(TAGS, counts, means):
        right = round(n * mean)
        tags += [tag] * n
        scores += [1.0] * right + [0.0] * (n - right)
    order = np.random.default_rng(0).permutation(len(tags))
    found = tag_scores(np.array(scores)[order], [tags[i] for i in order])
    exact = [round(n * m) / n for n, m in zip(counts, means)]
    assert found["n"] == 553
    assert found["mean_over_tags"] == pytest.approx(np.mean(exact), abs=1e-12)
    assert found["micro_average"] == pytest.approx(np.mean(scores), abs=1e-12)
    assert abs(found["mean_over_tags"] - found["micro_average"]) > 0.005
    assert found["tags"]["position"] == {"mean": 0.25, "n": 100}


def test_a_tag_that_was_not_seen_leaves_no_official_figure():
    found = tag_scores(np.array([1.0, 0.0, np.nan]), ["counting", "colors", "position"])
    assert found["mean_over_tags"] is None and found["micro_average"] == 0.5 and found["n"] == 2
    nothing = tag_scores(np.array([np.nan]), [None])
    assert nothing["micro_average"] is None and nothing["tags"] == {}
    with pytest.raises(ValueError, match="2 scores for 1"):
        tag_scores(np.zeros(2), ["counting"])


def test_only_geneval_scores_are_tagged():
    metadata = [{"source": "geneval", "tag": "counting"}, {"source": "ocr"}]
    scores = {"geneval-strict": np.array([1.0, np.nan]), "ocr": np.array([np.nan, 0.3])}
    assert list(geneval_record(scores, metadata)) == ["geneval-strict"]
    assert geneval_record({"geneval": np.array([np.nan, np.nan])}, metadata) == {}


def record(**means):
    strict = means.pop("geneval_official", None)
    part = {name.replace("_", "-"): {"mean": value} for name, value in means.items()}
    out = {"rewards": part, "heldout": {"aesthetic": {"mean": 5.0 + means.get("ocr", 0)}}}
    if strict is not None:
        out["geneval"] = {"geneval-strict": {"mean_over_tags": strict, "micro_average": 0.1}}
    return out


ROWS = [
    ("base", record(geneval=0.3, geneval_strict=0.2, geneval_official=0.24, ocr=0.1, hpsv2=0.2)),
    ("sum", record(geneval=0.9, geneval_strict=0.9, geneval_official=0.92, ocr=0.9, hpsv2=0.3)),
    ("marble", record(geneval=0.9, geneval_strict=0.9, geneval_official=0.94, ocr=0.96)),
]


def test_paper_table():
    table = paper_table(ROWS)
    assert table["columns"] == ["GenEval", "OCR", "Pick", "CLIP", "HPS", "Aes", "ImgRwd", "UniRwd"]
    values = [row["values"] for row in table["rows"]]
    assert [v["GenEval"] for v in values] == [0.24, 0.92, 0.94]  # strict, official
    assert [v["HPS"] for v in values] == [0.2, 0.3, None]
    assert values[0]["UniRwd"] is None
    assert table["composite_over"] == ["GenEval", "OCR", "Aes"]
    composites = [row["composite"] for row in table["rows"]]
    assert sum(composites) == pytest.approx(0)
    z = [(np.array(c) - np.mean(c)) / np.std(c) for c in ([0.24, 0.92, 0.94], [0.1, 0.9, 0.96])]
    expected = (z[0] + 2 * z[1]) / 3  # the aesthetic column is the ocr one, shifted
    np.testing.assert_allclose(composites, expected)


def test_one_row_has_no_composite():
    assert paper_table(ROWS[:1])["rows"][0]["composite"] is None
    with pytest.raises(MarbleError, match="at least one"):
        paper_table([])


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({"balance": {"method": "marble"}}))
    lines = [
        {"step": 0, "policy": "base", **ROWS[0][1]},
        {"step": 5, "policy": "trained", **ROWS[1][1]},
        {"step": 9, "policy": "trained", **ROWS[2][1]},
    ]
    (folder / "evals.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_rows_come_from_run_folders_and_evaluation_files(run, tmp_path):
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"model": "lora", **ROWS[1][1]}))
    names = [name for name, _ in read_evaluations([run, file])]
    assert names == ["base", "mine", "lora"]
    result = CliRunner().invoke(app, ["compare", "--paper", str(run), str(file), "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [row["values"]["OCR"] for row in told["rows"]] == [0.1, 0.96, 0.9]
    shown = CliRunner().invoke(app, ["compare", "--paper", str(run), str(file)])
    assert "GenEval" in shown.output and "0.940" in shown.output and "composite" in shown.output
    assert not math.isnan(told["rows"][0]["composite"])


def test_what_is_no_evaluation_is_refused(tmp_path):
    for text in ("no json", "[]", '{"a": 1}'):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(MarbleError, match=r"x\.json"):
            read_evaluations([tmp_path / "x.json"])
    with pytest.raises(MarbleError, match="neither a run folder"):
        read_evaluations([tmp_path / "nothing"])
