"""The typed recipe: what a run is made of, checked before anything loads (no torch here)."""

from marble.recipe.balance import GRAM_METHODS, METHODS, Balance, Reward, Rewards, Stage
from marble.recipe.files import list_recipes
from marble.recipe.load import load_recipe, recipe_from
from marble.recipe.reference import reference
from marble.recipe.schema import Recipe
from marble.recipe.sections import OldDecay, Source

__all__ = [
    "GRAM_METHODS",
    "METHODS",
    "Balance",
    "OldDecay",
    "Recipe",
    "Reward",
    "Rewards",
    "Source",
    "Stage",
    "list_recipes",
    "load_recipe",
    "recipe_from",
    "reference",
]
