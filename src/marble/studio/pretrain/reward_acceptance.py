"""The figures the studio's rewards have to reach, measured with the classes the product uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from marble.rewards.aesthetic import Aesthetic
from marble.rewards.base import Reward
from marble.rewards.clipscore import CLIPScore
from marble.rewards.geneval import GenEval
from marble.rewards.pickscore import PickScore
from marble.rewards.realism import Realism

from ..world import degrade
from .reward_data import Pictures

#: name → (least, greatest) acceptable value.
BOUNDS: dict[str, tuple[float, float]] = {
    "geneval strict, real": (0.95, 1.0),
    "geneval strict, one error": (0.0, 0.1),
    "clip retrieval of 64": (0.9, 1.0),
    "clip2 retrieval of 64": (0.9, 1.0),
    "pick clean over degraded": (0.95, 1.0),
    "pick right over one error": (0.9, 1.0),
    "aesthetic clean over degraded": (0.95, 1.0),
    "realism clean over degraded": (0.95, 1.0),
}


def acceptance(
    folder: Path,
    held_out: Pictures,
    *,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> dict[str, float]:
    """Measure everything on held-out pictures, degraded by the world's means (not trained on)."""
    torch.manual_seed(seed)
    images = held_out.images.cpu()
    prompts, metadata = held_out.prompts, held_out.metadata
    broken = held_out.broken.cpu()
    degraded = degrade_all(images, seed)
    rewards = load_from(folder, device)

    def scores(name: str, pictures: torch.Tensor) -> np.ndarray:
        return np.asarray(rewards[name].score(pictures, prompts, metadata))

    judged = np.array([rewards["geneval"].applies(m) for m in metadata])
    table: dict[str, float] = {}
    strict = rewards["geneval"].score(images[judged], [], _take(metadata, judged))
    table["geneval strict, real"] = float(np.mean(strict))
    for tag in sorted({m["tag"] for m in _take(metadata, judged)}):
        chosen = [m["tag"] == tag for m in _take(metadata, judged)]
        table[f"  real, {tag}"] = float(np.mean(np.asarray(strict)[chosen]))
    fooled = rewards["geneval"].score(broken[judged], [], _take(metadata, judged))
    table["geneval strict, one error"] = float(np.mean(fooled))
    for tag in sorted({m["tag"] for m in _take(metadata, judged)}):
        chosen = [m["tag"] == tag for m in _take(metadata, judged)]
        table[f"  one error, {tag}"] = float(np.mean(np.asarray(fooled)[chosen]))
    for name in ("clip", "clip2"):
        table[f"{name} retrieval of 64"] = retrieval(rewards[name], images, prompts, seed)
        for source in sorted({m["source"] for m in metadata}):
            theirs = np.array([m["source"] == source for m in metadata])
            if theirs.sum() >= 64:
                table[f"  {name} retrieval, {source}"] = retrieval(
                    rewards[name], images[theirs], _take(prompts, theirs), seed
                )
        right, error = scores(name, images), scores(name, broken)
        table[f"{name} right over one error"] = float(np.mean(right > error))
    for name in ("pick", "aesthetic", "realism"):
        clean, bad = scores(name, images), scores(name, degraded)
        table[f"{name} clean over degraded"] = float(np.mean(clean > bad))
        table[f"  {name} mean, clean"] = float(clean.mean())
        table[f"  {name} mean, degraded"] = float(bad.mean())
    table["pick right over one error"] = float(
        np.mean(scores("pick", images) > scores("pick", broken))
    )
    table["pick, aesthetic correlation, clean"] = float(
        np.corrcoef(scores("pick", images), scores("aesthetic", images))[0, 1]
    )
    return table


def load_from(folder: Path, device: str | torch.device) -> dict[str, Any]:
    """The product's classes on the folders that training wrote."""
    rewards: dict[str, Reward] = {
        "clip": CLIPScore(folder / "clip", device=device),
        "clip2": CLIPScore(folder / "clip2", device=device),
        "pick": PickScore(folder / "pick", device=device),
        "aesthetic": Aesthetic(
            folder / "pick", head=folder / "aesthetic" / "head.safetensors", device=device
        ),
        "geneval": GenEval("centernet", path=folder / "detector", device=device),
        "realism": Realism(folder / "realism", device=device),
    }
    return rewards


def retrieval(reward: CLIPScore, images: torch.Tensor, prompts: list[str], seed: int) -> float:
    """How often the picture's own caption is the best of 64 different ones."""
    rng = np.random.default_rng(seed)
    pictures = reward.encoder.embed_images(images)
    unique = sorted(set(prompts))
    texts = reward.encoder.embed_texts(unique)
    row = {p: i for i, p in enumerate(unique)}
    hits = 0
    for i, prompt in enumerate(prompts):
        others = rng.permutation(len(unique))
        others = others[others != row[prompt]][:63]
        own = pictures[i] @ texts[row[prompt]]
        hits += bool(own > (texts[torch.from_numpy(others)] @ pictures[i]).max())
    return hits / len(prompts)


def degrade_all(images: torch.Tensor, seed: int) -> torch.Tensor:
    arrays = images.permute(0, 2, 3, 1).numpy()
    out = np.stack([degrade(a, np.random.default_rng([seed, i])) for i, a in enumerate(arrays)])
    return torch.from_numpy(out).permute(0, 3, 1, 2).contiguous()


def _take(items: list[Any], mask: np.ndarray) -> list[Any]:
    return [item for item, keep in zip(items, mask) if keep]


def report(table: dict[str, float]) -> str:
    """The table as text, with what misses its bound marked."""
    lines = []
    for name, value in table.items():
        low, high = BOUNDS.get(name, (-np.inf, np.inf))
        mark = "" if name not in BOUNDS else ("ok" if low <= value <= high else "MISSED")
        lines.append(f"{name:40s} {value:8.3f}  {mark}")
    return "\n".join(lines)
