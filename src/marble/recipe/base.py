"""What every section of a recipe has in common; see `marble.options`."""

from marble.options import (
    Count,
    Decay,
    FolderName,
    Fraction,
    Name,
    NonNegative,
    Positive,
    PositiveInt,
    Section,
    Seed,
)

__all__ = [
    "Count",
    "Decay",
    "FolderName",
    "Fraction",
    "Name",
    "NonNegative",
    "Positive",
    "PositiveInt",
    "Section",
    "Seed",
]
