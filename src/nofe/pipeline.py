"""The paper on one page.

    images -> base                                         (what the experts are compared with)
    images -> generalist <-> confusion -> specialties      (stage 1)
           -> network of experts                           (stage 2)
           -> predictions, summary, report

Every arrow is one value here and one file in the run folder; a stage whose file is there is not run again.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nofe import config as configuration
from nofe import runs
from nofe.ahead import CompilingAhead
from nofe.architectures import Architecture, Classifier, architecture_named, parameter_count
from nofe.architectures.pretrained import read_weights, start_from
from nofe.classifier import train_classifier
from nofe.config import RunConfig, SpecialtiesConfig, architecture_of
from nofe.data import Dataset
from nofe.data.batches import DeviceImages, pixel_mean
from nofe.data.stored import Looked, StoredImages, leave_out, look_through, open_dataset
from nofe.data.stream import on_device
from nofe.errors import RunError, UserError
from nofe.evaluation import by_specialty, predict, predictions_of
from nofe.experts.network import NetworkOfExperts, grow_experts, plant_experts
from nofe.experts.size import sizes_of
from nofe.generalist import train_generalist
from nofe.report.page import report_if_possible
from nofe.report.text import sizes_in_words
from nofe.reuse import adopt
from nofe.runs import Run
from nofe.specialties import (
    Specialties,
    Update,
    chance_of_pairs_together,
    class_confusion,
    given_groups,
    pairs_together,
    random_balanced,
    rule_named,
    spectral,
    update_named,
    wordnet_specialties,
)
from nofe.stages import FILES_OF_STAGE, base_recipes, crop_of_stage, recipe_of_stage
from nofe.streams import seed_for, stream
from nofe.training.journal import Journal
from nofe.training.progress import Progress, Silent, closing
from nofe.training.ranks import Ranks
from nofe.training.recipe import Recipe
from nofe.training.runtime import STEPS_WORTH_COMPILING, Runtime, environment, make_runtime, stopping_on_signals
from nofe.training.shared_run import open_shared_run
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
    with open_shared_run(out, resume=resume, check=lambda run: _require_same(config, run), ranks=ranks) as run:
        if run.has(runs.SUMMARY) and not run.damaged():
            progress.say(f"{out}: this run is complete")
            return dict(run.read_json(runs.SUMMARY))
        spent = Spent()
        with stopping_on_signals(runtime), closing(progress):
            with spent.on("images"):
                streamed = was_streamed(run)
                listed = read_by_every_rank(lambda: dataset or read_dataset(config, runtime, streamed), ranks)
                readable = without_unreadable(config, listed, run, ranks)
                images = ranks.each(lambda: held_out(config, readable))
                task = prepare(config, images, run, runtime, progress)
            for stage in ranks.first(lambda: adopt(run, config, donors)):
                progress.say(f"{stage}: taken from another run")
            with experts_compiled_ahead(task) as ahead:
                progress.say(sizes_in_words(sizes_before_training(task)))
                if ahead:
                    with spent.on("choosing kernels"):
                        ahead.begin()
                with spent.on("base"):
                    networks: dict[str, nn.Module] = dict(train_bases(task))
                if config.until != "base":
                    with spent.on("generalist"), runtime.compiling(is_generalist_compiled(task)):
                        networks["generalist"], specialties = learn_specialties(task, networks)
                if config.until == "experts":
                    if ahead:
                        with spent.on("waiting for the compiler"):
                            ahead.wait()
                    with spent.on("experts"):
                        networks["experts"] = train_experts(task, networks["generalist"], specialties)
            with spent.on("testing"):
                summary = summarise(task, networks)
        if config.until == "experts":
            with spent.on("report"):
                ranks.first(lambda: report_if_possible(run))
        ranks.first(lambda: run.write_json(runs.TIME, spent.seconds))
        progress.say(spent.in_words())
        return summary


class Spent:
    """Where the time of a run went. Of one that was interrupted, the part since then."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[what] = round(time.monotonic() - began, 1)

    def in_words(self) -> str:
        parts = [f"{what} {seconds:,.0f}" for what, seconds in self.seconds.items() if seconds >= 1]
        return f"It took {sum(self.seconds.values()):,.0f} s" + (f": {', '.join(parts)}" if parts else "")


