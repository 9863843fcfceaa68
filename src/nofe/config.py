"""The configuration of a run: frozen dataclasses, to and from JSON, with every field in reach of `--set`."""

import dataclasses
import json
import math
import os
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import cattrs

from nofe.architectures import Architecture
from nofe.architectures.options import AdaptConfig, architecture_with
from nofe.errors import UserError
from nofe.experts.stage import ExpertsConfig
from nofe.generalist import GeneralistConfig
from nofe.specialties import rule_named
from nofe.suggestions import did_you_mean
from nofe.training.recipe import Recipe
from nofe.training.runtime import require_precision

T = TypeVar("T")

WEIGHTS, GROUPS = "adapt.weights", "specialties.groups"  # fields that may name a file


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    name: str = "glyphs"
    root: str = "data"  # where data sets lie or are downloaded to
    seed: int = 0  # of data that is made, not read
    hold_out: float = 0.0  # test on this part of the training images instead of the test images, to choose by
    skip_unreadable: bool = False
    test: str = "0.2"  # where the data has no test part: a part of the training images, or a folder of class folders
    stream: bool | None = None  # read images while training instead of keeping all on the device; null: if they must

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UserError(f"data.seed={self.seed}: out of range; use 0 or more")
        if not 0 <= self.hold_out < 1:
            raise UserError(f"data.hold_out={self.hold_out}: out of range; use a fraction from 0 to below 1")
        if not self.test:
            raise UserError("data.test=: is empty; use a fraction such as 0.2, or a folder")


@dataclass(frozen=True, kw_only=True)
class SpecialtiesConfig:
    count: int = 10  # K
    rule: str = "fully-balanced"
    strength: float = 1000.0  # elasso's lambda, on counts from 10,000 images
    sweeps: int = 1  # of elasso at each update; 0 is until no class moves
    groups: str = ""  # with the rule groups: a grouping of the data set, or a JSON file of {name: [classes]}

    def __post_init__(self) -> None:
        rule_named(self.rule)
        if self.count < 2:
            raise UserError(f"--experts {self.count}: a network of experts needs at least 2")
        if self.strength <= 0 or self.sweeps < 0:
            raise UserError("specialties: strength must be above 0, and sweeps 0 or more")
        if bool(self.groups) != (self.rule == "groups"):
            raise UserError(
                f"specialties.rule={self.rule}, specialties.groups='{self.groups}': groups go with the rule groups; "
                "set both or neither"
            )


@dataclass(frozen=True, kw_only=True)
class BaseConfig:
    """The plain network to compare with: by the experts' recipe, by the paper's own, by both, or none."""

    by: Literal["experts", "paper", "both", "none"] = "experts"
    paper: Recipe


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything needed to run it again."""

    architecture: str
    seed: int = 0
    precision: str = "auto"  # of products and convolutions: bf16, tf32, fp32; auto is bf16 where the device has it
    until: Literal["base", "specialties", "experts"] = "experts"  # the last stage that is trained
    adapt: AdaptConfig = field(default_factory=AdaptConfig)
    data: DataConfig = DataConfig()
    specialties: SpecialtiesConfig = SpecialtiesConfig()
    base: BaseConfig
    generalist: GeneralistConfig
    experts: ExpertsConfig

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UserError(f"seed={self.seed}: out of range; use 0 or more")
        require_precision(self.precision)
        if self.needs_base and self.base.by == "none":
            raise UserError("base.by=none: spectral specialties and generalist.start=base need a base; leave it on")
        if self.adapt.parameters and self.specialties.rule == "groups":
            raise UserError(
                "adapt.parameters: with the rule groups the number of experts is not known in time; set "
                "adapt.branch_width instead"
            )
        if self.until == "base" and self.base.by == "none":
            raise UserError("until=base, base.by=none: nothing is left to train; leave one of them out")

    @property
    def needs_base(self) -> bool:
        """Whether the generalist or its specialties start from a base."""
        return self.specialties.rule == "spectral" or self.generalist.start == "base"


def architecture_of(config: RunConfig, classes: int) -> Architecture:
    """The network of a run, cut and sized as its configuration says."""
    return architecture_with(config.architecture, config.adapt, classes, config.specialties.count)


def to_json(config: RunConfig) -> dict[str, Any]:
    as_dict: dict[str, Any] = _CONVERTER.unstructure(config)
    return as_dict


def unstructured(value: Any) -> Any:
    """A part of the configuration as plain values."""
    return _CONVERTER.unstructure(value)


def from_json(value: Any) -> RunConfig:
    return structured(value, RunConfig)


def structured(value: Any, kind: type[T]) -> T:
    """The inverse of `unstructured`. A field that is missing has its default: it is newer than the file."""
    try:
        return _CONVERTER.structure(value, kind)
    except UserError:
        raise
    except Exception as error:  # cattrs raises whatever the hook for the type raises
        raise UserError(f"configuration: does not fit this version of nofe ({error}); start a new run") from error


def as_setting(name: str, value: Any) -> str:
    """A value as --set takes it: `name=value`."""
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    try:
        return f"{name}={value if isinstance(value, str) else json.dumps(value, default=_plain)}"
    except (AttributeError, TypeError, ValueError) as error:
        kind = type(value).__name__
        raise UserError(f"{name}: takes no {kind}; give a number, text, true or false, or a list of numbers") from error


def _plain(value: Any) -> Any:
    """A path, or an array or scalar of numpy or torch, as something that JSON has."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value.tolist()


