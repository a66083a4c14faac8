"""Study files: those that ship load; mistakes give one line; finished cells become one table."""

from pathlib import Path

import pytest

from marble.errors import MarbleError
from marble.study import load_study

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_studies_load(path):
    study = load_study(path)
    assert len({cell.folder for cell in study.cells}) == len(study.cells)
    assert all(any(w == f"train.seed={c.seed}" for w in c.overrides) for c in study.cells)


def test_settings_of_a_cell_come_after_the_common_ones(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(
        "common: {balance.method: marble, optim.lr: 0.001}\nseeds: [3]\n"
        "cells: {a: {balance.method: uniform, model.lora.targets: [attn.to_q]}}"
    )
    [cell] = load_study(file).cells
    assert cell.folder == "a-seed3"
    assert "balance.method=uniform" in cell.overrides and "optim.lr=0.001" in cell.overrides
    assert "model.lora.targets=[attn.to_q]" in cell.overrides


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cells: [a]", "needs `cells`"),
        ("cells: {a: {}}\nseed: 1", "unknown key seed"),
        ("cells: {a: {balance.methd: marble}}", "cell a"),
        ("cells: {a: [", "not YAML"),
    ],
)
def test_mistakes_are_one_error(tmp_path, text, said):
    file = tmp_path / "s.yaml"
    file.write_text(text)
    with pytest.raises(MarbleError, match=said):
        load_study(file)


def test_a_missing_file(tmp_path):
    with pytest.raises(MarbleError, match="no such study"):
        load_study(tmp_path / "none.yaml")
