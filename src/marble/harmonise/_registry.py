"""Rules by name: one line each. This is the list of balancing methods, written once."""

from __future__ import annotations

from typing import Any

from marble.plugins import find

from ._aligned import Aligned
from ._cagrad import CAGrad
from ._dualproj import DualProj
from ._fixed import Fixed
from ._gated import Dropout, Sequential, Single
from ._imtl_g import IMTLG
from ._marble import Marble, MarblePaper
from ._merged import GDPO, WeightedSum
from ._mgda import MGDA
from ._nash import Nash
from ._pcgrad import PCGrad
from ._progress import Progress
from ._rule import Rule
from ._steerable import Steerable
from ._uniform import Uniform
from ._upgrad import UPGrad

_ALL: tuple[type[Rule], ...] = (
    Marble,
    MarblePaper,
    MGDA,
    UPGrad,
    DualProj,
    CAGrad,
    PCGrad,
    Nash,
    IMTLG,
    Aligned,
    WeightedSum,
    GDPO,
    Uniform,
    Fixed,
    Dropout,
    Sequential,
    Single,
    Progress,
    Steerable,
)
RULES: dict[str, type[Rule]] = {rule.name: rule for rule in _ALL}
DEFAULT = Marble.name


def rule_class(name: str) -> type[Rule]:
    """The rule called `name`: built in, an entry point, or `module:Class`."""
    return find("rule", name, RULES, Rule)


def get_rule(name: str, **options: Any) -> Rule:
    """The rule called `name`, made with `options`; an error names the nearest known one."""
    made: Rule = rule_class(name)(**options)
    return made