def with_settings(config: RunConfig, settings: Iterable[str]) -> RunConfig:
    """Apply `generalist.epochs=5` and the like, each typed against its field, all at once."""
    changes: dict[str, Any] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise UserError(f"--set {setting}: has no '='; write --set generalist.epochs=5")
        _note_change(changes, config, path.split("."), text, setting)
    changed: RunConfig = _with_changes(config, changes)
    return changed


def _note_change(changes: dict[str, Any], value: Any, path: list[str], text: str, setting: str) -> None:
    name, *rest = path
    kinds = typing.get_type_hints(type(value))
    if name not in kinds:
        before = setting.partition("=")[0].removesuffix(".".join(path))
        further_in = [f"{before}{known}" for known in _fields_within(value, name)]
        advice = did_you_mean(name, () if further_in else kinds, likely=further_in)
        raise UserError(f"--set {setting}: {type(value).__name__} has no field '{name}'; {advice}")
    inner = getattr(value, name)
    if rest:
        if not dataclasses.is_dataclass(inner):
            whole = setting.partition("=")[0].removesuffix("." + ".".join(rest))
            raise UserError(f"--set {setting}: {name} has no fields of its own; write --set {whole}=VALUE")
        _note_change(changes.setdefault(name, {}), inner, rest, text, setting)
    elif dataclasses.is_dataclass(inner):
        fields = ", ".join(field.name for field in dataclasses.fields(inner))
        raise UserError(f"--set {setting}: {name} is a group; set one of its fields: {fields}")
    else:
        changes[name] = _parsed(text, kinds[name], setting)


def _fields_within(value: Any, name: str) -> list[str]:
    """The paths from a value to all fields of this name: `epochs` is in the recipe of every stage."""
    found = []
    for known in dataclasses.fields(value):
        inner = getattr(value, known.name)
        found += [known.name] if known.name == name else []
        if dataclasses.is_dataclass(inner):
            found += [f"{known.name}.{path}" for path in _fields_within(inner, name)]
    return found


def _with_changes(value: Any, changes: dict[str, Any], within: str = "") -> Any:
    """`within`, such as "generalist.", says in an error which recipe is wrong: they have the same fields."""
    new = {
        name: _with_changes(getattr(value, name), change, f"{within}{name}.") if isinstance(change, dict) else change
        for name, change in changes.items()
    }
    try:
        return dataclasses.replace(value, **new)
    except UserError as error:
        named = str(error).partition("=")[0]
        if named in {field.name for field in dataclasses.fields(value)}:
            raise UserError(f"{within}{error}") from error
        raise


def _parsed(text: str, kind: Any, setting: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if kind is str:
        value = text
    try:
        return _CONVERTER.structure(value, kind)
    except Exception as error:  # cattrs raises whatever the hook for the type raises
        raise UserError(f"--set {setting}: '{text}' is not {_in_words(kind)}") from error


def _in_words(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return "a list of numbers such as [0.5, 0.75]"
    if kind == bool | None:
        return "true, false or null"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(kind, str(kind))


def _strictly(kind: type, *accepted: type) -> Any:
    """Python's own int('5'), float(True) and bool('false') accept too much; so does json with NaN and Infinity."""

    def structure(value: Any, _: Any) -> Any:
        if type(value) not in accepted or (kind is float and not math.isfinite(value)):
            raise TypeError(f"{value!r} is not {_in_words(kind)}")
        return kind(value)

    return structure


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=False)
    for kind, accepted in ((int, (int,)), (float, (int, float)), (bool, (bool,)), (str, (str,))):
        converter.register_structure_hook(kind, _strictly(kind, *accepted))
    return converter


_CONVERTER = _converter()