@dataclass(frozen=True)
class Task:
    """What every stage needs."""

    config: RunConfig
    architecture: Architecture
    dataset: Dataset
    train: DeviceImages
    test: DeviceImages
    run: Run
    runtime: Runtime
    journal: Journal

    @property
    def classes(self) -> int:
        return self.dataset.classes

    def seeded(self, what: str) -> None:
        """Initial weights depend on the seed and on what they are for, not on what ran before."""
        torch.manual_seed(seed_for(self.config.seed, what, "weights"))


def read_dataset(config: RunConfig, runtime: Runtime | None = None, streamed: bool | None = None) -> Dataset:
    """In memory, or on disk where the images are too many; `streamed` is how the run had them when it began."""
    return open_dataset(
        config.data.name,
        root=Path(config.data.root),
        image_size=architecture_named(config.architecture).image_size,
        seed=config.data.seed,
        skip_unreadable=config.data.skip_unreadable,
        test=config.data.test,
        stream=streamed if config.data.stream is None else config.data.stream,
        memory=runtime.memory_for_images() if runtime else None,
        workers=runtime.workers if runtime else 0,
    )


def was_streamed(run: Run) -> bool | None:
    """None before the run has begun."""
    if not (run.has(runs.CONFIG) and run.has(runs.ENVIRONMENT)):
        return None
    return bool(run.read_json(runs.ENVIRONMENT)["data"].get("streamed", False))


def without_unreadable(config: RunConfig, dataset: Dataset, run: Run, ranks: Ranks) -> Dataset:
    """Of images on disk: rank 0 looks at each of them before the run begins; one that goes on leaves out the same."""
    found = left_out_earlier(run) or ranks.first(
        lambda: look_through(dataset, skip_unreadable=config.data.skip_unreadable)
    )
    return leave_out(dataset, found)


def left_out_earlier(run: Run) -> Looked | None:
    """None before the run has begun."""
    if was_streamed(run) is None:
        return None
    return Looked(run.read_json(runs.ENVIRONMENT)["data"].get("unreadable", {}))


def held_out(config: RunConfig, dataset: Dataset) -> Dataset:
    """With data.hold_out the test images are put aside, and a part of the training images stands in for them."""
    return dataset.hold_out(config.data.hold_out, config.data.seed) if config.data.hold_out else dataset


def read_by_every_rank(read: Callable[[], Dataset], ranks: Ranks) -> Dataset:
    """Nodes may share no disk, so every rank reads for itself; all must find the same images."""
    dataset = ranks.each(read)
    of_first = ranks.first(dataset.fingerprint)

    def require_the_same() -> None:
        if dataset.fingerprint() != of_first:
            raise UserError(f"{dataset.name}: other images than on rank 0; put the same data on every node")

    ranks.each(require_the_same)
    return dataset


