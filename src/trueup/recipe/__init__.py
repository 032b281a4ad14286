"""What to run: the typed recipe, and reading it from YAML."""

from .load import LoadedRecipe, load_recipe, recipe_digest, recipe_schema, valid_keys
from .models import DataSection, ModelSection, Recipe, TuneSection

__all__ = [
    "DataSection",
    "LoadedRecipe",
    "ModelSection",
    "Recipe",
    "TuneSection",
    "load_recipe",
    "recipe_digest",
    "recipe_schema",
    "valid_keys",
]
