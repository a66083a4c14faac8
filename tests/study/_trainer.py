"""Stands for `marble train` where a test is about the study: a run takes a moment.

Overrides say what happens: `train.steps` checkpoints are written, `optim.lr` seconds apart; with
`balance.method=fixed` the run fails in the middle.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

words = [w for w in sys.argv[1:] if "=" in w]
asked = dict(w.split("=", 1) for w in words)
resumed = "--resume" in sys.argv
folder = Path(sys.argv[sys.argv.index("--resume" if resumed else "--out") + 1])
latest = folder / "checkpoints" / "latest"
if resumed:
    asked = json.loads((folder / "asked.json").read_text())
first = int(latest.read_text()) if resumed else 0
latest.parent.mkdir(exist_ok=True)
(folder / "asked.json").write_text(json.dumps(asked))
(folder / "samples").mkdir(exist_ok=True)
(folder / "pid.txt").write_text(str(os.getpid()))
base = folder / "evals" / "step-000000" / "index.json"
base.parent.mkdir(parents=True, exist_ok=True)
base.write_text("{}")
print(os.environ["OMP_NUM_THREADS"], "threads", flush=True)
(folder / "imported.txt").write_text(" ".join(sys.modules))
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
log = (folder / "steps.txt").open("a", buffering=1)
log.write(f"start {first} {time.monotonic()}\n")
for step in range(first, int(asked["train.steps"])):
    if stopping:
        sys.exit(0)
    if asked.get("balance.method") == "fixed" and step == 1:
        print("some trace")
        sys.exit("marble: this cell is broken")
    time.sleep(float(asked["optim.lr"]))
    latest.write_text(str(step + 1))
    log.write(f"{step} {time.monotonic()}\n")
(folder / "run.json").write_text(json.dumps({"status": "finished"}))
