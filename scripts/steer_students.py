"""Students of a study's specialists, for scripts/steer_front.py --distil: one run per seed."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SHAPE = re.compile(r"(?P<cell>.+)-seed(?P<seed>\d+)$")


def distil(folder: Path, steps: int, jobs: int, device: str | None) -> list[str]:
    """Trains a student per seed, `jobs` at a time; what went wrong."""
    from marble.study.runner import finished

    todo = {
        out: command
        for out, command in students(folder, steps, device).items()
        if not finished(out)
    }

    def train(out: Path, command: list[str]) -> str | None:
        with (folder / f"{out.name}.log").open("ab") as log:
            subprocess.run(command, stdout=log, stderr=log)
        return None if finished(out) else f"{out.name}: not finished; see {log.name}"

    with ThreadPoolExecutor(jobs) as pool:
        found = [pool.submit(train, *one) for one in todo.items()]
        return [said for said in (job.result() for job in found) if said]


def students(folder: Path, steps: int, device: str | None) -> dict[Path, list[str]]:
    """Run folder → the command that trains the student there, or goes on with it."""
    import yaml

    commands: dict[Path, list[str]] = {}
    by_seed: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("only-*-seed*")):
        match = SHAPE.fullmatch(path.name)
        if match is not None:
            by_seed.setdefault(int(match["seed"]), []).append(path)
    for seed, specialists in by_seed.items():
        steered = yaml.safe_load((folder / f"steer-seed{seed}/config.yaml").read_text())
        total = steered["train"]["steps"]
        age, rest = divmod(total - steps, len(specialists))
        if rest or age < 1:
            raise SystemExit(f"--distil {steps}: {len(specialists)} specialists cannot share the "
                             f"other {total - steps} of {total} steps")  # fmt: skip
        teachers = {}
        for path in specialists:
            lora = path / f"checkpoints/step-{age:06d}/lora"
            if not lora.is_dir():
                raise SystemExit(
                    f"{lora} is not there: run the specialists with train.checkpoint_every={age}, "
                    "or choose other --distil steps"
                )
            recipe = yaml.safe_load((path / "config.yaml").read_text())
            teachers[recipe["balance"]["reward"]] = str(lora.resolve())
        # The specialist's recipe, whatever model and data it has; not its loss and its reward.
        recipe["objective"] = {"name": "distil", "teachers": teachers}
        recipe["balance"] = {"method": "uniform"}
        recipe["rollout"]["old_decay"] = {"initial": 0, "rate": 0, "cap": 0}
        recipe["train"] |= {"steps": steps, "checkpoint_every": 0}
        recipe["name"] = "distil"
        file, out = folder / f"distil-seed{seed}.yaml", folder / f"distil-seed{seed}"
        file.write_text(yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True))
        toy = recipe["model"]["path"] == "toy"
        command = [sys.executable, "-m", *(["marble.study.toy"] if toy else ["marble", "train"])]
        going = (out / "checkpoints/latest").exists()
        command += ["--resume", str(out)] if going else [str(file), "--out", str(out)]
        commands[out] = command + (["--device", device] if device else [])
    return commands
