"""Put the page together: data, template, styles and scripts in one HTML file."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import json
import math
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from marble import __version__
from marble.diagnose import diagnose
from marble.errors import MarbleError
from marble.evaluation.pareto import hypervolume
from marble.evaluation.runs import Evaluation
from marble.harmonise import RULES
from marble.report import compare, curves, numbers, pictures
from marble.report.flags import RANGE, WORDS, base_range
from marble.report.folder import Run, read_run
from marble.report.front import front
from marble.report.gains import recorded
from marble.report.verdict import Candidate, Verdict, judge

SIZE_LIMIT = 9_500_000
"""Bytes of the whole page; the promise is 10 MB."""
PICTURE_LIMIT = 4_000_000
MOST_POINTS = 1000
SCRIPTS = (
    "base.js",
    "training.js",
    "harmony.js",
    "tradeoffs.js",
    "pictures.js",
    "sliders.js",
    "drift.js",
    "main.js",
)


def write(runs: Sequence[Path | str], out: Path | str, *, refresh_s: int | None = None) -> Path:
    """Write the report of one run or several as one self-contained HTML file; returns its path.

    `refresh_s` makes the open page reload itself, for a run that is still going.
    """
    if not runs:
        raise MarbleError("no run given; try `marble report RUN`")
    target = Path(out)
    if target.is_dir():
        raise MarbleError(
            f"{target}: a folder; give the page a name, such as {target / 'report.html'}"
        )
    read = [read_run(Path(path)) for path in runs]
    html = render(read, refresh_s=refresh_s)
    try:
        _put(html, target)
    except OSError as error:
        raise MarbleError(
            f"{target}: the page cannot be written there ({error.strerror}); give a file with -o"
        ) from None
    return target


def _put(html: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and moved into place, so that an open browser never reloads half a page.
    part = target.with_name(f".{target.name}.part")
    part.write_text(html, encoding="utf-8")
    os.replace(part, target)


def render(runs: Sequence[Run], *, refresh_s: int | None = None) -> str:
    """The page as one string."""
    verdicts = [judge(run) for run in runs]
    labels = _labels(runs)
    plotly, script, style = _plotly(), _script(), _asset("style.css")
    payload = _payload(runs, verdicts, labels)
    spent = len(plotly) + len(script) + len(style) + len(_json(payload)) + 200_000
    payload |= _pictures(runs, verdicts, max(0, min(PICTURE_LIMIT, SIZE_LIMIT - spent)))
    template = _environment().get_template("page.html.j2")
    return template.render(
        runs=list(zip(labels, runs, verdicts)),
        diagnoses=[diagnose(run.record, run.metrics.columns) for run in runs],
        payload=payload,
        steered=any(payload["fronts"]),
        halves=any(map(_halves, runs)),
        comparison=compare.comparison(runs, labels),
        data=Markup(_json(payload)),
        plotly=Markup(plotly),
        script=Markup(script),
        style=Markup(style),
        policy=_policy(plotly, script),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
        refresh_s=refresh_s,
    )


def _payload(
    runs: Sequence[Run], verdicts: Sequence[Verdict], labels: Sequence[str]
) -> dict[str, Any]:
    names = list(dict.fromkeys(n for r in runs for n in (*r.rewards, *r.heldout)))
    # Fewer points a curve where there are many curves: a chart is no wider than a screen.
    most = max(120, min(MOST_POINTS, 60_000 // max(1, len(runs) * len(names))))
    return {
        "rewards": names,
        "runs": [
            {
                "name": label,
                "rewards": run.rewards,
                "pursued": run.pursued,
                "heldout": run.heldout,
                "training": curves.training(run, most),
                "harmony": curves.harmony(run, most),
                "advantages": curves.advantages(run),
                "evals": [_evaluation(e) for e in run.evals],
                "gains": [_gains(c) for c in verdict.candidates],
                "chosen": verdict.chosen.step if verdict.chosen else None,
                "hypervolume": _hypervolume(verdict),
                "drift": _drift(verdict),
            }
            for run, verdict, label in zip(runs, verdicts, labels)
        ],
    }


def _pictures(runs: Sequence[Run], verdicts: Sequence[Verdict], budget: int) -> dict[str, Any]:
    store = pictures.Store(budget)
    chosen, last = [v.chosen for v in verdicts], [v.last for v in verdicts]
    beside = pictures.by_method(runs, last, store, budget // 3) if len(runs) > 1 else None
    fronts = [front(run, store, budget // 3 // len(runs)) for run in runs]
    films = [pictures.film(run, store, budget // 5 // len(runs)) for run in runs]
    share = store.budget // len(runs)
    pairs = [pictures.pairs(run, c, store, share) for run, c in zip(runs, chosen)]
    rollouts = [
        None if p["pairs"] else pictures.rollouts(run, store, share) for run, p in zip(runs, pairs)
    ]
    parts = {"by_method": beside, "films": films, "pairs": pairs, "rollouts": rollouts}
    parts |= {"fronts": fronts}
    return {**parts, "images": store.images}


def _evaluation(evaluation: Evaluation) -> dict[str, Any]:
    scores = {name: recorded(evaluation, name) for name in evaluation.names()}
    return {
        "step": 0 if evaluation.policy == "base" else evaluation.step,
        "scores": {n: numbers.compact(s[:3], 5) for n, s in scores.items() if s},
    }


def _gains(candidate: Candidate) -> dict[str, Any]:
    every = (*candidate.trained, *candidate.held)
    return {
        "step": candidate.step,
        "z": {g.name: numbers.compact([g.z])[0] for g in every},
        "trained": numbers.compact([numbers.mean([g.z for g in candidate.trained])])[0],
        "held": numbers.compact([numbers.mean([g.z for g in candidate.held])])[0],
        "sound": candidate.sound,
    }


def _hypervolume(verdict: Verdict) -> float | None:
    """Volume that the checkpoints dominate beyond the base, over all trained rewards, in σ."""
    points = np.array([[g.z for g in c.trained] for c in verdict.candidates])
    if points.ndim != 2 or not np.isfinite(points).all():
        return None
    return numbers.compact([hypervolume(points, np.zeros(points.shape[1])).value])[0]


def _drift(verdict: Verdict) -> dict[str, Any]:
    """Each image statistic at every evaluation, with the base's range."""
    by_step = verdict.statistics
    flags = {(c.step, check.name) for c in verdict.candidates for check in c.flagged}
    found: dict[str, Any] = {}
    for name, (title, _, _) in WORDS.items():
        steps = [s for s, stats in by_step.items() if name in stats]
        band = base_range(by_step[0][name]) if 0 in steps else None
        if steps:
            found[name] = {
                "title": title,
                "steps": steps,
                "means": numbers.compact([numbers.mean(by_step[s][name]) for s in steps]),
                "range": numbers.compact(band) if band else None,
                "flagged": [(s, name) in flags for s in steps],
            }
    return found


