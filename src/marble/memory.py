"""What a recipe will need on one device, before anything is loaded.

Weights and training states are counted exactly: from the model's files where they are here, from
its published configuration where they are not; the model's family knows both. What the phases add
follows rules of thumb, fitted to two measurements of SD3.5 Medium at 512 pixels in bf16 on an H200:

- `benchmarks/results/sd35m_gradients.json`, a training step of batch 9 without checkpointing:
  32.05 GB, from which `ACTIVATION` comes;
- `benchmarks/results/sd35m_loop_h200.json`, the whole `sd35m-5rewards-1gpu` loop: everything else.
  A test compares the estimate of each phase with the peak measured there.

One setting was measured: that a phase grows in proportion to its batch, and that other families'
blocks keep as much a token and width as these, is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from marble.models.family import Facts
from marble.models.folder import tensor_shapes
from marble.models.pipeline import DECODE_PIXELS
from marble.models.registry import facts
from marble.objectives.registry import objective_class
from marble.recipe import Recipe
from marble.recipe.balance import Reward

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "float32": 4, "bfloat16": 2, "float16": 2}

#: Which checkpoints a reward loads. Rewards on the same one in the same precision share it.
REWARD_MODELS: dict[str, tuple[tuple[str, int], ...]] = {
    "clipscore": (("clip-l", 427_616_513),),
    "aesthetic": (("clip-l", 427_616_513), ("aesthetic-head", 927_969)),
    "pickscore": (("clip-h", 986_109_441),),
    "hpsv2": (("hps", 986_109_441),),
    "imagereward": (("imagereward", 446_206_689),),
    "geneval": (("clip-l", 427_616_513), ("mask2former", 68_741_083)),
    "diversity": (("clip-l", 427_616_513),),
}
#: Working memory of a reward, in bytes a picture: the detector's have 800 pixels. All compute
#: in fp32, whatever their weights are kept in.
DETECTOR_PICTURE = 0.75e9
CLIP_PICTURE = 17e6
#: Pictures a reward looks at together unless it is told otherwise; 64 where none is said.
REWARD_BATCH = {"geneval": 8, "imagereward": 32}
#: Working memory of the T5 on a batch of prompts, with the layer at work if it is offloaded.
ENCODING = 1.1e9

ACTIVATION, COMPILED = 66.0, 31.5
"""Bytes a token · layer · width kept for the backward without checkpointing; the second where the
blocks are compiled (30.9 measured, `benchmarks/results/loop_sd35m_h200_36.json`)."""
AT_WORK = 80.0
"""Bytes a token · width of the one block that is at work in the backward with checkpointing."""
DRAWING = 26.0
"""Bytes a token · width of a forward pass without a backward."""
VAE_PIXEL = 3560.0
"""Bytes a pixel while the fp32 decoder works at full resolution."""
FILLED = 0.85
"""Part of the memory that a micro-batch may fill by the estimate, which is off by some per cent."""
FULL = 0.95
"""Part that decoding may fill."""
USUAL, DRAWN, MOST = 9, 24, 48
"""Micro-batch and pictures drawn at once where no memory is known; the most of either that gains
anything."""
CUDA_CONTEXT = 0.9e9
WORKSPACES = 0.3e9
"""Between the phases 12.43 GB stay allocated; 12.11 GB of them are counted one by one."""


@dataclass(frozen=True)
class Estimate:
    """All in GB (1e9 bytes). `phases` are whole peaks, not additions."""

    held: dict[str, float]
    phases: dict[str, float]

    @property
    def peak(self) -> float:
        return max(self.phases.values())

    @property
    def peak_phase(self) -> str:
        return max(self.phases, key=lambda name: self.phases[name])


def sized(recipe: Recipe, memory_gb: float | None, processes: int = 1) -> Recipe:
    """The recipe with a micro-batch and a number of pictures drawn at once, where it leaves these
    to the device's memory.

    Each divides what a process has to do, if such a number is near the largest that fits: a last
    batch of another size would be compiled anew, and has a device half empty.
    """
    if recipe.rollout.batch_size is None:
        recipe = of_size(recipe, drawn=_drawn_at_once(recipe, memory_gb, processes))
    if recipe.train.batch_size is None:
        recipe = of_size(recipe, _micro_batch(recipe, memory_gb, processes))
    return recipe


def _micro_batch(recipe: Recipe, memory_gb: float | None, processes: int) -> int:
    size = USUAL
    if memory_gb is not None:
        one, two = (estimate(of_size(recipe, n)).phases["training"] for n in (1, 2))
        size = 1 + int(max(0.0, FILLED * memory_gb - one) / (two - one))
    samples = -(-recipe.trained_per_epoch // recipe.train.steps_per_epoch // processes)
    size = _even(min(size, MOST, samples), samples)
    together = objective_class(recipe.objective.name).together
    return max(together, size // together * together)


def _drawn_at_once(recipe: Recipe, memory_gb: float | None, processes: int) -> int:
    samples = -(-recipe.samples_per_epoch // processes)
    size = min(DRAWN if memory_gb is None else MOST, samples)
    while memory_gb is not None and size > 1:
        phases = estimate(of_size(recipe, drawn=size)).phases
        # What decodes at once is bounded (`DECODE_PIXELS`), and less if it does so in fp16.
        if phases["sampling"] <= FILLED * memory_gb and phases["decoding"] <= FULL * memory_gb:
            break
        size -= 1
    return _even(size, samples)


def _even(size: int, samples: int) -> int:
    """The largest number above half of `size` that divides `samples`; else `size`."""
    return next((n for n in range(size, size // 2, -1) if samples % n == 0), size)


def of_size(recipe: Recipe, batch: int | None = None, *, drawn: int | None = None) -> Recipe:
    """The recipe with micro-batches of this size, and so many pictures drawn at once."""
    changed: dict[str, Any] = {}
    if batch is not None:
        changed["train"] = recipe.train.model_copy(update={"batch_size": batch})
    if drawn is not None:
        changed["rollout"] = recipe.rollout.model_copy(update={"batch_size": drawn})
    return recipe.model_copy(update=changed)


def batches(recipe: Recipe) -> tuple[int | None, int | None]:
    """(micro-batch, pictures drawn at once)."""
    return recipe.train.batch_size, recipe.rollout.batch_size


def estimate(recipe: Recipe) -> Estimate:
    """Memory of the device that runs the recipe; of several, each holds its part of the latents."""
    recipe = sized(recipe, None)
    drawn = recipe.rollout.batch_size
    assert recipe.train.batch_size is not None and drawn is not None
    known = model_facts(recipe)
    model, k, parts = recipe.model, len(recipe.rewards.train), known.parts
    size = BYTES[model.dtype]
    lora = known.lora_parameters(model.lora.rank, model.lora.targets)
    # default, old, EMA, gradient, Adam's two moments; K accumulators and the outside row.
    balance = recipe.balance
    rows = 6 + (k + 1) * (2 if balance.heldout_half else 1)
    encoders = [n * size for name, n in parts.items() if name.startswith("text_encoder")]
    side = model.resolution or known.layout.resolution
    each = 1 + objective_class(recipe.objective.name).path_length(recipe)  # x_0 and its path
    latents = 4.0 * recipe.samples_per_epoch * known.latents(side) * each
    held = {
        "transformer": parts["transformer"] * size,
        "vae": parts.get("vae", 0) * 4,
        "LoRA and its states": 4.0 * lora * rows,
        "rewards": reward_bytes(recipe),
        "text encoders": 0 if model.offload_encoders else sum(encoders),
        "latents of two epochs": 2 * latents,  # this one's and the last one's
        "workspaces": WORKSPACES,
        "CUDA itself": CUDA_CONTEXT,
    }
    base = sum(held.values())
    cells = known.tokens(side, model.max_sequence_length) * known.layout.width
    layers = known.layout.layers
    if model.gradient_checkpointing:  # the blocks' inputs, and one block at work
        kept = cells * (size * layers + AT_WORK)
    else:
        kept = cells * layers * (COMPILED if model.compile else ACTIVATION)
    # In fp8 the blocks' weights are there a second time, in one byte each.
    in_fp8 = float(parts["transformer"]) if recipe.rollout.fp8 else 0.0
    scoring = _scoring(recipe)
    meanwhile = scoring if recipe.train.overlap_rewards else 0.0
    passes = 2 if recipe.rollout.guidance > 1 else 1  # with the prompt and without
    drawing = drawn * passes * cells * DRAWING
    pixels = min(drawn, max(1, DECODE_PIXELS // side**2)) * side**2
    decoding = pixels * VAE_PIXEL
    phases = {
        "encoding prompts": base + ENCODING,  # offloaded encoders come layer by layer
        "sampling": base + in_fp8 + drawing + meanwhile,
        "decoding": base + in_fp8 + decoding + meanwhile,
        "rewards": base + scoring,
        "training": base + recipe.train.batch_size * kept + latents / recipe.train.steps_per_epoch,
    }
    return Estimate({k: v / 1e9 for k, v in held.items()}, {k: v / 1e9 for k, v in phases.items()})


def model_facts(recipe: Recipe) -> Facts:
    """Sizes of the recipe's model; an error if it is not here and no family has published it."""
    model = recipe.model
    return facts(model.path, model.revision, model.family)


