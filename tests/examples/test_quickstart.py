"""The notebook runs from top to bottom."""

from pathlib import Path

import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"


def test_it_is_stored_without_outputs():
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(book)
    assert all(not c.get("outputs") for c in book.cells)


@pytest.mark.slow
def test_it_runs_and_shows_what_it_promises(tmp_path, monkeypatch):
    """Every cell as it stands; only the training is cut to a few steps."""
    from nbclient import NotebookClient

    book = nbformat.read(NOTEBOOK, as_version=4)
    for cell in book.cells:
        if "train: {steps: 30}" in cell.source:
            cell.source = cell.source.replace("extends: studio", "extends: studio-fast").replace(
                "steps: 30", "steps: 2"
            )
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [o for c in book.cells for o in c.get("outputs", [])]
    said = "".join(o.get("text", "") for o in outputs)
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == 3
    assert said.count("\n") < 150  # no frame of a live table stays
    assert "is ready: marble train" in said and "mean gain" in said and "warmth" in said
    assert "too few to say anything" in said  # two steps
    assert (tmp_path / "runs" / "warm" / "report.html").is_file()
