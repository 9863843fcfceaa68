"""The configuration: to JSON and back, every field by --set, and what each mistake is told."""

import dataclasses
import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from nofe.architectures import ARCHITECTURES
from nofe.config import RunConfig, as_setting, from_json, to_json, with_settings
from nofe.errors import UserError
from nofe.recipes import default_run

CONFIG = default_run("alexnet-c100", "cifar100")


def fields(value: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every field that holds a value: its path, its type and the value."""
    for name, kind in typing.get_type_hints(type(value)).items():
        inner = getattr(value, name)
        if dataclasses.is_dataclass(inner):
            yield from fields(inner, f"{path}{name}.")
        else:
            yield f"{path}{name}", kind, inner


def value_at(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


FIELDS = list(fields(CONFIG))


def another(path: str, kind: Any, value: Any) -> Any:
    """A value that the field may have and has not."""
    named = {"specialties.rule": "groups", "specialties.groups": "family", "precision": "fp32"}
    if path in named:
        return named[path]
    if typing.get_origin(kind) is Literal:
        return next(choice for choice in typing.get_args(kind) if choice != value)
    if typing.get_origin(kind) is tuple:
        return (0.25, 0.5)
    return {
        int: lambda: value + 1,
        float: lambda: value / 2 + 0.125,
        bool: lambda: not value,
        bool | None: lambda: not value,
        str: lambda: value + "x",
    }[kind]()


def refusal(*settings: str) -> str:
    with pytest.raises(UserError) as caught:
        with_settings(CONFIG, settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_there_is_a_field_of_every_kind() -> None:
    kinds = {typing.get_origin(kind) or kind for _, kind, _ in FIELDS}
    assert kinds == {int, float, bool, str, tuple, Literal, types.UnionType}
    assert len(FIELDS) > 40


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_to_json_and_back(name: str) -> None:
    config = default_run(name, "folder:somewhere")
    assert from_json(json.loads(json.dumps(to_json(config)))) == config


@pytest.mark.parametrize(("path", "kind", "value"), FIELDS, ids=[path for path, _, _ in FIELDS])
def test_every_field_can_be_set_and_survives_json(path: str, kind: Any, value: Any) -> None:
    new = another(path, kind, value)
    settings = [f"{path}={new if isinstance(new, str) else json.dumps(new)}"]
    group, _, name = path.rpartition(".")
    if name == "nesterov":
        settings.append(f"{group}.optimizer=sgd")
    if name == "schedule":
        settings.append(f"{group}.drops=[]")
    if path == "specialties.rule":
        settings.append("specialties.groups=family")
    if path == "specialties.groups":
        settings.append("specialties.rule=groups")
    changed = with_settings(CONFIG, settings)
    found = value_at(changed, path)
    assert (found, type(found)) == (new, type(new))
    assert from_json(json.loads(json.dumps(to_json(changed)))) == changed
    untouched = {other for other, _, _ in FIELDS} - {setting.partition("=")[0] for setting in settings}
    for other in untouched:
        assert value_at(changed, other) == value_at(CONFIG, other)
    assert value_at(CONFIG, path) == value


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("generalist.epochs=5", 5),
        ("experts.rate=1e-3", 0.001),
        ("experts.rate=1", 1.0),
        ("experts.drops=[0.5, 0.75]", (0.5, 0.75)),
        ("experts.drops=[]", ()),
        ("experts.augmentation.mirror=false", False),
        ("data.name=folder:/a=b", "folder:/a=b"),
        ("data.root=5", "5"),
        ("data.root=true", "true"),
        ("base.by=both", "both"),
        ("base.paper.weight_decay=0", 0.0),
    ],
)
def test_values_as_people_write_them(setting: str, value: Any) -> None:
    found = value_at(with_settings(CONFIG, [setting]), setting.partition("=")[0])
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.int64(2), "2"),
        (np.float64(0.5), "0.5"),
        (np.bool_(True), "true"),
        (np.array([0.5, 0.75]), "[0.5, 0.75]"),
        ((np.float64(0.5), 0.75), "[0.5, 0.75]"),
        (Path("some") / "where", "some/where"),
        (None, "null"),
    ],
)
def test_values_as_programs_have_them(value: Any, text: str) -> None:
    assert as_setting("field", value) == f"field={text}"


@pytest.mark.parametrize("value", [{1, 2}, object(), np.int64])
def test_values_that_no_field_has(value: Any) -> None:
    with pytest.raises(UserError, match=r"^generalist\.epochs: takes no (set|object|type); give a number, text, "):
        as_setting("generalist.epochs", value)


def test_the_last_of_two_settings_counts_and_none_changes_nothing() -> None:
    assert with_settings(CONFIG, ["seed=1", "seed=2"]).seed == 2
    assert with_settings(CONFIG, []) == CONFIG


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("generalist.epoch=5", "GeneralistConfig has no field 'epoch'; did you mean 'epochs'?"),
        ("generalst.epochs=5", "RunConfig has no field 'generalst'; did you mean 'generalist'?"),
        ("experts.augmentation.mirorr=true", "Augmentation has no field 'mirorr'; did you mean 'mirror'?"),
        (
            "zzz=1",
            "RunConfig has no field 'zzz'; choose from architecture, seed, precision, until, adapt, data, special",
        ),
        ("hold_out=0.1", "RunConfig has no field 'hold_out'; did you mean 'data.hold_out'?"),
        (
            "epochs=3",
            "no field 'epochs'; did you mean 'base.paper.epochs', 'generalist.epochs' or 'experts.epochs'?",
        ),
        ("base.mirror=true", "BaseConfig has no field 'mirror'; did you mean 'base.paper.augmentation.mirror'?"),
        ("=1", "RunConfig has no field ''"),
        ("generalist.=1", "GeneralistConfig has no field ''"),
        ("generalist.epochs", "has no '='; write --set generalist.epochs=5"),
        ("generalist=5", "generalist is a group; set one of its fields: epochs, batch, rate"),
        ("base.paper.augmentation=5", "augmentation is a group; set one of its fields: crop, padding, mirror"),
        ("generalist.epochs.more=5", "epochs has no fields of its own; write --set generalist.epochs=VALUE"),
        ("generalist.epochs=five", "'five' is not a whole number"),
        ("generalist.epochs=5.0", "'5.0' is not a whole number"),
        ("generalist.epochs=true", "'true' is not a whole number"),
        ("generalist.epochs=", "'' is not a whole number"),
        ("generalist.epochs=null", "'null' is not a whole number"),
        ("experts.rate=fast", "'fast' is not a number"),
        ("experts.rate=true", "'true' is not a number"),
        ("experts.rate=[1]", "'[1]' is not a number"),
        ("experts.rate=Infinity", "'Infinity' is not a number"),
        ("experts.rate=1e999", "'1e999' is not a number"),
        ("generalist.update_every=NaN", "'NaN' is not a number"),
        ("experts.augmentation.mirror=yes", "'yes' is not true or false"),
        ("experts.augmentation.mirror=1", "'1' is not true or false"),
        ("experts.drops=0.5", "'0.5' is not a list of numbers such as [0.5, 0.75]"),
        ("experts.drops=half", "'half' is not a list of numbers such as [0.5, 0.75]"),
        ('experts.drops=["half"]', "is not a list of numbers such as [0.5, 0.75]"),
        ("experts.start=base", "'base' is not one of generalist, scratch"),
        ("base.by=nobody", "'nobody' is not one of experts, paper, both, none"),
    ],
)
def test_what_a_wrong_setting_is_told(setting: str, message: str) -> None:
    told = refusal(setting)
    assert told.startswith(f"--set {setting}: ")
    assert message in told


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["generalist.epochs=0"], "epochs=0: out of range; train at least 1 epoch"),
        (["experts.rate=-1"], "rate=-1.0: out of range"),
        (["experts.drops=[8, 10]"], "give rising fractions of the epochs"),
        (["experts.augmentation.crop=0"], "crop=0"),
        (["generalist.confusion_images=0"], "generalist.confusion_images=0"),
        (["generalist.settle=-1"], "generalist.settle=-1"),
        (["data.hold_out=1"], "data.hold_out=1.0: out of range"),
        (["data.hold_out=-0.1"], "data.hold_out=-0.1: out of range"),
        (["seed=-1"], "seed=-1: out of range"),
        (["data.seed=-1"], "data.seed=-1: out of range"),
        (["specialties.count=1"], "--experts 1: a network of experts needs at least 2"),
        (["specialties.strength=0"], "strength must be above 0"),
        (["specialties.sweeps=-1"], "sweeps 0 or more"),
        (["specialties.rule=exakt"], "rule 'exakt': there is none; did you mean 'exact'?"),
        (["specialties.rule=groups"], "set both or neither"),
        (["specialties.groups=family"], "set both or neither"),
        (["specialties.rule=spectral", "base.by=none"], "base.by=none"),
        (["generalist.start=base", "base.by=none"], "base.by=none"),
    ],
)
def test_values_out_of_range(settings: list[str], message: str) -> None:
    assert message in refusal(*settings)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (["generalist.epochs=0"], "generalist.epochs=0"),
        (["experts.warmup_epochs=5", "experts.epochs=3"], "experts.warmup_epochs=5.0"),
        (["base.paper.rate=-1"], "base.paper.rate=-1.0"),
        (["experts.augmentation.magnitude=31"], "experts.augmentation.magnitude=31"),
        (["data.hold_out=1"], "data.hold_out=1.0"),
    ],
)
def test_a_field_that_several_recipes_have_is_named_in_full(settings: list[str], field: str) -> None:
    assert refusal(*settings).startswith(f"{field}: out of range; ")


def test_settings_that_are_right_only_together_are_applied_together() -> None:
    for settings in (
        ["specialties.rule=groups", "specialties.groups=family"],
        ["specialties.groups=family", "specialties.rule=groups"],
    ):
        assert with_settings(CONFIG, settings).specialties.groups == "family"
    without_base = with_settings(CONFIG, ["base.by=none"])
    both = with_settings(without_base, ["specialties.rule=spectral", "base.by=experts"])
    assert (both.specialties.rule, both.base.by) == ("spectral", "experts")
    with pytest.raises(UserError, match=r"base\.by=none"):
        with_settings(without_base, ["specialties.rule=spectral"])


def broken(**changes: Any) -> dict[str, Any]:
    return to_json(CONFIG) | changes


def test_a_configuration_that_does_not_fit() -> None:
    experts = to_json(CONFIG)["experts"]
    for value in (
        None,
        [],
        {},
        "text",
        broken(future_field=1),
        broken(seed="0"),
        broken(seed=0.5),
        broken(data=None),
        broken(base={"by": "experts"}),
        broken(generalist={"epochs": 3}),
        broken(experts=experts | {"drops": 0.5}),
        broken(experts=experts | {"rate": float("nan")}),
        broken(experts=experts | {"start": "nowhere"}),
    ):
        with pytest.raises(UserError, match="does not fit this version of nofe") as caught:
            from_json(value)
        assert "\n" not in str(caught.value)


def test_a_configuration_with_a_value_out_of_range() -> None:
    with pytest.raises(UserError, match="epochs=0: out of range"):
        from_json(broken(generalist=to_json(CONFIG)["generalist"] | {"epochs": 0}))


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONFIG.seed = 1  # type: ignore[misc]
    assert isinstance(CONFIG, RunConfig)
    assert hash(CONFIG) == hash(default_run("alexnet-c100", "cifar100"))


def test_the_page_on_configuration_has_every_field() -> None:
    page = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text()
    recipes = ("base.paper.", "generalist.", "experts.")
    for field, _, _ in fields(CONFIG):
        of_recipe = next((field.removeprefix(recipe) for recipe in recipes if field.startswith(recipe)), field)
        assert f"`{field}`" in page or f"`{of_recipe}`" in page, field
