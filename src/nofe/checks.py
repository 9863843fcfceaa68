"""Whether configuration, images and run folder go together, before anything is trained."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nofe import config as configuration
from nofe import runs
from nofe.architectures import architecture_named
from nofe.architectures.line import first_line
from nofe.architectures.pretrained import read_weights, require_fitting_weights
from nofe.architectures.width import with_branch_width
from nofe.config import GROUPS, WEIGHTS, RunConfig, architecture_of
from nofe.data import Dataset, is_listed
from nofe.data.groups import group_of_class
from nofe.data.layouts import require_outside
from nofe.data.pictures import fraction_of
from nofe.errors import UserError
from nofe.files import expand_home, sha256_of
from nofe.runs import Run
from nofe.specialties import wordnet_specialties
from nofe.stages import FILES_OF_STAGE, recipe_of_stage
from nofe.training.ranks import Ranks
from nofe.training.recipe import Recipe, recipe_field


def require_outside_images(config: RunConfig, out: Path) -> None:
    """Refuse a run folder that lies among the images it is to read."""
    kind, _, path = config.data.name.partition(":")
    if kind == "folder":
        require_outside(Path(path), out)


def require_fitting(
    config: RunConfig, dataset: Dataset, run: Run, ranks: Ranks, *, sync_batch_norm: bool = False
) -> None:
    """That every stage can be trained on these images as the configuration says."""
    if config.adapt.branch_width != 1 and not run.has(runs.CONFIG):  # older runs, begun unchecked, may go on
        whole = architecture_named(config.architecture, config.adapt.cut)
        with torch.device("meta"):
            with_branch_width(whole, config.adapt.branch_width, must_change=True).branch(1)
    _require_fitting_crops(config, dataset)
    _require_batches_to_share_out(config, dataset, run, ranks)
    if not (sync_batch_norm and ranks.count > 1):
        _require_batches_to_normalise(config, dataset, ranks)
    if weights := config.adapt.weights:
        state = ranks.each(lambda: read_weights(weights, config.architecture))
        require_fitting_weights(state, architecture_of(config, dataset.classes), weights)
    elif config.adapt.frozen_trunk and not run.has(runs.CONFIG):  # older runs, begun unchecked, may go on
        raise UserError(
            "--frozen-trunk: the trunk would stay as random as it begins; start from trained weights with --pretrained "
            "or --weights FILE"
        )
    if config.specialties.rule == "groups":
        ranks.first(lambda: group_of_class(config.specialties.groups, dataset))  # misspelt?
    elif config.specialties.count > dataset.classes:
        raise UserError(
            f"--experts {config.specialties.count}: more than the {dataset.classes} classes of {config.data.name}; "
            f"use 2 to {dataset.classes}"
        )
    if config.specialties.rule == "wordnet":
        wordnet_specialties(dataset.class_ids or dataset.class_names, config.specialties.count)


def _require_fitting_crops(config: RunConfig, dataset: Dataset) -> None:
    """That the images hold what every stage crops and the network can read it."""
    architecture = architecture_of(config, dataset.classes)
    recipes: dict[str, Recipe] = {"generalist": config.generalist, "experts": config.experts}
    if config.base.by in ("paper", "both"):
        recipes["base.paper"] = config.base.paper
    for crop, name in {recipe.augmentation.crop: name for name, recipe in recipes.items()}.items():
        if crop > dataset.image_size:
            raise UserError(
                f"{name}.augmentation.crop={crop}: larger than the images of {dataset.image_size} pixels; "
                f"bring images of {architecture.image_size} pixels for {architecture.name}, or set a smaller crop"
            )
        if crop == architecture.input_size and architecture.classifier_layer is None:
            continue  # known to fit; a network that is cut here is tried, so that a wrong cut is noticed now
        with torch.device("meta"), torch.inference_mode():  # where only shapes are computed
            images = torch.zeros(1, 3, crop, crop)
            base, branch, trunk = architecture.classifier(2), architecture.branch(1), architecture.trunk_of_experts()
            try:
                base.eval()(images)
                branch.eval()(trunk.eval()(images))
            except Exception as error:  # whatever the code of a layer says, such as timm's that asserts a size
                raise UserError(
                    f"{name}.augmentation.crop={crop}: {architecture.name} cannot read images of this size "
                    f"({first_line(error)}); leave it at {architecture.input_size}"
                ) from error


def _require_batches_to_share_out(config: RunConfig, dataset: Dataset, run: Run, ranks: Ranks) -> None:
    """That every batch can be divided among the ranks: known now, not when the stages before it are trained."""
    for stage, recipe in recipe_of_stage(config).items():
        batch = min(recipe.batch, len(dataset.train))
        if batch % ranks.count and not all(run.has(file) for file in FILES_OF_STAGE[stage]):
            fitting = max(1, batch // ranks.count) * ranks.count
            whole = f" has all {batch:,} training images, which" if batch < recipe.batch else ""
            raise UserError(
                f"{recipe_field(stage)}.batch={recipe.batch}:{whole} cannot be shared out over {ranks.count} ranks; "
                f"use a multiple of {ranks.count}, such as {fitting}"
            )


def _require_batches_to_normalise(config: RunConfig, dataset: Dataset, ranks: Ranks) -> None:
    """That batch norm never sees one image with a map of one pixel, which has no deviation."""
    for stage, recipe in recipe_of_stage(config).items():
        if min(recipe.batch, len(dataset.train)) > ranks.count:  # every rank has two or more
            continue
        architecture, crop = architecture_of(config, dataset.classes), recipe.augmentation.crop
        try:
            with torch.device("meta"), torch.no_grad():
                classifier, trunk = architecture.classifier(2), architecture.trunk_of_experts()
                if config.adapt.frozen_trunk:
                    classifier.freeze_trunk()
                classifier.train()(torch.zeros(1, 3, crop, crop))
                trunk.train(not config.adapt.frozen_trunk)
                architecture.branch(1).train()(trunk(torch.zeros(1, 3, crop, crop)))
        except ValueError as error:  # so torch.nn.functional.batch_norm
            shared = ranks.count > 1
            raise UserError(
                f"{recipe_field(stage)}.batch={recipe.batch}: {architecture.name} normalises a map of one pixel over "
                f"the images of a batch{f', of which each of {ranks.count} ranks has one' * shared}; use "
                f"{2 * ranks.count} or more{', --sync-batch-norm' * shared}, or larger images"
            ) from error


def require_same_config(config: RunConfig, run: Run) -> None:
    """That this is the configuration the run was started with."""
    if differing := differences_from_run(config, run):
        raise UserError(
            f"{run.path}: was started with another configuration ({'; '.join(differing[:3])}); "
            "resume it with its own, or name another folder with --out"
        )


def require_same_config_but_place(config: RunConfig, run: Run) -> None:
    """The same, but its data may lie elsewhere: whether it is the same data is seen from the images."""
    require_same_config(_with_data_where_it_was(config, run), run)


def differences_from_run(config: RunConfig, run: Run) -> list[str]:
    """Each field with what it was when the run was started and what it is."""
    # Read and written again, so that a field that is newer than the run has its default.
    earlier = json.loads(json.dumps(configuration.to_json(configuration.from_json(run.read_config()))))
    now = json.loads(json.dumps(configuration.to_json(config)))  # tuples become lists, as in the file
    return _differences(earlier, now)


def _with_data_where_it_was(config: RunConfig, run: Run) -> RunConfig:
    now, then = config.data, configuration.from_json(run.read_config()).data
    same_kind = is_listed(then.name) and then.name.partition(":")[0] == now.name.partition(":")[0]
    both_folders = fraction_of(then.test) is None and fraction_of(now.test) is None
    name, test = then.name if same_kind else now.name, then.test if both_folders else now.test
    return replace(config, data=replace(now, name=name, root=then.root, test=test))


def is_data_elsewhere(config: RunConfig, run: Run) -> bool:
    """Whether the images would come from another place than when the run was started."""
    return config.data != configuration.from_json(run.read_config()).data


def _differences(before: Any, after: Any, path: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        names = sorted(before.keys() | after.keys())
        found = [_differences(before.get(name), after.get(name), f"{path}.{name}".strip(".")) for name in names]
        return [difference for part in found for difference in part]
    return [] if before == after else [f"{path} was {before}, is {after}"]


def files_of(config: RunConfig) -> dict[str, str]:
    """Checksums of the files that a configuration names, by field: what counts is their content, not their place."""
    named = {WEIGHTS: config.adapt.weights, GROUPS: config.specialties.groups}
    paths = {field: expand_home(name) for field, name in named.items() if name}
    return {field: sha256_of(path) for field, path in paths.items() if path.is_file()}


def require_same_files(config: RunConfig, run: Run) -> None:
    """As when the run was started, as far as they are still there."""
    now = files_of(config)  # perhaps none on another node; but all ranks must take part in reading the run
    earlier = run.read_json(runs.ENVIRONMENT).get("files", {})
    changed = [field for field, checksum in now.items() if earlier.get(field, checksum) != checksum]
    if changed:
        raise UserError(
            f"{run.path}: the file of {changed[0]} changed since the run was started; put the old one back, or start a "
            "new run"
        )


def require_same_images(dataset: Dataset, run: Run, advice: str = "start a new run") -> None:
    """That the run was started with these: with others it might be judged by images that it was trained on."""
    if not has_same_images(dataset, run):
        then = run.read_json(runs.ENVIRONMENT)["data"]
        raise UserError(
            f"{run.path}: the images changed since the run was started{_changes(then, dataset)}; put the old ones "
            f"back, or {advice}"
        )


def has_same_images(dataset: Dataset, run: Run) -> bool:
    """Whether they are those of the run, in the same training and test parts."""
    earlier: str = run.read_json(runs.ENVIRONMENT)["data"]["fingerprint"]
    return earlier == dataset.fingerprint()


def _changes(then: dict[str, Any], dataset: Dataset) -> str:
    gone, new = set(then["classes"]) - set(dataset.class_names), set(dataset.class_names) - set(then["classes"])
    if gone or new:
        words = [f"class {min(names)!r} is {what}" for names, what in ((gone, "gone"), (new, "new")) if names]
        return f" ({', '.join(words)})"
    if "images" not in then:  # an older run, which did not count them
        return ""
    counts, now = then["images"], {"train": len(dataset.train), "test": len(dataset.test)}
    if counts == now:
        return " (as many as then, but other pixels, names or labels, perhaps by another decoder)"
    words = [
        f"{counts[part]:,} {what} then, {now[part]:,} now"
        for part, what in (("train", "to train on"), ("test", "to test on"))
    ]
    return f" ({', '.join(words)})"