def reward_bytes(recipe: Recipe) -> float:
    """Weights of the rewards' models, shared ones once; 0 for those that live elsewhere."""
    models: dict[tuple[str, str], float] = {}
    for entry in (*recipe.rewards.train, *recipe.rewards.heldout):
        precision = str(entry.options.get("dtype", "fp32"))
        for name, count in _models_of(entry):
            # `path` is the reward's own checkpoint: GenEval's CLIP is another one.
            own = name != "clip-l" or entry.reward != "geneval"
            place = entry.options.get("path" if own else "clip", name)
            key = (str(place), precision)
            models[key] = (_counted(place) or count) * BYTES.get(precision, 4)
    return sum(models.values())


def _models_of(entry: Reward) -> tuple[tuple[str, int], ...]:
    without = entry.options.get("by") == "pixels"  # diversity without an encoder
    return () if without else REWARD_MODELS.get(entry.reward, ())


def _counted(place: Any) -> int:
    """Parameters of a checkpoint folder that is here; 0 if it is a name or a single file."""
    folder = Path(str(place)).expanduser()
    return count_parameters(folder) if folder.is_dir() else 0


def disk_gb(recipe: Recipe) -> float:
    """What a run writes: checkpoints (live, old, EMA, two moments, the LoRA) and pictures."""
    known, lora = model_facts(recipe), recipe.model.lora
    state = 4.0 * 6 * known.lora_parameters(lora.rank, lora.targets)
    side = recipe.model.resolution or known.layout.resolution
    evals = 2 + (recipe.train.steps // recipe.eval.every if recipe.eval.every else 0)
    shown = len(recipe.data.sources) * (recipe.eval.prompts or 500) * recipe.eval.images_per_prompt
    pictures = evals * shown * 1.6 * side * side
    return (state * (recipe.train.keep_checkpoints + 1) + pictures) / 1e9


def _scoring(recipe: Recipe) -> float:
    """Of the reward that needs most: they work one after the other."""
    biggest, drawn = 0.0, recipe.rollout.batch_size or DRAWN
    for entry in (*recipe.rewards.train, *recipe.rewards.heldout):
        if not _models_of(entry):
            continue
        at_once = int(entry.options.get("batch_size", REWARD_BATCH.get(entry.reward, 64)))
        picture = DETECTOR_PICTURE if entry.reward == "geneval" else CLIP_PICTURE
        biggest = max(biggest, min(at_once, drawn) * picture)
    return biggest


def count_parameters(folder: Path) -> int:
    """Numbers in a folder's safetensors files, from their headers."""
    return sum(prod(shape) for shape in tensor_shapes(folder).values())
