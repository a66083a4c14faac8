"""Where a step's milliseconds go, before and after, from the JSON of `marble bench loop`.

python scripts/loop_figure.py benchmarks/results/loop_sd35m_h200.json --out docs/img/loop.png
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt

from figures import main

# Okabe and Ito's palette: told apart by everyone, also in print.
COLOURS = {
    "sampling": "#0072B2",
    "decoding": "#56B4E9",
    "v_old, v_θ, backward": "#D55E00",
    "v_ref for the KL": "#E69F00",
    "refresh (K gradients, solve)": "#009E73",
    "optimiser": "#999999",
}
BARS = {
    "public": "public loop",
    "ours, weighted sum": "ours, weighted sum",
    "ours, MARBLE N = 10": "ours, MARBLE N = 10",
    "ours, MARBLE N = 1": "ours, MARBLE N = 1",
}


def slices(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Bar → part → milliseconds per picture."""
    found = {}
    for name, label in BARS.items():
        if name not in result["steps"]:
            continue
        ms = result["steps"][name]["ms_per_picture"]
        side = "public" if name == "public" else "ours"
        with_kl = _reference(result, side) * ms["training"]
        found[label] = {
            "sampling": ms["sampling"],
            "decoding": ms["decoding"],
            "v_old, v_θ, backward": ms["training"] - with_kl,
            "v_ref for the KL": with_kl,
            "refresh (K gradients, solve)": ms.get("recorded", 0.0) + ms.get("solve", 0.0),
            "optimiser": ms["update"],
        }
    return found


def _reference(result: dict[str, Any], side: str) -> float:
    """Share of v_ref's forward in ordinary micro-batches: one of four passes in the public loop."""
    if side == "public":
        return 0.25
    kl, plain = (result["parts"][part]["ours"]["ms"] for part in ("kl", "plain"))
    every = result["setup"]["ours"]["kl_every"]
    if not every:
        return 0.0
    extra = max(0.0, kl - plain) / every
    return float(extra / (extra + plain))


def draw(result: dict[str, Any]) -> plt.Figure:
    bars = slices(result)
    figure, axis = plt.subplots(figsize=(8, 0.55 * len(bars) + 1.3), layout="constrained")
    for row, parts in enumerate(bars.values()):
        left = 0.0
        for name, ms in parts.items():
            axis.barh(row, ms, left=left, color=COLOURS[name], label=name if row == 0 else None)
            left += ms
        axis.text(left, row, f" {left:.0f} ms", va="center", fontsize=8)
    limit = _limit(result)
    if limit:
        axis.axvline(limit, color="#000000", lw=0.9, ls=":")
        axis.text(limit, -0.75, "limit of the card", ha="center", fontsize=7)
    axis.set_yticks(range(len(bars)), list(bars))
    axis.invert_yaxis()
    axis.set_xlabel(f"milliseconds per picture, {result['device']}")
    axis.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.35), fontsize=8)
    return figure


def _limit(result: dict[str, Any]) -> float | None:
    """ms per picture that the passes of ours would take at the speed of a plain matrix product."""
    known, made = result.get("limit"), result["setup"]["ours"]
    if not known or result["device"] == "CPU":
        return None
    reference = 1 / made["kl_every"] if made["kl_every"] else 0.0
    passes = made["sampling_steps"] + made["pairs"] * (3 + reference)
    return float(1e3 * passes * known["forward_tflop_per_picture"] / known["matmul_tflops"])


if __name__ == "__main__":
    main(__doc__, "JSON of `marble bench loop --out`", lambda results, _: draw(results[0]))