def prepare(config: RunConfig, dataset: Dataset, run: Run, runtime: Runtime, progress: Progress) -> Task:
    """Write down what is about to run, or check that it is what was begun, and bring the images to the device."""
    _require_fitting_crops(config, dataset)
    if config.adapt.weights:
        read_weights(config.adapt.weights, config.architecture)  # a misspelt file, before anything is trained
    elif config.adapt.frozen_trunk and not run.has(runs.CONFIG):  # runs of before this was asked go on
        raise UserError(
            "--frozen-trunk: the trunk would stay as random as it begins; start from trained weights with --pretrained "
            "or --weights FILE"
        )
    if config.specialties.rule == "groups":
        runtime.ranks.first(lambda: group_of_class(config.specialties.groups, dataset))  # misspelt? before training
    elif config.specialties.count > dataset.classes:
        raise UserError(
            f"--experts {config.specialties.count}: more than the {dataset.classes} classes of {config.data.name}; "
            f"use 2 to {dataset.classes}"
        )
    if config.specialties.rule == "wordnet":
        wordnet_specialties(dataset.class_ids or dataset.class_names, config.specialties.count)
    described = {
        "dataset": dataset.name,
        "fingerprint": dataset.fingerprint(),
        "classes": list(dataset.class_names),
        "streamed": isinstance(dataset.train, StoredImages),
        "unreadable": {part: list(names) for part, names in dataset.left_out.items()},
    }
    runtime.decide_on_compiling(longest_stage(config, len(dataset.train.labels)))
    if begun := run.has(runs.CONFIG):
        _require_same_data(dataset, run)
    else:
        run.discard_all()  # what an earlier configuration may have left here
        run.write_json(runs.ENVIRONMENT, environment(runtime, config.seed) | {"data": described})
    if not (begun and run.has(runs.INPUT)):
        mean = runtime.ranks.first(lambda: pixel_mean(dataset.train))
        run.write_arrays(runs.INPUT, mean=mean, class_names=np.array(dataset.class_names))
    if not begun:
        run.write_json(runs.CONFIG, configuration.to_json(config))  # last: its presence marks a run that has begun
    mean = run.read_arrays(runs.INPUT)["mean"]
    return Task(
        config=config,
        architecture=architecture_of(config, dataset.classes),
        dataset=dataset,
        train=on_device(dataset.train, mean, runtime.device),
        test=on_device(dataset.test, mean, runtime.device),
        run=run,
        runtime=runtime,
        journal=Journal(run, runtime, progress),
    )


