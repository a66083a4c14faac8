"""Rules by name."""

from __future__ import annotations

import inspect
from typing import Any

from marble.errors import MarbleError

from ._aligned import Aligned
from ._cagrad import CAGrad
from ._dualproj import DualProj
from ._fixed import Fixed
from ._imtl_g import IMTLG
from ._marble import Marble
from ._mgda import MGDA
from ._nash import Nash
from ._options import nearest
from ._pcgrad import PCGrad
from ._progress import Progress
from ._rule import Rule
from ._uniform import Uniform
from ._upgrad import UPGrad

_ALL: tuple[type[Rule], ...] = (
    Marble,
    MGDA,
    UPGrad,
    DualProj,
    CAGrad,
    PCGrad,
    Nash,
    IMTLG,
    Aligned,
    Uniform,
    Fixed,
    Progress,
)
RULES: dict[str, type[Rule]] = {rule.name: rule for rule in _ALL}


def get_rule(name: str, **options: Any) -> Rule:
    """The rule called `name`, made with `options`; an error names the nearest known one."""
    if name not in RULES:
        raise MarbleError(f"There is no balancing method {name!r}. {nearest(name, RULES)}")
    known = [p for p in inspect.signature(RULES[name].__init__).parameters if p != "self"]
    for option in options:
        if option not in known:
            hint = nearest(option, known) if known else "It has no options."
            raise MarbleError(f"Method {name!r} has no option {option!r}. {hint}")
    return RULES[name](**options)
