"""A model folder that cannot be used: one line that names what is wrong, before any long work."""

import json
import shutil

import pytest

from marble.errors import MarbleError
from marble.models import check, load
from marble.models.sd3 import SD3


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "model")


def refused(path, match):
    for action in (check, load):
        with pytest.raises(MarbleError, match=match) as caught:
            action(str(path))
        assert "\n" not in str(caught.value)


def test_a_whole_folder_passes(folder):
    assert check(str(folder)) == (folder, SD3)


def test_missing_folder(tmp_path):
    refused(tmp_path / "nowhere", "no such folder")


def test_not_a_pipeline(tmp_path):
    refused(tmp_path, "no model_index.json")


def test_a_pipeline_of_no_known_family(copy):
    index = json.loads((copy / "model_index.json").read_text())
    (copy / "model_index.json").write_text(json.dumps({**index, "_class_name": "OtherPipeline"}))
    refused(copy, "holds a OtherPipeline.*supported: StableDiffusion3Pipeline.*extend-model.md")


def test_a_pipeline_without_one_of_its_parts(copy):
    index = json.loads((copy / "model_index.json").read_text())
    for gone in ({**index, "vae": [None, None]}, {k: v for k, v in index.items() if k != "vae"}):
        (copy / "model_index.json").write_text(json.dumps(gone))
        refused(copy, "a StableDiffusion3Pipeline needs a vae, which model_index.json lacks")


def test_options_are_those_of_the_family(folder):
    with pytest.raises(MarbleError, match=r"model.options.shift: unknown key; Stable.* has: none"):
        check(str(folder), options={"shift": 3})


def test_broken_index(copy):
    (copy / "model_index.json").write_text("{")
    refused(copy, "model_index.json: cannot be read as JSON")
    (copy / "model_index.json").write_text("{}")
    refused(copy, "names no pipeline class")


@pytest.mark.parametrize("part", ["transformer", "vae", "text_encoder", "text_encoder_2"])
def test_weight_file_missing_cut_or_pickled(copy, part):
    (file,) = (copy / part).glob("*.safetensors")
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:100], whole[:4], b"", b"\0" * len(whole)):
        file.write_bytes(damaged)
        refused(copy, f"cut short: .*{part}.*{file.name}")
    file.unlink()
    (copy / part / "pytorch_model.bin").write_bytes(whole)
    refused(copy, f"{part}: no .safetensors weight file")
    shutil.rmtree(copy / part)
    refused(copy, f"the folder {part}/ is missing")


def test_missing_shard_is_named(copy):
    (file,) = (copy / "transformer").glob("*.safetensors")
    shard = file.with_name("shard-1.safetensors")
    file.rename(shard)
    index = {"weight_map": {"a": shard.name, "b": "shard-2.safetensors"}}
    (copy / "transformer" / f"{file.name}.index.json").write_text(json.dumps(index))
    refused(copy, "weight file missing: .*shard-2.safetensors")


def test_weights_of_another_shape(copy):
    config = json.loads((copy / "transformer" / "config.json").read_text())
    (copy / "transformer" / "config.json").write_text(json.dumps({**config, "num_layers": 3}))
    with pytest.raises(MarbleError, match="cannot be opened"):
        load(str(copy))


def test_hub_id_that_cannot_be_had(monkeypatch):
    from diffusers import DiffusionPipeline

    asked = []

    def download(name, revision=None, **options):
        asked.append((name, revision))
        raise OSError("We could not connect\nto the hub, at length")

    monkeypatch.setattr(DiffusionPipeline, "download", download)
    with pytest.raises(MarbleError, match="org/model is not on this machine and cannot be"):
        load("org/model", revision="abc")
    assert asked == [("org/model", "abc")]


def test_hub_id_is_downloaded_once(monkeypatch, folder):
    from diffusers import DiffusionPipeline

    asked = []
    monkeypatch.setattr(
        DiffusionPipeline, "download", lambda name, **_: asked.append(name) or str(folder)
    )
    assert load("org/model").latent_shape == (4, 8, 8)
    assert asked == ["org/model"]
