"""Nothing in a run folder or a LoRA is ever unpickled, whatever it is called."""

import hashlib
import io
import json
import os
import pickle
import shutil

import pytest
import torch
from _survive import final_state, make_world, run_here

from marble.errors import MarbleError
from marble.models import load

# What other trainers and libraries leave in, and look for in, such folders.
NAMES = [
    "adapter_model.bin",
    "checkpoint.pt",
    "custom_checkpoint_0.pkl",
    "data.pkl",
    "diffusion_pytorch_model.bin",
    "latest.pt",
    "model.ckpt",
    "model.pt",
    "model.pth",
    "optimizer.bin",
    "optimizer.pt",
    "pytorch_lora_weights.bin",
    "pytorch_model.bin",
    "random.pkl",
    "random_states_0.pkl",
    "rng_state.pth",
    "scaler.pt",
    "scheduler.bin",
    "state.pickle",
    "trainer.pkl",
    "trainer.pt",
    "trainer_state.pt",
    "training_args.bin",
]


class Bomb:
    """Unpickling it leaves a file behind."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    recipe = make_world(tmp_path_factory.mktemp("pickle"))
    out = tmp_path_factory.mktemp("finished") / "run"
    outcome, _ = run_here(recipe, out, "train.steps=2", "eval.at_start=false")
    assert outcome.finished
    return out


@pytest.fixture
def bomb(tmp_path):
    """Pickled bytes, plain and as torch.save writes them, and where they would leave a mark."""
    mark = tmp_path / "exploded"
    wrapped = io.BytesIO()
    torch.save(Bomb(mark), wrapped)
    plain = pickle.dumps(Bomb(mark))
    pickle.loads(plain)
    assert mark.is_dir()  # it works
    mark.rmdir()
    return mark, plain, wrapped.getvalue()


def test_pickles_beside_the_files_are_not_opened(finished, tmp_path, bomb):
    mark, *payloads = bomb
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    checkpoint = out / "checkpoints" / "step-000002"
    for folder in (out, out / "checkpoints", checkpoint, checkpoint / "state", checkpoint / "lora"):
        for i, name in enumerate(NAMES):
            (folder / name).write_bytes(payloads[i % 2])
    outcome, _ = run_here(out / "config.yaml", out, "train.steps=3", resume=True)
    assert outcome.finished and final_state(out)[1]["step"] == 3
    recipe = (out / "config.yaml").read_text()
    adapter = load(recipe.split("path: ")[1].split("\n")[0])
    adapter.load_lora(checkpoint / "lora")
    assert not mark.exists()


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("name", ["live", "old", "ema", "optimizer", "random"])
def test_a_pickle_dressed_as_a_checkpoint_is_refused(finished, tmp_path, bomb, name, which):
    """With a manifest that fits, so that the checksum does not give it away."""
    mark, *payloads = bomb
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    checkpoint = out / "checkpoints" / "step-000002"
    file = checkpoint / "state" / f"{name}.safetensors"
    file.write_bytes(payloads[which])
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    key = file.relative_to(checkpoint).as_posix()
    manifest["files"][key] = hashlib.sha256(payloads[which]).hexdigest()
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    error, _ = run_here(out / "config.yaml", out, "train.steps=3", resume=True)
    assert isinstance(error, MarbleError) and "cannot be read" in str(error)
    assert not mark.exists()


def test_a_pickle_dressed_as_a_lora_is_refused(finished, tmp_path, bomb):
    mark, *payloads = bomb
    model = (finished / "config.yaml").read_text().split("path: ")[1].split("\n")[0]
    adapter = load(model)
    for i, payload in enumerate(payloads):
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / "pytorch_lora_weights.safetensors").write_bytes(payload)
        with pytest.raises(MarbleError):
            adapter.load_lora(folder)
    assert not mark.exists()
