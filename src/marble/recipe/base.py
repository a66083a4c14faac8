"""What every section of a recipe has in common; see `marble.options`."""

from marble.options import (
    Count,
    Decay,
    Fraction,
    Name,
    NonNegative,
    Positive,
    PositiveInt,
    Section,
)

__all__ = [
    "Count",
    "Decay",
    "Fraction",
    "Name",
    "NonNegative",
    "Positive",
    "PositiveInt",
    "Section",
]
