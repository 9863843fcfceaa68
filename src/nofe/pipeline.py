"""The paper on one page.

    images -> base                                         (what the experts are compared with)
    images -> generalist <-> confusion -> specialties      (stage 1)
           -> network of experts                           (stage 2)
           -> predictions, summary, report

Every arrow is one value here and one file in the run folder; a stage whose file is there is not run again.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from nofe import runs
from nofe.architectures import Classifier
from nofe.architectures.pretrained import read_weights, start_from
from nofe.checks import (
    is_data_elsewhere,
    require_outside_images,
    require_same_config_but_place,
    require_same_images,
)
from nofe.classifier import train_classifier
from nofe.compiling import choose_kernels, experts_compiled_ahead, is_generalist_compiled
from nofe.config import RunConfig, SpecialtiesConfig
from nofe.data import Dataset
from nofe.data.groups import group_of_class
from nofe.evaluation import predict
from nofe.experts.network import NetworkOfExperts, grow_experts, plant_experts
from nofe.generalist import train_generalist
from nofe.report.page import report_if_possible
from nofe.report.text import images_in_words, sizes_in_words
from nofe.reuse import adopt
from nofe.run_images import images_of_run
from nofe.specialties import (
    Specialties,
    Update,
    class_confusion,
    given_groups,
    random_balanced,
    rule_named,
    spectral,
    update_named,
    wordnet_specialties,
)
from nofe.stages import FILES_OF_STAGE, base_recipes, crop_of_stage, forget_experts
from nofe.streams import stream
from nofe.summary import images_before_training, sizes_before_training, summarise
from nofe.task import Task, prepare
from nofe.training.progress import Progress, Silent, closing
from nofe.training.recipe import Recipe
from nofe.training.runtime import Runtime, make_runtime, stopping_on_signals
from nofe.training.shared_run import open_shared_run
from nofe.training.spent import Spent
from nofe.training.weights import restored, write_weights


def train(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    runtime: Runtime | None = None,
    progress: Progress | None = None,
    dataset: Dataset | None = None,
    donors: Iterable[Path] = (),
) -> dict[str, Any]:
    """Train base, generalist and experts in the folder `out`; returns the summary of the run.

    A stage that one of the `donors`, folders of other runs, has trained alike is taken from there.
    """
    runtime = runtime or make_runtime()
    runtime.use_precision(config.precision)
    ranks = runtime.ranks
    progress = progress if progress and ranks.rank == 0 else Silent()
    check = partial(require_same_config_but_place, config)
    ranks.first(lambda: require_outside_images(config, out))
    with open_shared_run(out, resume=resume, check=check, ranks=ranks) as run:
        if run.has(runs.SUMMARY) and not run.damaged():
            is_read = dataset is not None or is_data_elsewhere(config, run)
            if is_read:
                require_same_images(images_of_run(config, run, runtime, dataset), run)
            progress.say(f"{out}: this run is complete" + ("" if is_read else "; its images are not read again"))
            return dict(run.read_json(runs.SUMMARY))
        spent = Spent()
        with stopping_on_signals(runtime), closing(progress):
            with spent.on("images"):
                images = images_of_run(config, run, runtime, dataset)
                task = prepare(config, images, run, runtime, progress)
            for stage in ranks.first(lambda: adopt(run, task.config, donors)):
                progress.say(f"{stage}: taken from another run")
            networks = train_stages(task, spent)
            with spent.on("testing"):
                summary = summarise(task, networks)
        if config.until == "experts":
            with spent.on("report"):
                ranks.first(lambda: report_if_possible(run))
        ranks.first(lambda: run.write_json(runs.TIME, spent.seconds))
        progress.say(spent.in_words())
        return summary


def train_stages(task: Task, spent: Spent) -> dict[str, nn.Module]:
    """Every stage that the run is to have, one after another; its networks by stage."""
    until, say = task.config.until, task.journal.progress.say
    with experts_compiled_ahead(task) as ahead:
        say(images_in_words(images_before_training(task)))
        say(sizes_in_words(sizes_before_training(task)))
        if ahead:
            with spent.on("choosing kernels"):
                ahead.begin()
        with spent.on("base"):
            networks: dict[str, nn.Module] = dict(train_bases(task))
        if until != "base":
            with spent.on("generalist"), task.runtime.compiling(is_generalist_compiled(task)):
                networks["generalist"], specialties = learn_specialties(task, networks)
        if until == "experts":
            if ahead:
                with spent.on("waiting for the compiler"):
                    ahead.wait()
            with spent.on("experts"):
                networks["experts"] = train_experts(task, networks["generalist"], specialties)
    return networks


def train_bases(task: Task) -> dict[str, Classifier]:
    """The plain network: by the experts' recipe, for an honest comparison, and by the paper's own if asked for."""
    return {stage: train_base(task, stage, recipe) for stage, recipe in base_recipes(task.config).items()}


def train_base(task: Task, stage: str, recipe: Recipe) -> Classifier:
    [file] = FILES_OF_STAGE[stage]
    task.seeded("base")
    base = task.architecture.classifier(task.classes)
    if not restored(base, task.run, file, task.runtime.device):
        begin_from_weights(task, base)
        train_classifier(stage, base, recipe, task.classes, task)
        write_weights(base, task.run, file)
    return base


def begin_from_weights(task: Task, model: Classifier) -> None:
    """Weights that somebody trained, and a trunk that keeps them, where the configuration asks for it."""
    options = task.config.adapt
    if options.weights:
        start_from(model, read_weights(options.weights, task.config.architecture), task.architecture, options.weights)
    if options.frozen_trunk:
        model.freeze_trunk()


def learn_specialties(task: Task, bases: Mapping[str, nn.Module]) -> tuple[Classifier, Specialties]:
    """Stage 1."""
    config = task.config
    base = next(iter(bases.values()), None)
    specialties = first_specialties(task, base)
    task.seeded("generalist")
    generalist = task.architecture.generalist(specialties.count)
    if task.run.has(runs.SPECIALTIES) and restored(generalist, task.run, runs.GENERALIST, task.runtime.device):
        return generalist, Specialties.from_json(task.run.read_json(runs.SPECIALTIES))
    forget_experts(task.run)
    begin_from_weights(task, generalist)
    if config.generalist.start == "base" and base is not None:
        generalist.trunk.load_state_dict(base.get_submodule("trunk").state_dict())
    specialties = train_generalist(generalist, specialties, _update(config.specialties), config.generalist, task)
    task.run.write_json(runs.SPECIALTIES, specialties.to_json(task.dataset.class_names))
    write_weights(generalist, task.run, runs.GENERALIST)
    return generalist, specialties


def _update(config: SpecialtiesConfig) -> Update | None:
    if not rule_named(config.rule).updates:
        return None
    return update_named(config.rule, strength=config.strength, sweeps=config.sweeps or None)


def first_specialties(task: Task, base: nn.Module | None) -> Specialties:
    """A random balanced partition for the rules that learn; the final one for those that do not."""
    config, classes = task.config.specialties, task.classes
    rng = stream(task.config.seed, "specialties", "start")
    if config.rule == "spectral":
        if task.run.has(runs.SPECIALTIES) and task.run.has(runs.GENERALIST):  # else every training image is predicted
            return Specialties.from_json(task.run.read_json(runs.SPECIALTIES))
        assert base is not None  # RunConfig sees to it
        crop = next(iter(crop_of_stage(task.config).values()))  # of the base that stands first
        predictions = predict(base, task.train, crop, task.runtime)
        confusion = class_confusion(predictions.labels, predictions.classes[:, 0], classes)
        return task.runtime.ranks.first(lambda: spectral(confusion, config.count, rng))
    if config.rule == "wordnet":
        return wordnet_specialties(task.dataset.class_ids or task.dataset.class_names, config.count)
    if config.rule == "groups":
        return task.runtime.ranks.first(lambda: given_groups(group_of_class(config.groups, task.dataset)))
    return random_balanced(classes, config.count, rng)


def train_experts(task: Task, generalist: nn.Module, specialties: Specialties) -> NetworkOfExperts:
    """Stage 2."""
    task.seeded("experts")
    if task.config.experts.start == "generalist":
        network = grow_experts(task.architecture, specialties, generalist)
    else:
        network = plant_experts(task.architecture, specialties)
    if not restored(network, task.run, runs.NETWORK, task.runtime.device):
        if task.config.adapt.frozen_trunk:
            network.freeze_trunk()
        network.fuse()
        choose_kernels(task, network)
        train_classifier("experts", network, task.config.experts, task.classes, task)
        network.unfuse()
        write_weights(network, task.run, runs.NETWORK)
    elif not task.run.has(runs.KERNELS):
        task.run.discard(runs.KERNELS)  # damaged, and of no use any more
    return network
