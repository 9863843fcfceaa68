"""The stages of a run: the recipe that each is trained by, and the files it leaves in the run folder."""

from nofe import runs
from nofe.config import RunConfig
from nofe.recipes import base_by
from nofe.runs import Run
from nofe.training.recipe import Recipe

FILES_OF_STAGE = {
    "base": (runs.BASE,),
    "base-paper": (runs.PAPER_BASE,),
    "generalist": (runs.SPECIALTIES, runs.GENERALIST),
    "experts": (runs.NETWORK,),
}


def forget_experts(run: Run) -> None:
    """The generalist is made again, or taken from elsewhere: on a GPU it may end with other specialties."""
    run.discard(runs.NETWORK, runs.PREDICTIONS, runs.SUMMARY)


def recipe_of_stage(config: RunConfig) -> dict[str, Recipe]:
    """Of the stages that a run trains, in order."""
    recipes = base_recipes(config)
    if config.until != "base":
        recipes["generalist"] = config.generalist
    if config.until == "experts":
        recipes["experts"] = config.experts
    return recipes


def base_recipes(config: RunConfig) -> dict[str, Recipe]:
    """The bases that a run trains, by stage: by the experts' recipe, and by the paper's own if asked for."""
    recipes: dict[str, Recipe] = {}
    if config.base.by in ("experts", "both"):
        recipes["base"] = base_by(config.experts)
    if config.base.by == "paper" or (config.base.by == "both" and config.base.paper != base_by(config.experts)):
        recipes["base-paper"] = config.base.paper
    return recipes


def crop_of_stage(config: RunConfig) -> dict[str, int]:
    """Pixels a side of what the network of each stage reads."""
    return {stage: recipe.augmentation.crop for stage, recipe in recipe_of_stage(config).items()}