def _halves(run: Run) -> bool:
    """Whether its rule gives two rewards the same α throughout; own rules are not looked into."""
    rule = RULES.get(str(run.method))
    return rule is not None and rule.halves and len(run.rewards) == 2


def _labels(runs: Sequence[Run]) -> list[str]:
    """Folder names; with the folder above in front where two are the same, else numbered."""
    labels = [run.name for run in runs]
    if len(set(labels)) < len(labels):
        labels = [f"{run.path.resolve().parent.name}/{run.name}" for run in runs]
    if len(set(labels)) < len(labels):
        labels = [f"{label} ({i})" for i, label in enumerate(labels, 1)]
    return labels


def _json(data: Any) -> str:
    """JSON that cannot close its script element or open a comment: data stays data."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _asset(name: str) -> str:
    return (resources.files("marble.report") / "assets" / name).read_text(encoding="utf-8")


def _script() -> str:
    body = "\n".join(_asset(name) for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{body}\n}})();'


def _plotly() -> str:
    """plotly.js as the Python package ships it; found without importing the package."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise MarbleError("the report needs plotly: pip install 'marble-rl[report]'")
    file = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    return file.read_text(encoding="utf-8").replace("</script", "<\\/script")


def _policy(*scripts: str) -> str:
    """Content-Security-Policy: these scripts and no other, nothing from the network."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'"
        for s in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("marble.report", "assets"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "figure": numbers.figure,
        "signed": numbers.signed,
        "sigma": numbers.sigma,
        "percent": numbers.percent,
        "duration": numbers.duration,
    }
    environment.globals |= {
        "forest": forest,
        "harmony_kinds": curves.HARMONY,
        "base_share": RANGE[1] - RANGE[0],
        "isfinite": math.isfinite,
    }
    return environment


def forest(candidate: Candidate) -> dict[str, dict[str, float]]:
    """Positions (0–100) of each gain and its interval on one shared axis, zero in its place."""
    every = [g for g in (*candidate.trained, *candidate.held) if g.spread > 0]
    ends = [v / g.spread for g in every for v in (g.lo, g.hi, g.delta) if math.isfinite(v)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    pad = 0.06 * (high - low or 1)
    low, high = low - pad, high + pad

    def place(value: float, spread: float) -> float:
        return round(100 * (value / spread - low) / (high - low), 2)

    zero = place(0.0, 1.0)
    return {
        g.name: {
            "zero": zero,
            "at": place(g.delta, g.spread),
            "lo": place(g.lo if math.isfinite(g.lo) else g.delta, g.spread),
            "hi": place(g.hi if math.isfinite(g.hi) else g.delta, g.spread),
        }
        for g in every
    }
