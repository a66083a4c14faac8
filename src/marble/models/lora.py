"""LoRA on a diffusers transformer: two adapters in one model, and the same model without.

`default` is trained, `old` is the frozen policy that makes rollouts, `base` is neither. A *state*
is a plain dict of tensors, named like the file (`transformer_blocks.0.attn.to_q.lora_A.weight`), so
that v_old, weight EMA, checkpoints and exports are all the same kind of thing.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakSet

import torch
from peft import LoraConfig
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from marble.errors import MarbleError
from marble.models.folder import check_safetensors
from marble.models.lora_layer import make_lean

TRAINED, OLD, BASE = "default", "old", "base"
WEIGHTS_FILE = "pytorch_lora_weights.safetensors"
State = dict[str, Tensor]


def add_adapters(
    model: Any, *, rank: int, alpha: float, targets: Sequence[str], init: str, seed: int
) -> None:
    """Freezes `model` and adds `default` (trainable, fp32) and its frozen copy `old`."""
    if getattr(model, "peft_config", None):
        raise MarbleError("the model has LoRA adapters already")
    model.requires_grad_(False)
    for name in (TRAINED, OLD):
        # peft declares alpha an int but scales by any number.
        config = LoraConfig(r=rank, lora_alpha=cast(int, alpha), target_modules=list(targets))
        try:
            with warnings.catch_warnings():  # two adapters in one model are what we want
                warnings.filterwarnings("ignore", message="Already found a `peft_config`")
                model.add_adapter(config, adapter_name=name)
        except ValueError:
            raise MarbleError(
                f"model.lora.targets: no layer's name ends in any of {', '.join(targets)}"
            ) from None
    for name in (TRAINED, OLD):
        for parameter in parameters(model, name).values():
            parameter.data = parameter.data.float()
            parameter.requires_grad_(name == TRAINED)
    make_lean(layer for _, layer in lora_layers(model))
    _initialise(parameters(model, TRAINED), rank, init, seed)
    load_state(model, OLD, parameters(model, TRAINED))
    activate(model, TRAINED)


def add_frozen(
    model: Any, name: str, values: Mapping[str, Tensor], config: Mapping[str, Any]
) -> None:
    """Adds a LoRA, as `read_file` gives it, that is never trained; of any rank, on the layers of
    `default`."""
    odd = sorted(set(parameters(model, TRAINED)) ^ set(values))
    if odd:
        raise MarbleError(
            f"its LoRA is on other layers than the model's: {len(odd)} names differ, e.g. {odd[0]}"
        )
    layers = [layer for layer, _ in lora_layers(model)]
    own = LoraConfig(r=config["r"], lora_alpha=config["lora_alpha"], target_modules=layers)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Already found a `peft_config`")
        model.add_adapter(own, adapter_name=name)
    for adapter in names(model):  # adding one makes it the trained one
        for parameter in parameters(model, adapter).values():
            parameter.requires_grad_(adapter == TRAINED)
    for parameter in parameters(model, name).values():
        parameter.data = parameter.data.float()
    load_state(model, name, values)
    activate(model, TRAINED)


def _initialise(params: Mapping[str, nn.Parameter], rank: int, init: str, seed: int) -> None:
    """A random, B zero. Drawn on the CPU, so that every device starts from the same weights."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in params.items():
        value = torch.zeros(parameter.shape)
        if ".lora_A." in name and init == "gaussian":
            value.normal_(std=1 / rank, generator=generator)
        elif ".lora_A." in name:
            nn.init.kaiming_uniform_(value, a=math.sqrt(5), generator=generator)
        parameter.data.copy_(value)


def lora_layers(model: nn.Module) -> list[tuple[str, LoraLayer]]:
    """Every adapted layer with its name.

    Remembered once there are some: adapters are switched several times a micro-batch, and walking
    through all modules of a large model takes milliseconds.
    """
    if model not in _layers_of:
        found = [(n, m) for n, m in model.named_modules() if isinstance(m, LoraLayer)]
        if not found:
            return []
        _layers_of[model] = found
    return _layers_of[model]


_layers_of: WeakKeyDictionary[nn.Module, list[tuple[str, LoraLayer]]] = WeakKeyDictionary()


def parameters(model: nn.Module, adapter: str) -> dict[str, nn.Parameter]:
    """The live parameters of an adapter, by file name, in model order."""
    found: dict[str, nn.Parameter] = {}
    for name, layer in lora_layers(model):
        for part, modules in (("lora_A", layer.lora_A), ("lora_B", layer.lora_B)):
            if adapter in modules:
                weight = modules[adapter].weight
                assert isinstance(weight, nn.Parameter)
                found[f"{name}.{part}.weight"] = weight
    if not found:
        raise MarbleError(f"the model has no LoRA adapter '{adapter}'; call add_lora first")
    return found


def names(model: Any) -> list[str]:
    """The adapters of a model: `default`, `old`, and teachers where it has some."""
    return list(getattr(model, "peft_config", None) or ())


def state(model: nn.Module, adapter: str) -> State:
    """A detached copy of an adapter's weights."""
    return {k: v.detach().clone() for k, v in parameters(model, adapter).items()}


