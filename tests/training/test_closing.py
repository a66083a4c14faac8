"""The end of a run does not hang on the optional report."""

import marble.report
from marble.errors import MarbleError
from marble.training.closing import write_report


def test_a_run_ends_well_where_the_report_cannot_be_drawn(monkeypatch, tmp_path):
    def refuse(runs, page):
        raise MarbleError("the report needs plotly: pip install 'marble-rl[report]'")

    monkeypatch.setattr(marble.report, "write", refuse)
    told = write_report(tmp_path)
    assert "marble-rl[report]" in told and f"marble report {tmp_path}" in told
