"""What a run imports, before the fork. CUDA must stay untouched: a fork cannot take it along."""

import os
from contextlib import suppress
from importlib import import_module

# Else asking whether there is a GPU already opens it.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

with suppress(ImportError):  # what is really missing is told by the run that needs it
    from marble.models.registry import import_pipelines

    import_pipelines("studio")

for name in (
    "marble.cli.train",
    "marble.training.run",
    "onnxruntime",
    "torch.utils.tensorboard",
):
    with suppress(ImportError):
        import_module(name)