@torch.no_grad()
def load_state(model: nn.Module, adapter: str, values: Mapping[str, Tensor]) -> None:
    """Copies `values` into an adapter; names and shapes must agree exactly."""
    params = parameters(model, adapter)
    if set(params) != set(values):
        odd = sorted(set(params) ^ set(values))
        raise MarbleError(
            f"LoRA state does not fit the model: {len(odd)} names differ, e.g. {odd[0]}"
        )
    for name, parameter in params.items():
        if parameter.shape != values[name].shape:
            raise MarbleError(
                f"LoRA state does not fit the model: {name} is {tuple(values[name].shape)}, "
                f"the model's {tuple(parameter.shape)}; is the rank the same?"
            )
        parameter.copy_(values[name])


@torch.no_grad()
def blend_(target: Mapping[str, Tensor], source: Mapping[str, Tensor], decay: float) -> None:
    """target ← decay·target + (1−decay)·source, in place: the step of v_old and of a weight EMA."""
    for name, value in target.items():
        value.lerp_(source[name].to(value), 1.0 - decay)


def activate(model: nn.Module, adapter: str) -> None:
    """Makes forward passes use `default`, `old` or `base`.

    peft's own `set_adapter` also flips `requires_grad`, which would unhook a trained adapter from
    its optimiser and from DDP every time the old policy is asked; this only switches the path.
    """
    if model in _fixed:
        raise RuntimeError("a LoRA is merged into the weights: adapters cannot be switched now")
    for _, layer in lora_layers(model):
        layer._disable_adapters = adapter == BASE
        if adapter != BASE:
            layer._active_adapter = [adapter]


_fixed: WeakSet[nn.Module] = WeakSet()


def is_fixed(model: nn.Module) -> bool:
    """Whether a LoRA is merged into the weights."""
    return model in _fixed


@contextmanager
def fixed(model: nn.Module) -> Iterator[None]:
    """Inside, switching the adapter is an error."""
    _fixed.add(model)
    try:
        yield
    finally:
        _fixed.discard(model)


def active(model: nn.Module) -> str:
    """The adapter in use."""
    for _, layer in lora_layers(model):
        return BASE if layer.disable_adapters else str(layer.active_adapters[0])
    return BASE


@contextmanager
def using(model: nn.Module, adapter: str) -> Iterator[None]:
    """Runs its body with that adapter, then restores the one before."""
    known = names(model)
    if adapter != BASE and not known:
        raise MarbleError("the model has no LoRA adapter; call add_lora first")
    if adapter not in (*known, BASE):
        raise ValueError(f"adapter must be {', '.join(known)} or {BASE}, got {adapter!r}")
    before = active(model)
    activate(model, adapter)
    try:
        yield
    finally:
        activate(model, before)


@contextmanager
def swapped(model: nn.Module, adapter: str, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Runs its body with `values` (a weight EMA, say) in place of an adapter's weights."""
    before = state(model, adapter)
    load_state(model, adapter, values)
    try:
        yield
    finally:
        load_state(model, adapter, before)


def config_of(model: Any) -> dict[str, Any]:
    """What the export must say about the adapter. Few fields, so that any peft can read them."""
    config = model.peft_config[TRAINED]
    return {
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "target_modules": sorted(config.target_modules),
        "lora_dropout": 0.0,
        "bias": "none",
    }


def write_file(
    file: Path, values: Mapping[str, Tensor], config: Mapping[str, Any], part: str = "transformer"
) -> None:
    """Writes diffusers' LoRA file. The rank is that of `values`, at the scale of `config`.

    The config goes in as metadata: without it diffusers assumes alpha = rank, and the pictures
    differ. One metadata entry only, so that equal weights give equal bytes.
    """
    from safetensors.torch import save

    rank = next(len(v) for k, v in values.items() if ".lora_A." in k)
    alpha = config["lora_alpha"]
    if rank != config["r"]:  # some of its rows, or several LoRAs side by side
        alpha = alpha * rank / config["r"]
    config = {**config, "r": rank, "lora_alpha": alpha}
    metadata = {f"{part}.{key}": value for key, value in config.items()}
    # Not save_file, whose files none but their owner may read.
    file.write_bytes(
        save(
            {f"{part}.{key}": value for key, value in values.items()},
            metadata={"lora_adapter_metadata": json.dumps(metadata, sort_keys=True)},
        )
    )


def read_file(folder: str | Path, prefix: str = "transformer.") -> tuple[State, dict[str, Any]]:
    """State and config of a LoRA in diffusers' file format; `folder` may be the file itself."""
    from safetensors import safe_open

    path = Path(folder).expanduser()
    path = path / WEIGHTS_FILE if path.is_dir() else path
    if not path.is_file():
        raise MarbleError(f"no LoRA weights at {path}")
    check_safetensors(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        values = {k.removeprefix(prefix): file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    if not values or not all(".lora_A." in k or ".lora_B." in k for k in values):
        raise MarbleError(f"{path}: not a LoRA in diffusers' format")
    stored = json.loads(metadata.get("lora_adapter_metadata", "{}"))
    config = {k.removeprefix(prefix): v for k, v in stored.items()}
    ranks = {v.shape[0] for k, v in values.items() if ".lora_A." in k}
    if len(ranks) > 1:
        raise MarbleError(f"{path}: layers of different rank are not supported")
    rank = ranks.pop()
    # Without metadata the convention of the format is alpha = rank.
    config.setdefault("lora_alpha", rank)
    config["r"] = rank
    config["target_modules"] = sorted({k.rsplit(".lora_", 1)[0] for k in values})
    return values, config
