"""The page from every state a run folder can be in; its size, its speed, its promises."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from _runs import Spec, make_run

from marble.errors import MarbleError
from marble.report import watch, write
from marble.report.curves import harmony, specialist_share, training
from marble.report.folder import read_metrics, read_run
from marble.report.numbers import duration, figure, sigma, signed, thin
from marble.report.page import SCRIPTS, _json
from marble.report.pictures import Full, Store


def data_of(page: Path) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    assert found
    return json.loads(found[1])


def test_importing_the_report_does_not_import_torch() -> None:
    code = "import sys, marble.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_folder_that_is_no_run_gives_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, words in (("empty", "not a run folder"), ("absent", "no such folder")):
        with pytest.raises(MarbleError, match=words) as error:
            write([tmp_path / path], tmp_path / "page.html")
        assert "\n" not in str(error.value) and "marble train" in str(error.value)
    with pytest.raises(MarbleError, match="no run given"):
        write([], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_page_needs_a_name(run: Path, tmp_path: Path) -> None:
    with pytest.raises(MarbleError, match=r"a folder; give the page a name, .*report\.html"):
        write([run], tmp_path)


def test_the_page_stands_alone(pages: dict[str, Path]) -> None:
    html = pages["four"].read_text()
    head = html[: html.index('<script type="application/json"')]
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)""", head)
    assert "@import" not in head and "url(" not in head
    assert html.count("plotly.js v") <= 2
    assert all(page.stat().st_size < 10_000_000 for page in pages.values())


def test_progress_by_pairs_has_a_chart_where_it_was_measured(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / method, Spec(method=method, steps=20, eval_every=20))
        for method in ("progress", "marble")
    ]
    pairs, none = (training(read_run(run), 100) for run in runs)
    assert list(pairs["progress"]) == list(Spec().rewards) and none["progress"] == {}
    assert pairs["progress"]["ocr"][0] is None  # the first epoch's pictures are their own pairs
    assert pairs["time"]["totals"]["paired"] == pytest.approx(19 * 0.5)
    assert "Gain over paired base samples" in write(runs[:1], tmp_path / "page.html").read_text()


def test_a_truncated_last_line_and_a_resumed_step(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "cut", Spec(steps=30, eval_every=30))
    metrics = folder / "metrics.jsonl"
    whole = metrics.read_text()
    again = json.dumps({"step": 30, "kl": 9.0, "loss": None, "lr": float("nan")})
    metrics.write_text(whole + again + "\n" + '{"step": 31, "reward/ocr/me')
    read = read_metrics(metrics)
    assert read.steps.tolist() == list(range(1, 31))
    assert read.get("kl")[-1] == 9.0
    assert np.isnan(read.get("loss")[-1]) and np.isnan(read.get("lr")[-1])
    assert np.isnan(read.get("no such key")).all()
    assert data_of(write([folder], tmp_path / "p.html"))["runs"][0]["training"]["steps"][-1] == 30


@pytest.mark.parametrize("status", ["running", "interrupted", "failed", None])
def test_status_is_shown(tmp_path: Path, status: str | None) -> None:
    folder = make_run(tmp_path / "run", Spec(steps=40, logged=20, eval_every=20, status=status))
    html = write([folder], tmp_path / "p.html").read_text()
    shown = status or "unfinished"
    assert f'<span class="pill status-{shown}">{shown}</span>' in html
    assert "step 20 of 40" in html
    assert 'http-equiv="refresh"' not in html


def test_missing_files_are_missing_facts_not_errors(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "bare", Spec(steps=20, eval_every=10))
    for name in ("run.json", "evals.jsonl", "environment.json"):
        (folder / name).unlink()
    run = data_of(write([folder], tmp_path / "p.html"))["runs"][0]
    assert run["rewards"] == ["ocr", "geneval", "clip", "quality", "aesthetic"]
    assert run["evals"] == [] and run["chosen"] is None


