"""The keys of the stages of results and experiments, by which they are told apart."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from nofe import config as configuration
from nofe.config import RunConfig
from nofe.errors import UserError
from nofe.experiments.table import Experiment
from nofe.reuse import digest, stage_keys


def keys_of(result: Mapping[str, Any]) -> dict[str, str]:
    """By stage; none for a result of a configuration that this version does not know."""
    try:
        config = configuration.from_json(result["config"])
        if "hd-cnn" in result["networks"]:
            return _keys_of_hdcnn(config, _recipe_of_hdcnn(result["summary"]["config"]["hdcnn"]))
    except (UserError, KeyError):
        return {}
    return stage_keys(config)


def keys_of_experiment(experiment: Experiment, seed: int) -> dict[str, str]:
    config = experiment.seeded(seed)
    return _keys_of_hdcnn(config, _recipe_of_hdcnn()) if experiment.hdcnn else stage_keys(config)


def _keys_of_hdcnn(config: RunConfig, recipe: Mapping[str, Any]) -> dict[str, str]:
    [of_base] = stage_keys(config).values()
    return {"hd-cnn": f"hd-cnn on {of_base} by {digest(recipe)}"}


def _recipe_of_hdcnn(stored: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """This version's, or that of a result, in which fields that are newer than it have their defaults."""
    from nofe.experiments.hdcnn import HDCNNConfig

    return asdict(HDCNNConfig() if stored is None else configuration.structured(stored, HDCNNConfig))