def longest_stage(config: RunConfig, images: int) -> int:
    """How many training steps it has."""
    return max(recipe.epochs * (images // recipe.batch) for recipe in recipe_of_stage(config).values())


def experts_compiled_ahead(task: Task) -> AbstractContextManager[CompilingAhead | None]:
    """Where the runtime wants it, and they are still to be trained."""
    wanted = task.config.until == "experts" and not task.run.has(runs.NETWORK)
    if not (task.runtime.compile_ahead and wanted) or isinstance(task.dataset.train, StoredImages):
        return nullcontext()
    images = len(task.train), len(task.test)
    return CompilingAhead(task.config, task.classes, images, task.runtime)


def is_generalist_compiled(task: Task) -> bool:
    """A short stage does without, if its parts are not compiled already, for a base."""
    runtime, recipe = task.runtime, task.config.generalist
    if not runtime.compile_ahead or base_recipes(task.config):
        return bool(runtime.compile)
    return recipe.epochs * (len(task.train) // recipe.batch) >= STEPS_WORTH_COMPILING


def train_bases(task: Task) -> dict[str, Classifier]:
    """The plain network: by the experts' recipe, for an honest comparison, and by the paper's own if asked for."""
    return {stage: train_base(task, stage, recipe) for stage, recipe in base_recipes(task.config).items()}


def train_base(task: Task, stage: str, recipe: Recipe) -> Classifier:
    [file] = FILES_OF_STAGE[stage]
    task.seeded("base")
    base = task.architecture.classifier(task.classes)
    if not restored(base, task.run, file, task.runtime.device):
        begin_from_weights(task, base)
        train_over_classes(task, stage, base, recipe)
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
    generalist = task.architecture.classifier(specialties.count)
    if task.run.has(runs.SPECIALTIES) and restored(generalist, task.run, runs.GENERALIST, task.runtime.device):
        return generalist, Specialties.from_json(task.run.read_json(runs.SPECIALTIES))
    task.run.discard(runs.NETWORK, runs.PREDICTIONS, runs.SUMMARY)  # on a GPU other specialties may come out
    begin_from_weights(task, generalist)
    if config.generalist.start == "base" and base is not None:
        generalist.trunk.load_state_dict(base.get_submodule("trunk").state_dict())
    specialties = train_generalist(
        generalist,
        specialties,
        _update(config.specialties),
        config.generalist,
        task.train,
        task.test,
        config.seed,
        task.runtime,
        task.journal,
    )
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
        assert base is not None  # RunConfig sees to it
        crop = task.config.experts.augmentation.crop
        predictions = predict(base, task.train, crop, task.runtime)
        confusion = class_confusion(predictions.labels, predictions.classes[:, 0], classes)
        return task.runtime.ranks.first(lambda: spectral(confusion, config.count, rng))
    if config.rule == "wordnet":
        return wordnet_specialties(task.dataset.class_ids or task.dataset.class_names, config.count)
    if config.rule == "groups":
        return task.runtime.ranks.first(lambda: given_groups(group_of_class(config.groups, task.dataset)))
    return random_balanced(classes, config.count, rng)


def group_of_class(groups: str, dataset: Dataset) -> NDArray[np.int64]:
    """By name from the data set, or from a JSON file of {group: [class names]}."""
    if groups in dataset.groups:
        return np.array(dataset.groups[groups])
    try:
        named: dict[str, list[str]] = json.loads(Path(groups).read_text())
        listed = [name for names in named.values() for name in names]
        group_of_name = {name: index for index, names in enumerate(named.values()) for name in names}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        known = ", ".join(dataset.groups) or "none"
        raise UserError(
            f"specialties.groups={groups}: neither a grouping of {dataset.name} ({known}) nor a readable JSON file; "
            'write one as {"birds": ["crow", "wren"], ...}'
        ) from error
    missing = [name for name in dataset.class_names if name not in group_of_name]
    unknown = group_of_name.keys() - set(dataset.class_names)
    if missing or unknown:
        raise UserError(
            f"{groups}: {len(missing)} classes are in no group and {len(unknown)} names are no class "
            f"(first: {(missing or sorted(unknown, key=str))[0]}); name every class once"
        )
    if len(listed) > len(group_of_name) or len(set(group_of_name.values())) < 2:
        raise UserError(f"{groups}: a class is in two groups, or there is one group only; name every class once")
    return np.array([group_of_name[name] for name in dataset.class_names])


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
        train_over_classes(task, "experts", network, task.config.experts)
        network.unfuse()
        write_weights(network, task.run, runs.NETWORK)
    elif not task.run.has(runs.KERNELS):
        task.run.discard(runs.KERNELS)  # damaged, and of no use any more
    return network


def choose_kernels(task: Task, network: NetworkOfExperts) -> None:
    """Kernels that differ round differently: a run that goes on uses those that it began with."""
    recipe, device = task.config.experts, task.runtime.device
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    noted = task.run.read_json(runs.KERNELS) if task.run.has(runs.KERNELS) else {"device": None, "choices": {}}
    known = noted["choices"] if noted["device"] == device.type else {}
    ranks = task.runtime.ranks
    batch = min(recipe.batch, len(task.train)) // ranks.count
    shape = (batch, 3, recipe.augmentation.crop, recipe.augmentation.crop)
    # All ranks must hold the same parameters: the first one measures.
    chosen = ranks.first(lambda: network.choose_kernels(shape, task.runtime, training=True, known=known))
    if ranks.rank:
        network.choose_kernels(shape, task.runtime, training=True, known=chosen, may_measure=False)
    if chosen and chosen != known:
        task.run.write_json(runs.KERNELS, {"device": device.type, "choices": chosen})


def train_over_classes(task: Task, stage: str, model: nn.Module, recipe: Recipe) -> None:
    train_classifier(
        stage,
        model,
        recipe,
        task.train,
        task.test,
        task.classes,
        task.config.seed,
        task.runtime,
        task.journal,
    )


def sizes_before_training(task: Task) -> dict[str, dict[str, int]]:
    """Parameters and multiplications of base and experts, the experts' with specialties of equal size."""
    config = task.config
    known = config.specialties.rule == "groups"
    experts = len(set(group_of_class(config.specialties.groups, task.dataset))) if known else config.specialties.count
    sizes = sizes_of(task.architecture, task.classes, experts, config.experts.augmentation.crop)
    return {name: dataclasses.asdict(size) for name, size in sizes.items()}


def summarise(task: Task, networks: Mapping[str, nn.Module]) -> dict[str, Any]:
    """Last-epoch figures of every network, and what the experts say of every test image."""
    config = task.config
    lines = task.run.metrics()
    figures = {stage: last_epoch(task, lines, stage, network) for stage, network in networks.items()}
    over_classes = {stage: network for stage, network in networks.items() if stage != "generalist"}
    predictions = predictions_of(over_classes, crop_of_stage(config), task.test, task.runtime)
    for stage, each in predictions.items():
        figures[stage] |= {"accuracy": each.top(1), "top_5": each.top(5)}
    summary: dict[str, Any] = {"networks": figures, "config": configuration.to_json(config)}
    if "generalist" in networks:
        specialties = Specialties.from_json(task.run.read_json(runs.SPECIALTIES))
        summary["groups"] = kept_together(task.dataset, specialties)
    if "experts" in networks:
        by_experts = predictions["experts"]
        stored = {field.name: getattr(by_experts, field.name) for field in dataclasses.fields(by_experts)}
        task.run.write_arrays(runs.PREDICTIONS, **stored)
        summary["specialties"] = [dataclasses.asdict(specialty) for specialty in by_specialty(by_experts, specialties)]
    task.run.write_json(runs.SUMMARY, summary)
    return summary


def last_epoch(task: Task, lines: list[dict[str, Any]], stage: str, network: nn.Module) -> dict[str, Any]:
    epochs = [line for line in lines if line["stage"] == stage and "epoch" in line]
    if not epochs:
        raise RunError(f"{task.run.file(runs.METRICS)}: has no epoch of {stage}; put it back, or start a new run")
    return {
        "accuracy": epochs[-1]["test_accuracy"],
        "parameters": parameter_count(network),
        "epochs": epochs[-1]["epoch"],
        "seconds": round(sum(line["seconds"] for line in epochs), 1),
    }


def kept_together(dataset: Dataset, specialties: Specialties) -> dict[str, dict[str, float]]:
    """For each grouping that people made: the share of its pairs that share an expert, and what chance would give."""
    chance = chance_of_pairs_together(specialties.sizes)
    return {
        name: {"together": pairs_together(given_groups(ids), specialties), "by_chance": chance}
        for name, ids in dataset.groups.items()
    }


def _require_fitting_crops(config: RunConfig, dataset: Dataset) -> None:
    """That the images hold what every stage crops and the network can read it, before anything is trained."""
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
        try:
            with torch.device("meta"), torch.inference_mode():  # where only shapes are computed
                images = torch.zeros(1, 3, crop, crop)
                architecture.classifier(2).eval()(images)
                architecture.branch(1).eval()(architecture.trunk_of_experts().eval()(images))
        except RuntimeError as error:
            raise UserError(
                f"{name}.augmentation.crop={crop}: {architecture.name} cannot read images of this size; "
                f"leave it at {architecture.input_size}"
            ) from error


def _require_same(config: RunConfig, run: Run) -> None:
    # Read and written again, so that a field that is newer than the run has its default.
    earlier = json.loads(json.dumps(configuration.to_json(configuration.from_json(run.read_config()))))
    now = json.loads(json.dumps(configuration.to_json(config)))  # tuples become lists, as in the file
    differing = _differences(earlier, now)
    if differing:
        raise UserError(
            f"{run.path}: was started with another configuration ({'; '.join(differing[:3])}); "
            "resume it with its own, or name another folder with --out"
        )


def _differences(before: Any, after: Any, path: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        names = sorted(before.keys() | after.keys())
        found = [_differences(before.get(name), after.get(name), f"{path}.{name}".strip(".")) for name in names]
        return [difference for part in found for difference in part]
    return [] if before == after else [f"{path} was {before}, is {after}"]


def _require_same_data(dataset: Dataset, run: Run) -> None:
    earlier = run.read_json(runs.ENVIRONMENT)["data"]["fingerprint"]
    if earlier != dataset.fingerprint():
        raise UserError(
            f"{run.path}: the images changed since the run was started; put the old ones back, or start a new run"
        )
