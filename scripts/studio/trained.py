"""The LoRA that ships as `studio-trained`, from a run of the recipe studio-gpu.

python scripts/studio/trained.py runs/studio-gpu-…/checkpoints/step-000600/lora

Every layer's product of factors is cut to rank 24 of 32, by its singular values, and stored in
fp16, so that the package's weights stay within 30 MB. Prints how much of the products is kept.
"""

import argparse
from pathlib import Path

import torch

from marble.models import lora
from marble.studio import asset

RANK = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lora", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=asset("trained"))
    args = parser.parse_args()
    values, config = lora.read_file(args.lora)
    cut, whole, left = {}, 0.0, 0.0
    for name in [name for name in values if ".lora_A." in name]:
        other = name.replace(".lora_A.", ".lora_B.")
        u, s, v = torch.linalg.svd(values[other].double() @ values[name].double())
        root = s[:RANK].sqrt()
        cut[name] = (root[:, None] * v[:RANK]).half().contiguous()
        cut[other] = (u[:, :RANK] * root).half().contiguous()
        whole, left = whole + float(s.square().sum()), left + float(s[RANK:].square().sum())
    lora.write_file(args.out / lora.WEIGHTS_FILE, cut, config)
    print(f"{args.out / lora.WEIGHTS_FILE}: {100 * (1 - left / whole):.2f} % of the sum of squares")


if __name__ == "__main__":
    main()
