"""A row of `metrics.jsonl`."""

from __future__ import annotations

from typing import Any

from marble.balance import Batch, StepReport


def step_row(
    names: list[str],
    batch: Batch,
    report: StepReport,
    *,
    applied: dict[str, float] | None,
    step: int,
    epoch: int,
    lr: float,
) -> dict[str, Any]:
    """Everything known about a step except its times, under the documented keys."""
    row: dict[str, Any] = {"step": step + 1, "epoch": epoch, "loss": report.loss, "lr": lr}
    row |= {"kl": report.kl, "old_deviation": report.old_deviation}
    counts, n = batch.adv.counts_K, max(1, batch.size)
    for k, name in enumerate(names):
        valid = int(counts.valid[k])
        values = batch.adv.adv_KN[k][batch.adv.valid_KN[k]]
        row[f"reward/{name}/mean"] = float(batch.means_K[k])
        row[f"reward/{name}/std"] = float(batch.stds_K[k])
        row[f"reward/{name}/applicable"] = valid / n
        row[f"reward/{name}/informative"] = int(counts.informative[k]) / max(1, valid)
        row[f"advantage/{name}/std"] = float(values.std(correction=0)) if len(values) else None
        row[f"advantage/{name}/clipped"] = int(counts.clipped[k]) / max(1, valid)
        row[f"alpha/{name}"] = float(report.alpha_K[k])
        row[f"alpha_raw/{name}"] = float(report.alpha_raw_K[k])
        row[f"coefficient/{name}"] = float(report.coefficients_K[k])
        if report.norms_K is not None:
            row[f"grad_norm/{name}"] = float(report.norms_K[k])
    if report.cos_KK is not None:
        for a in range(len(names)):
            for b in range(a + 1, len(names)):
                row[f"cos/{names[a]}|{names[b]}"] = float(report.cos_KK[a, b])
    groups = {
        "harmony": report.harmony,
        "harmony_heldout": report.harmony_heldout,
        "harmony_applied": applied,
        "harmony_sum": report.harmony_sum,
    }
    for group, found in groups.items():
        for key, value in (found or {}).items():
            row[f"{group}/{key}"] = value
    if report.gap is not None:
        row["qp/gap"] = report.gap
    if report.notes:
        row["notes"] = list(report.notes)
    return row
