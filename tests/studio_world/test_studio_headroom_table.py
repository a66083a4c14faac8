"""The last lines of `make studio`: how much the base leaves to be learnt."""

import torch
from PIL import Image

from marble.studio import asset
from marble.studio.pretrain.headroom import measure, report


def test_it_measures_the_shipped_base_and_draws_a_sheet(tmp_path):
    sheet = tmp_path / "base.png"
    cpu = torch.device("cpu")
    found = measure(asset("pipeline"), asset("rewards"), cpu, prompts=4, sheet=sheet)
    assert set(found) == {f"{s}{w}" for s in ("ocr", "geneval") for w in ("", ", wholly right")}
    assert all(0 <= value <= 1 for value in found.values()) and sum(found.values()) > 0
    assert Image.open(sheet).size == (12 * 64, 64)


def test_what_misses_its_range_is_marked():
    lines = report({"ocr": 0.5, "geneval": 0.8, "geneval, wholly right": 0.9}).splitlines()
    assert [line.split()[-1] for line in lines] == ["ok", "MISSED", "0.900"]
