"""GenEval's metadata lines: the public 2212 where they lie beside the checkout, and our own."""

import json
from functools import cache
from pathlib import Path

from marble.studio.world import load_split

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "prompts" / "geneval" / "test_metadata.jsonl"


@cache
def metadata_lines() -> list[dict]:
    own = [p["metadata"] for split in ("train", "test") for p in load_split("geneval", split)]
    public = SHARED.read_text().splitlines() if SHARED.exists() else []
    return own + [json.loads(line) for line in public]
