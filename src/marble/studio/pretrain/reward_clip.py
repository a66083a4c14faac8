"""Trains the studio's CLIP models; preference and aesthetic scores start from the first of them."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPModel

from marble.rewards.aesthetic import AestheticHead
from marble.rewards.preprocess import Preprocess

from .common import Budget, WeightAverage, autocast, batches, cosine_lr
from .reward_data import Pictures
from .reward_look import aesthetic_label, beauty, mild, spoil

Disturb = Callable[[Tensor, Tensor], Tensor] | None
PREPROCESS = Preprocess(short_side=64, crop=64, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def new_clip(
    tokenizer: Any,
    *,
    width: int,
    layers: int,
    text_width: int,
    text_layers: int,
    projection: int,
    activation: str = "gelu",
    tokens: int = 16,
    side: int = 64,
    patch: int = 8,
) -> CLIPModel:
    """A stock ``CLIPModel`` of studio size."""
    special = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": text_width,
        "intermediate_size": 4 * text_width,
        "num_hidden_layers": text_layers,
        "num_attention_heads": text_width // 32,
        "max_position_embeddings": tokens,
        "hidden_act": activation,
        "projection_dim": projection,
        **special,
    }
    vision = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 32,
        "image_size": side,
        "patch_size": patch,
        "hidden_act": activation,
        "projection_dim": projection,
    }
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=projection))


def image_embeddings(model: Any, x: Tensor) -> Tensor:
    """Pictures in [0, 1] → unit-length embeddings."""
    pooled = model.vision_model(pixel_values=x * 2 - 1).pooler_output
    return F.normalize(model.visual_projection(pooled).float(), dim=-1)


def text_embeddings(model: Any, ids: Tensor) -> Tensor:
    pooled = model.text_model(input_ids=ids).pooler_output
    return F.normalize(model.text_projection(pooled).float(), dim=-1)


def contrastive_loss(
    scale: Tensor, images: Tensor, broken: Tensor, texts: Tensor, same: Tensor
) -> Tensor:
    """Symmetric cross-entropy; pictures with one error stand among every caption's negatives.

    A caption that occurs twice in the batch is not its own negative.
    """
    truth = torch.arange(len(texts), device=texts.device)
    altered = (same[:, None] == same[None]) & (truth[:, None] != truth[None])
    to_clean = (scale * texts @ images.T).masked_fill(altered, -1e4)
    by_text = F.cross_entropy(torch.cat([to_clean, scale * texts @ broken.T], 1), truth)
    return 0.5 * (by_text + F.cross_entropy(to_clean.T, truth))


def train_clip(
    model: Any,
    train: Pictures,
    budget: Budget,
    *,
    disturb: Disturb = None,
    batch: int = 1024,
    peak_lr: float = 1.5e-3,
    seed: int = 21,
    name: str = "clip",
) -> CLIPModel:
    """Contrastive training with hard negatives.

    A linear read-out of the look features is trained along (and thrown away), so that the
    embedding keeps what an aesthetic head needs instead of becoming blind to it.
    """
    device = train.device
    torch.manual_seed(seed)
    model = model.to(device).train()
    look = nn.Linear(model.config.projection_dim, 5).to(device)
    mean, std = look_statistics(train)
    average = WeightAverage([model], decay=0.999)
    optimiser = new_optimiser([model, look], peak_lr)
    for step, index in enumerate(batches(len(train), batch, seed, device)):
        done = budget.fraction(step)
        if done >= 1:
            break
        cosine_lr(optimiser, peak_lr, step, done)
        clean, wrong = mild(train.clean(index)), mild(train.wrong(index))
        n, few = len(index), max(1, len(index) // 4)
        severity = torch.rand(few, device=device)
        # The autoencoder costs as much as the towers: not every step.
        bad = spoil(clean[:few], severity, disturb if step % 4 == 0 else None)
        with autocast(device):
            embedded = image_embeddings(model, torch.cat([clean, wrong, bad]))
            texts = text_embeddings(model, train.ids[index])
        scale = model.logit_scale.clamp(max=4.6052).exp()
        loss = contrastive_loss(scale, embedded[:n], embedded[n : 2 * n], texts, train.same[index])
        seen = torch.cat([clean[:few], bad])
        read = look(torch.cat([embedded[:few], embedded[2 * n :]]) * 8)
        features = ((beauty(seen) - mean) / std).clamp(-3, 3)
        damage = torch.cat([torch.zeros_like(severity), damage_of(severity)])
        goal = torch.cat([features, 2 * damage[:, None]], 1)
        aside = F.mse_loss(read, goal)
        advance(optimiser, loss + 0.4 * aside, model)
        average.update(step)
        if step % 500 == 0:
            print(
                f"{name} {step:6d}  {done:4.0%}  loss {loss.item():.4f}  look {aside.item():.3f}",
                flush=True,
            )
    average.copy_to_live()
    return model.eval()


def train_pick(
    model: Any,
    train: Pictures,
    budget: Budget,
    *,
    disturb: Disturb = None,
    batch: int = 512,
    peak_lr: float = 5e-4,
    seed: int = 31,
) -> CLIPModel:
    """Fine-tune a CLIP on choices (Bradley–Terry): −log σ(score of the better − of the worse).

    Better is: clean against damaged, less against more damaged, right against one error, and the
    right caption against another. The score is exp(logit scale) · cos.
    """
    device = train.device
    torch.manual_seed(seed)
    model = model.to(device).train()
    average = WeightAverage([model], decay=0.998)
    optimiser = new_optimiser([model], peak_lr)
    for step, index in enumerate(batches(len(train), batch, seed, device)):
        done = budget.fraction(step)
        if done >= 1:
            break
        cosine_lr(optimiser, peak_lr, step, done)
        n = len(index)
        clean, wrong = mild(train.clean(index)), mild(train.wrong(index))
        less, gap = torch.rand(n, device=device) * 0.6, 0.2 + torch.rand(n, device=device) * 0.2
        pictures = [clean, wrong, spoil(clean, less, disturb), spoil(clean, less + gap, disturb)]
        with autocast(device):
            embedded = image_embeddings(model, torch.cat(pictures))
            texts = text_embeddings(model, train.ids[index])
        scale = model.logit_scale.clamp(max=4.6052).exp()
        score = scale * (embedded.view(4, n, -1) * texts).sum(-1)
        other = train.same[index] != train.same[index].roll(1)
        swapped = scale * (embedded[:n] * texts.roll(1, 0)).sum(-1)
        pairs = [
            -F.logsigmoid(score[0] - score[2]).mean(),
            -F.logsigmoid(score[2] - score[3]).mean(),
            -F.logsigmoid(score[0] - score[1]).mean(),
            masked_mean(-F.logsigmoid(score[0] - swapped), other),
        ]
        keep = contrastive_loss(scale, embedded[:n], embedded[n : 2 * n], texts, train.same[index])
        loss = torch.stack(pairs).sum() + 0.3 * keep
        advance(optimiser, loss, model)
        average.update(step)
        if step % 500 == 0:
            said = " ".join(f"{p.item():.3f}" for p in pairs)
            print(f"pick {step:6d}  {done:4.0%}  clean, less, right, caption: {said}", flush=True)
    average.copy_to_live()
    return model.eval()


def train_aesthetic(
    model: Any,
    train: Pictures,
    budget: Budget,
    *,
    disturb: Disturb = None,
    batch: int = 1024,
    peak_lr: float = 2e-3,
    seed: int = 41,
) -> AestheticHead:
    """A head on the frozen embedding that predicts ``aesthetic_label``, and ranks by damage."""
    device = train.device
    torch.manual_seed(seed)
    head = AestheticHead([model.config.projection_dim, 128, 64, 1], "gelu").to(device)
    last: Any = head.layers[-1]
    nn.init.constant_(last.bias, 5.0)
    mean, std = look_statistics(train)
    optimiser = new_optimiser([head], peak_lr)
    for step, index in enumerate(batches(len(train), batch, seed, device)):
        done = budget.fraction(step)
        if done >= 1:
            break
        cosine_lr(optimiser, peak_lr, step, done)
        clean = mild(train.clean(index))
        severity = torch.rand(len(index), device=device)
        x = torch.cat([clean, spoil(clean, severity, disturb)])
        damage = torch.cat([torch.zeros_like(severity), damage_of(severity)])
        with torch.no_grad(), autocast(device):
            embedded = image_embeddings(model, x)
        score = head(embedded)
        loss = F.smooth_l1_loss(score, aesthetic_label(beauty(x), mean, std, damage))
        better, worse = score.chunk(2)  # whatever else it is, damage is not pretty
        loss = loss + 0.25 * F.softplus(-3 * (better - worse)).mean()
        advance(optimiser, loss, head)
        if step % 500 == 0:
            print(f"aesthetic {step:6d}  {done:4.0%}  loss {loss.item():.4f}", flush=True)
    return head.eval()


def damage_of(severity: Tensor) -> Tensor:
    """Even the slightest damage costs something that can be seen in the score."""
    return 0.4 + 0.6 * severity


def look_statistics(train: Pictures) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the look features over clean pictures."""
    features = beauty(train.images[:8192].float() / 255)
    return features.mean(0), features.std(0).clamp(min=1e-3)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum().clamp(min=1)


def new_optimiser(modules: list[nn.Module], lr: float) -> torch.optim.AdamW:
    """AdamW without decay on norms, biases, embeddings of position and the logit scale."""
    parameters = [p for module in modules for p in module.parameters()]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.05},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=lr, betas=(0.9, 0.98), fused=parameters[0].device.type == "cuda"
    )


def advance(optimiser: torch.optim.Optimizer, loss: Tensor, model: nn.Module) -> None:
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()


def save_clip(model: Any, tokenizer_folder: Path, folder: Path) -> None:
    """A stand-alone checkpoint folder: model in fp16, tokenizer, preprocessing."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in tokenizer_folder.glob("*.json"):
        shutil.copy(file, folder / file.name)
    copy.deepcopy(model).half().cpu().save_pretrained(folder)
    PREPROCESS.to_file(folder)


def save_head(head: AestheticHead, file: Path) -> None:
    from safetensors.torch import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    state = {k: v.half().cpu().contiguous() for k, v in head.state_dict().items()}
    save_file(state, str(file), metadata={"activation": head.activation})
