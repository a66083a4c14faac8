"""What torch's compiler is told about a model's blocks: how to round, and to read and write less.

Elementwise work between the products is bound by memory. All of it rounds where uncompiled blocks
do (tests/models/test_models_inductor.py); only the number of copies differs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx


def configure() -> None:
    """For the whole process; what a user has set stays."""
    _round_as_eager()
    _read_once()
    _cast_once()


def _round_as_eager() -> None:
    """Fused operations round to 16 bits where the same ones do when each is a kernel of its own.

    With torch's own settings a third of the numbers after a fused chain differ. With this, and
    v_old unmerged in training, the gradient of SD3.5 Medium differs by 0.29 % from that of
    uncompiled blocks (0.87 % before), and two of these with other batch splits by 0.29 %.
    """
    from torch._inductor import config

    config.emulate_precision_casts = True
    if hasattr(config, "keep_addmm_fused_for_half_dtypes"):  # else a bias is rounded apart
        config.keep_addmm_fused_for_half_dtypes = True


WIDEST = 4096
"""Numbers of a row that one group of threads holds at once."""


def _read_once() -> None:
    """Reductions of an activation's rows read them once.

    Beyond 1024 numbers torch goes over a row in parts, and then over it again. SD3.5's rows of
    1536 fit into registers: a norm then takes 80 µs of an H200 instead of 200.
    """
    from torch._inductor import config

    if getattr(config, "inductor_choices_class", _choices) is None:  # torch 2.9 has no such place
        config.inductor_choices_class = _choices


def _choices() -> Any:
    from torch._inductor.choices import InductorChoices

    class Choices(InductorChoices):
        @staticmethod
        def should_use_persistent_reduction(features: Any, cooperative_reduction: bool) -> bool:
            if InductorChoices.should_use_persistent_reduction(features, cooperative_reduction):
                return True
            size = features.reduction_numel
            return bool(size.is_number and size <= WIDEST and _along_rows(features))

        def uuid(self) -> str:
            """Part of the key of torch's caches."""
            return f"marble-{WIDEST}"

    return Choices()


def _along_rows(features: Any) -> bool:
    """Whether neighbouring threads read neighbouring numbers, or all of them the same one."""
    reads = [read for node in features.reduction_nodes() for read in node.read_writes.reads]
    steps = [
        read.index.subs(read.var_names[-1], read.var_names[-1] + 1) - read.index
        for read in reads
        if getattr(read, "var_names", ())
    ]
    return 1 in steps and set(steps) <= {0, 1}


def _cast_once() -> None:
    """A tensor that several layers cast to the same format is cast once.

    In graphs with gradients torch sees to it. In those without, q, k and v each got a copy of their
    common input: a tenth of what a rollout's elementwise kernels read and write at SD3.5's size.
    """
    from torch._inductor import config

    if config.post_grad_custom_pre_pass is None:
        config.post_grad_custom_pre_pass = _pass()


def _pass() -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class SameCasts(CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            share_casts(graph)

        def uuid(self) -> str:
            """Part of the key of torch's caches."""
            return "marble-same-casts"

    return SameCasts()


def share_casts(graph: fx.Graph) -> None:
    """Replaces casts of the same tensor to the same format by the first of them."""
    casts: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is torch.ops.prims.convert_element_type.default:
            first = casts.setdefault(node.args, node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)
