"""Everything a run writes: metrics, samples, evaluations, checkpoints, the closing table."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from marble.errors import CheckpointError, MarbleError
from marble.evaluation.drift import drift_statistics
from marble.recipe import Recipe
from marble.training import front
from marble.training.borrow import take_base
from marble.training.checkpoint import (
    CheckpointWriter,
    State,
    best_complete,
    checkpoints,
    load_state,
    newest_complete,
    set_aside,
    step_name,
)
from marble.training.closing import closing_table, write_model_card
from marble.training.display import Display
from marble.training.evaluate import Evaluation, evaluate_policy
from marble.training.folder import (
    DISK_ERRORS,
    RunFolder,
    device_name,
    environment,
    mark_failed,
)
from marble.training.loop import Trainer
from marble.training.metrics import JsonLines, Trackers, check_length, check_trackers
from marble.training.processes import Processes
from marble.training.watch import Look

# A run that collapses again and again has settings that no learning rate mends.
MOST_ROLLBACKS = 3
Say = Callable[[str], None]


class Recorder:
    """Knows the run folder. On other processes than the main one it only joins in collectives."""

    def __init__(self, recipe: Recipe, out: Path, processes: Processes, *, resuming: bool) -> None:
        self.recipe, self.path, self.processes = recipe, out, processes
        self.fresh = not resuming
        self._seconds_before = 0.0
        self._folder: RunFolder | None = None
        self._damaged: dict[Path, str] = {}
        self._failure: MarbleError | None = None
        self._best: dict[str, Any] | None = None
        processes.from_main(self._begin)

    def _begin(self) -> None:
        """Takes the folder. The recipe goes in first: from then on the run can be resumed.

        A run to resume is only locked: nothing in it changes before `resume`.
        """
        self._folder = RunFolder(self.path, resuming=not self.fresh)
        if not self.fresh:
            return
        try:
            self._folder.write_text("config.yaml", self.recipe.dump())
            self._open(0, {})
        except OSError as error:
            raise self.cannot_write(error) from error

    def find_checkpoint(self, say: Say) -> Path | None:
        """The newest whole checkpoint, for all processes; None where the run has none yet."""
        return self.processes.from_main(lambda: self._find_checkpoint(say))

    def _find_checkpoint(self, say: Say) -> Path | None:
        assert self._folder is not None
        if not checkpoints(self._folder.checkpoints):
            say("there is no checkpoint yet: starting over")
            return None
        found, self._damaged = newest_complete(self._folder.checkpoints)
        return found

    def resume(self, step: int, meta: dict[str, Any], say: Say) -> None:
        """Takes the files back to where the checkpoint was made: the resume has been accepted."""
        self._seconds_before, self._best = meta.get("seconds", 0.0), meta.get("best")
        self.processes.from_main(lambda: self._take_back(step, meta, say))

    def _take_back(self, step: int, meta: dict[str, Any], say: Say) -> None:
        assert self._folder is not None
        for name in ("metrics", "evals"):  # the last reasons to refuse
            check_length(self.path / f"{name}.jsonl", meta.get(name, 0))
        check_trackers(self.recipe.log.trackers)
        try:
            if not step:  # starting over: it is this recipe's run now
                self._folder.write_text("config.yaml", self.recipe.dump())
            for path, problem in self._damaged.items():
                say(f"passed over {path.name}: {problem}; kept as {set_aside(path).name}")
            self._open(step, meta)
        except OSError as error:
            raise self.cannot_write(error) from error

    def _open(self, step: int, meta: dict[str, Any]) -> None:
        """Opens all files, without what a run that was cut off wrote after `step`."""
        assert self._folder is not None
        size = self.processes.size
        self._folder.write_json("environment.json", environment(self.processes.device, size))
        self._folder.forget_after(step)
        self._metrics = JsonLines(self.path / "metrics.jsonl", meta.get("metrics", 0))
        self._evals = JsonLines(self.path / "evals.jsonl", meta.get("evals", 0))
        log = self.recipe.log
        names = list(dict.fromkeys(["tensorboard", *log.trackers]))
        self._trackers = Trackers(
            names,
            self.path,
            log.project,
            log.run_name or self.path.name,
            self.recipe.model_dump(mode="json"),
            meta.get("trackers", {}),
            step,
        )
        self._checkpoints = CheckpointWriter(
            self._folder.checkpoints, self.recipe.train.keep_checkpoints
        )
        self._checkpoints.tell_best(self._best)
        self._started = time.time()

    # -- as the run goes --------------------------------------------------------------------

    def begin(self, trainer: Trainer, display: Display) -> None:
        """Before the first step: the untouched model on the held-out prompts."""
        self._attempt(lambda: self._write_status("running", 0))
        if self.recipe.eval.at_start and not self._borrow(display.say):
            self._evaluate(trainer, "base", display)
        display.doing(f"drawing the probe's {len(trainer.parts.probe_samples)} pictures")
        trainer.start_watch()
        self._settle()

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
            self._attempt(lambda: self._write_rows(rows))
        best = look is not None and look.best
        if last or stopping or best or collapsed or due(recipe.train.checkpoint_every):
            self._checkpoint(trainer, look if best else None)
        self._attempt(lambda: self._write_status("running", step))
        self._settle()
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
        stopping, words = self._answer(trainer)
        line = f"collapse: {look.fell}; the distance to the base is {row['kl']:.3g}. {words}"
        row["notes"] = [*row.get("notes", []), line]
        display.say(f"step {trainer.step}: {line}")
        return look, "collapsed" if stopping else None

    def _answer(self, trainer: Trainer) -> tuple[bool, str]:
        """Whether to stop, and what is done about a collapse, in words."""
        action, watch = self.recipe.train.on_collapse, trainer.watch
        if action == "warn" or watch.best_step is None:
            return action != "warn", (
                f"The best checkpoint, step {watch.best_step}, is kept; "
                "train.on_collapse=rollback would return to it. A tighter trust region "
                "(rollout.old_decay, objective.kl) or a lower optim.lr prevents this"
            )
        if action == "stop" or watch.rollbacks >= MOST_ROLLBACKS:
            return True, f"Stopping; the best checkpoint is step {watch.best_step}"
        trainer.go_back(self._best_state())
        return False, (
            f"Back to the best checkpoint, step {watch.best_step}, with the learning rate times "
            f"{trainer.lr_scale:g}"
        )

    def _best_state(self) -> State:
        return load_state(self.processes.from_main(self._best_checkpoint))

    def _best_checkpoint(self) -> Path:
        """On disk by now, unless something is wrong with it: then the newest whole one."""
        self._checkpoints.wait()
        return best_complete(self.path / "checkpoints")[0]

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
            self._settle()

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
        self._attempt(
            lambda: front.write_front(self.path / "front", step, sliders, weights, base, found)
        )
        self._settle()

    def end(self, trainer: Trainer, reason: str | None, console: Console) -> None:
        """Closing words: the table before → after, and where everything lies."""
        if self._folder is None:
            return
        self._checkpoints.close()
        collapsed = reason == "collapsed"
        ended = "stopped" if collapsed else "finished" if reason is None else "interrupted"
        self._write_status(ended, trainer.step)
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
        if self._best is not None:
            told = (
                f"step {self._best['step']} of {trainer.step} by the held-out probe "
                f"({self._best['by']} relative gain {self._best['value']:+.2f} σ)"
            )
        closing_table(self.path, chosen, self.recipe.rewards.names, console, told)

    def fail(self, step: int) -> None:
        """Marks the run as failed, where that can still be written."""
        if self._folder is not None and hasattr(self, "_metrics") and self.path.is_dir():
            with suppress(OSError):
                self._write_status("failed", step)

    def fail_alone(self) -> None:
        """The same where the main process may be gone: its lock is free then."""
        if self._folder is None:
            with suppress(OSError, ValueError, MarbleError):
                mark_failed(self.path)

    @property
    def last_good(self) -> str:
        """Words on where the run can be resumed from."""
        try:
            if hasattr(self, "_checkpoints"):
                with suppress(MarbleError):
                    self._checkpoints.wait()
            return f"the last good checkpoint is {newest_complete(self.path / 'checkpoints')[0]}"
        except CheckpointError:
            return "there is no checkpoint yet"

    def cannot_write(self, error: OSError) -> MarbleError:
        """What to tell of a disk that is full, gone or not ours."""
        return MarbleError(
            f"{self.path}: cannot write there ({error.strerror}); {self.last_good}. Go on with "
            f"`marble train --resume {self.path}` when it can be written again"
        )

    def close(self) -> None:
        if self._folder is None:
            return
        for part in ("_checkpoints", "_metrics", "_evals", "_trackers"):
            if hasattr(self, part):
                # After a failure only the failure is worth telling.
                with suppress(OSError, MarbleError):
                    getattr(self, part).close()
        self._folder.close()

    # -- inside -----------------------------------------------------------------------------

    def _attempt(self, write: Callable[[], None]) -> None:
        """Writes, on the main process. A failure waits until all can hear of it, in `_settle`;
        meanwhile the main process must not stay away from what they do together."""
        if self._folder is None or self._failure is not None:
            return
        if not self.path.is_dir():  # writing would begin another folder under a lost mount
            gone = OSError(errno.ENOENT, "the folder is gone")
            self._failure = self.cannot_write(gone)
            return
        try:
            write()
        except CheckpointError as error:
            self._failure = error
        except OSError as error:
            if error.errno not in DISK_ERRORS and self.path.is_dir():
                raise
            self._failure = self.cannot_write(error)

    def _settle(self) -> None:
        """Fails, on all processes, where the main one could not write."""

        def tell() -> None:
            if self._failure is not None:
                raise self._failure

        self.processes.together(tell)

    def _write_status(self, status: str, step: int) -> None:
        assert self._folder is not None
        steps = self.recipe.train.steps
        self._folder.write_status(status, step, steps, self._seconds_before, self._best)

    def _write_rows(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self._metrics.write(row)
            self._trackers.log(row["step"], row)
        self._checkpoints.check()

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
        self._attempt(lambda: self._write_evaluation(step, policy, result, display.say))
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
        self._evals.write(record)
        means = {name: r["mean"] for name, r in record["rewards"].items()}
        self._trackers.log(record["step"], {f"eval/{name}": mean for name, mean in means.items()})
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

        self._attempt(write)

    def _checkpoint(self, trainer: Trainer, best: Look | None = None) -> None:
        """`best`: the probe that says it is the best so far, where it is."""
        if best is not None:
            self._best = {"step": best.step, "value": best.value, "by": self.recipe.train.best_by}
        state = trainer.state()
        self._attempt(lambda: self._write_checkpoint(trainer, state, best is not None))

    def _write_checkpoint(self, trainer: Trainer, state: State, best: bool) -> None:
        for lines in (self._metrics, self._evals):
            lines.sync()
        state.meta["recorder"] = {
            "metrics": self._metrics.length,
            "evals": self._evals.length,
            "trackers": self._trackers.ids,
            "seconds": self._seconds_before + time.time() - self._started,
            "best": self._best,
        }
        about = self._best if best else None
        self._checkpoints.save(trainer.step, state, trainer.write_lora, about)
