"""The studio: a small text-to-image model, its world and its rewards, shipped with the package."""

from importlib import resources
from pathlib import Path

TRAINED = "studio-trained"
"""What `sample` and `eval` call the shipped LoRA that the recipe studio-gpu made."""


def asset(name: str) -> Path:
    """Where a part of the studio lies: `pipeline`, `rewards/clip`, `world` …"""
    return Path(str(resources.files("marble"))) / "studio" / "assets" / name
