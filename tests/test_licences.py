"""What an install brings may be shipped with Apache-2.0 code: nothing under the GPL."""

import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from licences import installed, is_copyleft


def test_nothing_that_the_rewards_need_is_under_the_gpl():
    found = installed("marble-rl", {"rewards", "serve", "report", "trackers"})
    assert {"torch", "diffusers", "transformers", "rapidocr", "onnxruntime", "fastapi"} <= set(
        found
    )
    assert "marble-rl" in found and len(found) > 50
    assert {name: text for name, text in found.items() if is_copyleft(text)} == {}
    # The list of NVIDIA's libraries that torch's CUDA build brings: a package without code.
    unknown = {name for name, text in found.items() if text == "not stated"}
    assert unknown <= {"cuda-toolkit"}


def test_the_rewards_extra_names_what_rewards_import():
    """Of this checkout, whose metadata an editable install may have missed."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    names = {Requirement(line).name for line in extras["rewards"]}
    assert names == {"rapidocr", "onnxruntime", "httpx"}  # OCR twice, and the HTTP clients


def test_the_install_compiles_nothing_old_and_needs_no_torchvision():
    found = set(installed("marble-rl", {"rewards"}))
    assert {"rapidocr", "onnxruntime", "opencv-python-headless"} <= found
    assert not found & {"mmcv", "mmdet", "paddlepaddle", "hpsv2", "image-reward", "torchvision"}


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("GPL-3.0-or-later", True),
        ("AGPL-3.0", True),
        ("GNU General Public License v3 (GPLv3)", True),
        ("GNU Affero General Public License v3", True),
        ("MIT AND GPL-2.0-only", True),
        ("MIT OR GPL-2.0-only", False),
        ("GNU Lesser General Public License v2 (LGPLv2)", False),
        ("LGPL-2.1-or-later", False),
        ("Apache-2.0", False),
    ],
)
def test_what_counts_as_gpl(text, bad):
    assert is_copyleft(text) == bad
