"""Typed options: sections of a recipe, and what rules and objectives declare beside themselves."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """Strict (no silent conversions), closed (no unknown keys) and immutable."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, validate_default=True, allow_inf_nan=False
    )


MOST = 2**31 - 1
PositiveInt = Annotated[int, Field(ge=1, le=MOST)]
Count = Annotated[int, Field(ge=0, le=MOST)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
# A run's folder is called after its recipe: no name may lead out of `runs/`.
FolderName = Annotated[
    str, Field(max_length=100, pattern=r"^[^/\\\x00-\x1f\x7f.][^/\\\x00-\x1f\x7f]*$")
]
# Names travel in metric keys, folder names and dotted overrides.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
