"""What a run writes and when: metrics, samples, evaluations, checkpoints, the closing table."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from marble.evaluation.drift import drift_statistics
from marble.recipe import Recipe
from marble.training import front
from marble.training.borrow import take_base
from marble.training.checkpoint import State, best_complete, load_state, step_name
from marble.training.closing import closing_table, write_model_card
from marble.training.collapse import answer
from marble.training.display import Display
from marble.training.evaluate import Evaluation, evaluate_policy
from marble.training.folder import RunFolder, device_name
from marble.training.loop import Trainer
from marble.training.processes import Processes
from marble.training.run_files import RunFiles, Say
from marble.training.watch import Look


class Recorder:
    """Knows the run folder. On other processes than the main one it only joins in collectives."""

    def __init__(self, recipe: Recipe, out: Path, processes: Processes, *, resuming: bool) -> None:
        self.recipe, self.path, self.processes = recipe, out, processes
        self.fresh = not resuming
        self.files = RunFiles(recipe, out, processes)
        processes.from_main(lambda: self.files.take(resuming=resuming))

    @property
    def _folder(self) -> RunFolder | None:
        return self.files.folder

    def find_checkpoint(self, say: Say) -> Path | None:
        """The newest whole checkpoint, for all processes; None where the run has none yet."""
        return self.processes.from_main(lambda: self.files.find_checkpoint(say))

    def resume(self, step: int, meta: dict[str, Any], say: Say) -> None:
        """Takes the files back to where the checkpoint was made: the resume has been accepted."""
        self.files.remember(meta)
        self.processes.from_main(lambda: self.files.take_back(step, meta, say))

    # -- as the run goes --------------------------------------------------------------------

    def begin(self, trainer: Trainer, display: Display) -> None:
        """Before the first step: the untouched model on the held-out prompts."""
        self.files.attempt(lambda: self.files.write_status("running", 0))
        if self.recipe.eval.at_start and not self._borrow(display.say):
            self._evaluate(trainer, "base", display)
        display.doing(f"drawing the probe's {len(trainer.parts.probe_samples)} pictures")
        trainer.start_watch()
        self.files.settle()

    def _borrow(self, say: Say) -> bool:
        """Takes the base's evaluation over from the run that the recipe names, if it names one."""
        source = self.recipe.eval.base
        return source is not None and self.processes.from_main(
            lambda: self._take(Path(source), say)
        )

    def _take(self, source: Path, say: Say) -> bool:
        device = device_name(self.processes.device)
        found = take_base(self.recipe, device, source, self.path)
        if isinstance(found, str):
            say(f"{found}; drawing it")
            return False
        self._write_record(found, say)
        return True

    def epoch(
        self, trainer: Trainer, rows: list[dict[str, Any]], stopping: bool, display: Display
    ) -> str | None:
        """After an epoch: probe, samples, evaluation, its rows of metrics and a checkpoint, as due.

        Why the run should end here, if the probe says so.
        """
        recipe, step = self.recipe, trainer.step
        last = trainer.finished

        def due(every: int) -> bool:
            return every > 0 and step // every > (step - len(rows)) // every

        if due(recipe.log.samples_every) or last:
            self._samples(trainer)
        look, collapsed = None, None
        if last or due(recipe.train.probe_every):
            look, collapsed = self._look(trainer, rows[-1], display)
        try:
            if last or due(recipe.eval.every):
                rows[-1]["time/eval"] = self._evaluate(trainer, "trained", display)
        finally:  # the steps were taken, whatever becomes of their evaluation
            self.files.attempt(lambda: self.files.write_rows(rows))
        best = look is not None and look.best
        if last or stopping or best or collapsed or due(recipe.train.checkpoint_every):
            self._checkpoint(trainer, look if best else None)
        self.files.attempt(lambda: self.files.write_status("running", step))
        self.files.settle()
        return collapsed

    def _look(
        self, trainer: Trainer, row: dict[str, Any], display: Display
    ) -> tuple[Look | None, str | None]:
        """Takes the probe, and does what the recipe says where it has collapsed."""
        started = time.perf_counter()
        display.doing(f"drawing the probe's {len(trainer.parts.probe_samples)} pictures")
        look = trainer.look()
        if look is None:
            return None, None
        row |= trainer.watch.row(look) | {"time/probe": time.perf_counter() - started}
        if look.fell is None:
            return look, None
        stopping, words = answer(trainer, self._best_state)
        line = f"collapse: {look.fell}; the distance to the base is {row['kl']:.3g}. {words}"
        row["notes"] = [*row.get("notes", []), line]
        display.say(f"step {trainer.step}: {line}")
        return look, "collapsed" if stopping else None

    def _best_state(self) -> State:
        return load_state(self.processes.from_main(self.files.best_checkpoint))

    def evaluate_best(self, trainer: Trainer, display: Display) -> None:
        """At the end of a run whose last step is not its best: the best on the held-out prompts."""
        step = trainer.watch.best_step
        if step is None or step == trainer.step:
            return
        folder = self.path / "evals" / step_name(step)
        if not self.processes.from_main(lambda: (folder / "index.json").is_file()):
            saved = self._best_state().tensors
            values = saved["ema" if self.recipe.eval.ema else "live"]
            self._evaluate(trainer, "trained", display, step=step, values=values)
            self.files.settle()

    def front(self, trainer: Trainer, display: Display) -> None:
        """At the end of a run with sliders: the best checkpoint at many settings of them."""
        adapter, parts, sliders = trainer.adapter, trainer.parts, trainer.adapter.sliders
        samples = front.some_groups(parts.probe_samples, front.MEASURED)
        if sliders is None or not samples:
            return
        step = trainer.watch.best_step or trainer.step
        values = trainer.ema if self.recipe.eval.ema else adapter.lora_state()
        if step != trainer.step:
            values = self._best_state().tensors["ema" if self.recipe.eval.ema else "live"]
        weights = front.settings(sliders)
        display.doing(f"drawing {len(samples)} pictures at {len(weights)} settings of the sliders")
        common = ([parts.rewards.unwatched()], samples, self.recipe, self.processes)
        base = evaluate_policy(adapter, *common, policy="base")
        states = {label: sliders.at(values, w) for label, w in weights.items()}
        found = dict(front.measured(adapter, *common, states))
        self.files.attempt(
            lambda: front.write_front(self.path / "front", step, sliders, weights, base, found)
        )
        self.files.settle()

    def end(self, trainer: Trainer, reason: str | None, console: Console) -> None:
        """Closing words: the table before → after, and where everything lies."""
        if self._folder is None:
            return
        self.files.checkpoints.close()
        collapsed = reason == "collapsed"
        ended = "stopped" if collapsed else "finished" if reason is None else "interrupted"
        self.files.write_status(ended, trainer.step)
        if reason is not None and not collapsed:
            console.print(
                f"stopped after step {trainer.step} ({reason}); go on with\n"
                f"  marble train --resume {self.path}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
            return
        chosen = best_complete(self._folder.checkpoints)[0]
        write_model_card(chosen / "lora" / "README.md", self.recipe, self.path)
        told = None
        best = self.files.best
        if best is not None:
            told = (
                f"step {best['step']} of {trainer.step} by the held-out probe "
                f"({best['by']} relative gain {best['value']:+.2f} σ)"
            )
        closing_table(self.path, chosen, self.recipe.rewards.names, console, told)

    # -- inside -----------------------------------------------------------------------------

    def _evaluate(
        self,
        trainer: Trainer,
        policy: str,
        display: Display,
        *,
        step: int | None = None,
        values: Mapping[str, torch.Tensor] | None = None,
    ) -> float:
        """Scores a policy on the held-out prompts; the seconds it took.

        `values`: weights of an earlier `step`, in place of the present ones.
        """
        adapter, parts, recipe = trainer.adapter, trainer.parts, self.recipe
        display.doing(f"evaluating {len(parts.eval_samples)} pictures")
        step = trainer.step if step is None else step
        if values is None:
            use_ema = policy == "trained" and recipe.eval.ema
            values = trainer.ema if use_ema else adapter.lora_state()
        with adapter.swapped(values):
            result = evaluate_policy(
                adapter,
                [parts.rewards, parts.heldout],
                parts.eval_samples,
                recipe,
                self.processes,
                policy="default" if policy == "trained" else "base",
            )
        # Handed out here: a row of metrics holds only what its own epoch had to say.
        own = [w for part in (parts.rewards, parts.heldout) if part for w in part.warnings()]
        for warning in dict.fromkeys(w for part in self.processes.gather(own) for w in part):
            display.say(f"step {step}, evaluation: {warning}")
        self.files.attempt(lambda: self._write_evaluation(step, policy, result, display.say))
        return result.seconds

    def _write_evaluation(self, step: int, policy: str, result: Evaluation, say: Say) -> None:
        assert self._folder is not None
        folder = f"evals/{step_name(step)}"
        record = {
            "step": step,
            "policy": policy,
            **result.record(self.recipe.rewards.names),
            "folder": folder,
            "seconds": result.seconds,
        }
        self._write_record(record, say)
        groups = [s.group for s in result.samples]
        statistics = drift_statistics(result.images.numpy(), groups)
        names = self.recipe.rewards.names
        self._folder.write_pictures(
            folder,
            step,
            result.samples,
            result.images,
            result.scores,
            trained=names,
            drift=statistics,
        )

    def _write_record(self, record: dict[str, Any], say: Say) -> None:
        self.files.evals.write(record)
        means = {name: r["mean"] for name, r in record["rewards"].items()}
        self.files.trackers.log(
            record["step"], {f"eval/{name}": mean for name, mean in means.items()}
        )
        shown = "  ".join(
            f"{name} –" if mean is None else f"{name} {mean:.3f}" for name, mean in means.items()
        )
        say(f"held-out, {record['policy']}, step {record['step']}: {shown}")

    def _samples(self, trainer: Trainer) -> None:
        """Pictures of the last rollout, all its scores and advantages: what training has seen."""
        rollout, batch = trainer.last
        samples, scores_KN = trainer.scored
        count = min(self.recipe.log.samples, len(samples))
        chosen = np.linspace(0, len(samples) - 1, count).round().astype(int).tolist()
        wanted = {samples[i].index for i in chosen}
        own = {
            s.index: image.clone()  # a view would travel with all the others
            for s, image in zip(rollout.samples, rollout.images)
            if s.index in wanted
        }
        images = {k: v for part in self.processes.gather(own) for k, v in part.items()}
        names = self.recipe.rewards.names

        def write() -> None:
            assert self._folder is not None
            self._folder.write_pictures(
                f"samples/{step_name(trainer.step)}",
                trainer.step,
                [samples[i] for i in chosen],
                torch.stack([images[samples[i].index] for i in chosen]),
                {name: scores_KN[k, chosen].numpy() for k, name in enumerate(names)},
                trained=names,
            )
            self._folder.write_advantages(trainer.step, names, samples, scores_KN, batch)

        self.files.attempt(write)

    def _checkpoint(self, trainer: Trainer, best: Look | None = None) -> None:
        """`best`: the probe that says it is the best so far, where it is."""
        if best is not None:
            self.files.best = {
                "step": best.step,
                "value": best.value,
                "by": self.recipe.train.best_by,
            }
        state = trainer.state()
        self.files.attempt(lambda: self.files.write_checkpoint(trainer, state, best is not None))
