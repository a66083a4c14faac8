"""What `marble study` prints: the table, and the sentences that say what is noise."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from marble.study.show import show
from marble.study.write import cell, order

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize("name", ["paper", "stress"])
def test_table_and_sentences_at_80_columns(name):
    table = json.loads((DATA / f"{name}.json").read_text())
    file = io.StringIO()
    show(table, Console(file=file, width=80))
    text = file.getvalue()
    lines = text.splitlines()
    assert all(len(line) <= 80 for line in lines)
    for part in table["settings"]:
        for row in part["rows"]:
            if "values" in row:  # one line per cell, nothing broken
                worst = cell(row["values"]["worst gain"], 2)
                assert any(
                    line.startswith(f"{row['name']} ") and worst in line for line in lines
                ), row["name"]
        for sentence in order(part):
            assert " ".join(sentence.replace("`", "").split()) in " ".join(text.split())
    assert f"of {table['runs']} runs are finished" in text
