"""`marble diagnose` names what is wrong with a run, and nothing where nothing is."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from _ill import cases, make, told

from _command import marble  # noqa: F401
from marble.diagnose import diagnose

SHORT = ("train.steps=20", "eval.images_per_prompt=1")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # twelve numbers: threads only wait for each other
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory) -> Path:
    """A run whose two rewards rise."""
    folder = tmp_path_factory.mktemp("runs")
    return make(cases(folder)["healthy"], folder / "healthy")


def changed(run: Path, out: Path, rows, evals: bool = False) -> Path:
    """A copy of a run with other metrics; without `evals`, one that has not been evaluated yet."""
    shutil.copytree(run, out)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    found = [rows(i, json.loads(line)) for i, line in enumerate(lines)]
    (out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    if not evals:
        (out / "evals.jsonl").write_text("")
        for row in found:
            assert row["step"]
    return out


def flat(row: dict) -> dict:
    """`similarity` does not rise."""
    row = {k: v for k, v in row.items() if not k.startswith(("progress", "probe"))}
    return row | {"reward/similarity/mean": 0.5 + 0.01 * (-1) ** row["step"]}


def test_nothing_on_a_healthy_run(healthy):
    found = diagnose(healthy)
    assert found.findings == [] and found.rising == ["similarity", "preference"]
    assert found.headline == "2 of 2 rewards rise after 40 steps; nothing stands out."


INJECTED = {
    "groups without spread": {"reward/similarity/informative": 0.1},
    "rarely applies": {"reward/similarity/applicable": 0.004},
    "clipped advantages": {"advantage/similarity/clipped": 0.05},
    "mostly noise": {"progress/similarity": 0.0, "progress_trust/similarity": 0.05},
    "little weight": {"alpha/similarity": 0.001},
    "opposed by other rewards": {"cos/similarity|preference": -0.6},
    "no cause found": {"cos/similarity|preference": 0.4},
}


@pytest.mark.parametrize("ailment", INJECTED)
def test_each_cause_from_the_curves_of_a_run_that_goes_on(healthy, tmp_path, ailment):
    run = changed(healthy, tmp_path / "run", lambda i, row: flat(row) | INJECTED[ailment])
    found = diagnose(run)
    assert [(f.ailment, f.reward) for f in found.findings] == [(ailment, "similarity")]
    assert found.rising == ["preference"] and found.flat == ["similarity"]
    (finding,) = found.findings
    assert "similarity" in finding.said and finding.change.endswith(".")


WHOLE = {
    "too small a step": lambda i, row: flat(row) | {"kl": 1e-9, "reward/preference/mean": 0.1},
    "too large a step": lambda i, row: flat(row) | {"kl": 3.0, "reward/preference/mean": 0.1},
    "v_old stands still": lambda i, row: flat(row) | {"kl": 0.04, "old_deviation": 0.035},
    "collapse": lambda i, row: row | {"drift/diversity": 0.3 if i < 20 else 0.01},
}


@pytest.mark.parametrize("ailment", WHOLE)
def test_a_cause_that_explains_all_stands_alone(healthy, tmp_path, ailment):
    def rows(i, row):
        kept = {k: v for k, v in row.items() if not k.startswith(("progress", "probe"))}
        return WHOLE[ailment](i, kept)

    found = diagnose(changed(healthy, tmp_path / "run", rows))
    assert [(f.ailment, f.reward) for f in found.findings] == [(ailment, None)]


def test_a_run_thrown_far_off_took_too_large_steps_although_it_came_back(healthy, tmp_path):
    """As a LoRA does that large steps end in zero: its last distance from the base is 0."""

    def rows(i, row):
        return flat(row) | {"kl": 40.0 if 5 < i < 15 else 0.0, "reward/preference/mean": 0.1}

    found = diagnose(changed(healthy, tmp_path / "run", rows)).findings
    assert [f.ailment for f in found] == ["too large a step"]


def test_a_collapse_is_told_although_the_pictures_came_back(healthy, tmp_path):
    def rows(i, row):
        return row | {"drift/diversity": 0.01 if 15 < i < 25 else 0.3}

    (finding,) = diagnose(changed(healthy, tmp_path / "run", rows, evals=True)).findings
    assert finding.ailment == "collapse" and "differ by 0.01, 0.3 at first" in finding.said


def test_skipped_steps_are_too_large_a_step(healthy, tmp_path):
    run = changed(healthy, tmp_path / "run", lambda i, row: row | {"skipped": i // 4}, evals=True)
    (finding,) = diagnose(run).findings
    assert finding.ailment == "too large a step" and "22 % of the steps" in finding.said


def test_a_young_run_and_one_without_a_line(healthy, tmp_path):
    young = changed(healthy, tmp_path / "young", lambda i, row: row)
    lines = (young / "metrics.jsonl").read_text().splitlines(keepends=True)
    (young / "metrics.jsonl").write_text("".join(lines[:4]) + '{"step": 5, "los')
    assert diagnose(young).headline == "4 steps are too few to say anything; look again after 10."
    (young / "metrics.jsonl").unlink()
    assert diagnose(young).findings == []


def test_the_command(marble, healthy, tmp_path):  # noqa: F811
    assert marble("diagnose", healthy).out == diagnose(healthy).headline + "\n"
    run = changed(healthy, tmp_path / "run", lambda i, r: flat(r) | INJECTED["little weight"])
    text = marble("diagnose", run).out
    assert "little weight (similarity)\n" in text and "  → Raise rewards.similarity" in text
    record = json.loads(marble("diagnose", run, "--json").out)
    assert record["findings"][0]["ailment"] == "little weight"
    assert marble("diagnose", tmp_path).status == 2


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("marble", "Raise balance.priorities.similarity."),
        ("upgrad", "Raise balance.priorities.similarity."),
        ("progress", "Raise rewards.similarity.priority."),
        ("weighted_sum", "Raise rewards.similarity.weight."),
        ("uniform", "Raise rewards.similarity.weight with balance.method=fixed."),
        ("mine.py:Rule", "Raise balance.priorities.similarity (or rewards.similarity.priority)."),
    ],
)
def test_the_remedy_is_one_the_method_has(healthy, tmp_path, method, change):
    run = changed(healthy, tmp_path / "run", lambda i, r: flat(r) | INJECTED["little weight"])
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["balance"]["method"] = method
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert change in [finding.change for finding in diagnose(run).findings]


CANCELLING = {
    "cos/similarity|preference": -0.97,
    "alpha/similarity": 0.5,
    "alpha/preference": 0.5,
    "reward/preference/mean": 0.1,
}


@pytest.mark.parametrize(
    ("method", "named"),
    [
        ("marble", ["rewards that cancel out"]),
        ("cagrad", ["rewards that cancel out"]),
        ("uniform", ["opposed by other rewards"] * 2),  # it takes weight from nobody
    ],
)
def test_two_rewards_that_cancel_out_are_one_finding(healthy, tmp_path, method, named):
    run = changed(healthy, tmp_path / "run", lambda i, row: flat(row) | CANCELLING)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["balance"]["method"] = method
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    found = diagnose(run)
    assert found.flat == ["similarity", "preference"]
    assert [finding.ailment for finding in found.findings] == named
    if method != "uniform":
        assert found.findings[0].said == (
            "similarity and preference oppose each other (mean cosine -0.97): no step helps both. "
            "They have 100 % of the weight."
        )


def test_another_fault_is_named_beside_rewards_that_cancel_out(healthy, tmp_path):
    broken = CANCELLING | INJECTED["rarely applies"]
    run = changed(healthy, tmp_path / "run", lambda i, row: flat(row) | broken)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["balance"]["method"] = "marble"
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    named = [(finding.ailment, finding.reward) for finding in diagnose(run).findings]
    assert named == [("rewards that cancel out", None), ("rarely applies", "similarity")]


def test_only_what_the_pair_explains_is_left_out():
    from types import SimpleNamespace

    from marble.diagnose.findings import Finding, _by_cancelling

    def left_out(reward, ailment, weight):
        evidence = SimpleNamespace(cancelling=(["a", "b"], -1.0, weight))
        return _by_cancelling(evidence, Finding(ailment, reward, "", ""))

    assert left_out("a", "no cause found", 0.4) and left_out("c", "little weight", 0.9)
    assert not left_out("c", "no cause found", 0.4)  # the pair has no hold on it
    assert not left_out("a", "constant score", 0.9)


@pytest.mark.parametrize("objective", ["awm", "dpo", "grpo"])
def test_a_kl_that_is_no_distance_from_the_base_is_not_taken_for_one(healthy, tmp_path, objective):
    """awm and dpo hold to v_old: their `kl` is `old_deviation`. grpo's is in other units."""
    for name, row in (("far", {"kl": 3.0, "old_deviation": 3.0}), ("near", {"kl": 1e-9})):
        run = changed(healthy, tmp_path / name, lambda i, r, row=row: flat(r) | row)
        config = yaml.safe_load((run / "config.yaml").read_text())
        config["objective"] = {"name": objective}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        named = {finding.ailment for finding in diagnose(run).findings}
        assert not named & {"v_old stands still", "too large a step", "too small a step"}


def test_real_runs_of_twenty_steps(tmp_path):
    ill = cases(tmp_path)
    for name in ("noise", "small step"):
        made = ill[name]
        short = type(made)((*made.overrides, *SHORT), made.ailment, made.reward)
        found = diagnose(make(short, tmp_path / name.replace(" ", "-")))
        named = [(f.ailment, f.reward) for f in found.findings]
        assert (made.ailment, made.reward) in named, (name, named)


def test_the_report_has_it(healthy, tmp_path):
    from marble.report import write

    run = changed(healthy, tmp_path / "run", lambda i, r: flat(r) | INJECTED["little weight"])
    text = write([run], tmp_path / "page.html").read_text()
    section = text.split('<section id="diagnosis"')[1].split("</section>")[0]
    assert "little weight" in section and "Raise rewards.similarity.priority" in section


@pytest.mark.slow
def test_every_ailment_is_named(tmp_path):
    """The table of docs/diagnose.md: at least nine in ten, nothing on the healthy runs."""
    found = list(told(tmp_path))
    wrong = [t for t in found if not t.right]
    assert len(wrong) <= 0.1 * len(found), wrong
    assert not [t for t in wrong if t.case.startswith("healthy")]