def test_damaged_files_are_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "hurt", Spec(steps=20, eval_every=10, prompts=9))
    (folder / "evals/step-000020/003.png").write_bytes(b"\x89PNG half a picture")
    (folder / "evals/step-000020/004.png").unlink()
    next(folder.glob("advantages/*.json")).write_text('{"step": 10, "adv')
    data = data_of(write([folder], tmp_path / "p.html"))
    ids = {p["id"] for p in data["pairs"][0]["pairs"]}
    assert ids == set(range(9)) - {3, 4}
    (folder / "config.yaml").write_text("rewards: {train: [")
    with pytest.raises(MarbleError, match=r"config.yaml:1: not valid YAML"):
        write([folder], tmp_path / "p.html")


def test_pictures_keep_to_their_budget_and_are_stored_once(run: Path) -> None:
    files = sorted(run.glob("evals/step-000000/*.png"))
    store = Store(budget=40_000)
    kept = [store.add(files[0])]
    with pytest.raises(Full):
        kept += [store.add(file) for file in files[1:]]
    assert 0 < sum(len(uri) for uri in store.images) <= 40_000
    again = store.add(files[0])
    assert again == kept[0] and len(store.images) == len(set(store.images))


def test_what_was_left_out_is_counted(run: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("marble.report.page.PICTURE_LIMIT", 200_000)
    pairs = data_of(write([run], tmp_path / "p.html"))["pairs"][0]
    assert len(pairs["pairs"]) + pairs["left_out"] == 36
    assert 4 <= len(pairs["pairs"]) < 36
    means = [p["mean"] for p in pairs["pairs"]]
    everything = data_of(write([run], tmp_path / "q.html"))["pairs"][0]["pairs"]
    assert min(means) == min(p["mean"] for p in everything)
    assert max(means) == max(p["mean"] for p in everything)


def test_two_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    spec = Spec(steps=10, eval_every=10, prompts=6)
    folders = [make_run(tmp_path / parent / "run", spec) for parent in ("a", "b")]
    names = [r["name"] for r in data_of(write(folders, tmp_path / "p.html"))["runs"]]
    assert names == ["a/run", "b/run"]


def test_json_cannot_leave_its_element() -> None:
    text = _json({"prompt": "</script><!-- & \u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text)["prompt"] == "</script><!-- & \u2028"


def test_curves_are_thinned_by_means() -> None:
    steps, values = thin(np.arange(1, 11), np.arange(10.0), 5)
    assert steps == [2, 4, 6, 8, 10] and values == [0.5, 2.5, 4.5, 6.5, 8.5]
    gappy = np.array([1.0, np.nan, np.nan, np.nan])
    assert thin(np.arange(4), gappy, 2)[1] == [1.0, None]
    assert thin(np.arange(0), np.arange(0.0), 5) == ([], [])


def test_relative_curves_start_at_the_first_steps(run: Path) -> None:
    read = read_run(run)
    curves = training(read, 1000)
    raw = read.metrics.get("reward/clip/mean")
    assert curves["origin"]["clip"]["mean"] == pytest.approx(raw[:5].mean(), rel=1e-5)
    assert curves["steps"] == list(range(1, 301)) and curves["per_point"] == 1


def test_time_counts_a_missing_phase_as_none(run: Path) -> None:
    read = read_run(run)
    time_of = training(read, 1000)["time"]
    assert time_of["totals"]["eval"] == pytest.approx(27.0)  # three evaluations of 9 s
    assert sum(time_of["phases"]["eval"]) * time_of["per_point"] == pytest.approx(27.0, rel=0.01)


def test_harmony_counts_conflicts_and_keeps_pairs_apart(run: Path) -> None:
    read = read_run(run)
    found = harmony(read, 1000)
    low = read.metrics.get("harmony_sum/min")
    assert found["kinds"]["harmony_sum"]["conflict"] == np.mean(low[np.isfinite(low)] < 0)
    assert found["kinds"]["harmony"]["conflict"] == 0
    cosines = found["cosines"]
    assert cosines["steps"][-1] == 291 and len(cosines["upper"][-1]) == 10
    row = int(np.flatnonzero(read.metrics.steps == 291)[0])
    expected = [read.metrics.get(f"cos/{p}")[row] for p in ("ocr|geneval", "ocr|clip")]
    assert [v / 100 for v in cosines["upper"][-1][:2]] == pytest.approx(expected, abs=0.006)


def test_specialists_are_good_for_one_reward_only() -> None:
    nan = np.nan
    adv = np.array(
        [[2.0, 2.0, 0.5, 2.0, nan], [-1.0, 1.0, -1.0, nan, nan], [-0.5, 1.0, 0.0, nan, 3.0]]
    )
    # Of the three samples with two or more rewards, only the first is a specialist.
    assert specialist_share(adv) == pytest.approx(1 / 3)
    assert specialist_share(adv[:1]) is None


def test_numbers_read_well() -> None:
    assert [figure(v) for v in (0.4123, 21.347, -1.9, 1234.5, 0.0012, float("nan"))] == [
        "0.412", "21.35", "−1.90", "1234", "0.0012", "–",
    ]  # fmt: skip
    assert signed(0.12) == "+0.120" and signed(-0.0001, 0.5) == "+0.000"
    assert sigma(-0.004) == "0.00 σ" and sigma(1.5) == "+1.50 σ"
    assert [duration(s) for s in (12, 200, 7500)] == ["12 s", "3 min 20 s", "2 h 05 min"]


def test_watch_follows_a_run_to_its_end(tmp_path: Path, monkeypatch) -> None:
    folder = make_run(tmp_path / "live", Spec(steps=20, logged=10, eval_every=10, status="running"))
    out, reloads, naps = tmp_path / "p.html", [], []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:  # the first round found nothing new and wrote nothing
            make_run(folder, Spec(steps=20, eval_every=10))

    monkeypatch.setattr("time.sleep", nap)
    page = watch(
        [folder],
        out,
        7,
        on_write=lambda p: reloads.append('http-equiv="refresh" content="7"' in p.read_text()),
    )
    assert page == out and naps == [7, 7]
    assert reloads == [True, False]


def test_ten_thousand_steps_of_32_rewards_are_quick_and_small(tmp_path: Path) -> None:
    names = tuple(f"reward_{i:02d}" for i in range(32))
    spec = Spec(rewards=names, steps=200, eval_every=100, prompts=24)
    folder = make_run(tmp_path / "long", spec)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    with (folder / "metrics.jsonl").open("w") as file:
        for i in range(10_000):
            tail = lines[i % len(lines)].split(",", 1)[1]
            file.write(f'{{"step": {i + 1},{tail}\n')
    # One thread does it all, so its own clock is the wall clock of a machine that is not shared.
    start = time.process_time()
    page = write([folder], tmp_path / "p.html")
    took = time.process_time() - start
    assert page.stat().st_size < 10_000_000
    assert took < 15
    steps = data_of(page)["runs"][0]["training"]["steps"]
    assert steps[-1] == 10_000 and len(steps) <= 1000


def test_scripts_never_write_html() -> None:
    """Text from a run must reach the page as text."""
    assets = Path(sys.modules["marble.report"].__file__ or "").parent / "assets"
    for name in SCRIPTS:
        code = (assets / name).read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", code)


def test_two_rewards_are_told_that_alpha_is_one_half(tmp_path: Path) -> None:
    for names, told in ((("ocr", "clip"), True), (("ocr", "clip", "quality"), False)):
        run = make_run(tmp_path / str(told), Spec(rewards=names, steps=10, eval_every=10))
        page = write([run], tmp_path / "page.html").read_text()
        assert ("gives (½, ½) in every step" in page) == told
