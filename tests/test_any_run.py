"""Networks of other libraries and of the user's own, through the whole pipeline and the command line."""

import sys
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch

import nofe
from conftest import small_dataset
from nofe import runs
from nofe.api import configure
from nofe.architectures import architecture_named, zoo
from nofe.architectures.options import architecture_with
from nofe.cli.training import _configured
from nofe.config import to_json, with_settings
from nofe.data import Dataset
from nofe.errors import UserError
from nofe.recipes import default_run
from nofe.reuse import stage_keys
from nofe.runs import Run, open_run
from nofe.task import prepare
from nofe.training.progress import Silent
from nofe.training.ranks import Ranks
from nofe.training.runtime import make_runtime
from test_cli import answered, refusal, write_animals

SHORT = {
    "generalist.epochs": 2,
    "experts.epochs": 1,
    "generalist.batch": 32,
    "experts.batch": 32,
    "generalist.confusion_images": 80,
    "generalist.rate": 0.01,
    "experts.rate": 0.01,
}
BUILT = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(3600, 4))
AS_OPTIONS = [option for name, value in SHORT.items() for option in ("--set", f"{name}={value}")]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    model = timm.create_model("test_resnet")
    with torch.no_grad():
        model.train()(torch.randn(8, 3, 32, 32))  # statistics that are not those of the start
    safetensors.torch.save_file(model.state_dict(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def test_base_and_generalist_start_from_the_weights_and_a_frozen_trunk_keeps_them(
    dataset: Dataset, tmp_path: Path, weights: Path
) -> None:
    settings = SHORT | {"adapt.weights": str(weights), "adapt.frozen_trunk": True}
    nofe.train(tmp_path / "run", dataset, "timm:test_resnet@32", 2, settings=settings, device="cpu", quiet=True)
    given = safetensors.torch.load_file(weights)
    for file in ("base", "generalist", "network"):
        saved = safetensors.torch.load_file(tmp_path / "run" / f"{file}.safetensors")
        trunk = {name.removeprefix("trunk."): tensor for name, tensor in saved.items() if name.startswith("trunk.")}
        assert trunk.keys() == {name for name in given if not name.startswith("fc.")}
        assert all(torch.equal(tensor, given[name]) for name, tensor in trunk.items())


def test_a_trunk_that_is_not_frozen_learns_from_where_the_weights_are(
    dataset: Dataset, tmp_path: Path, weights: Path
) -> None:
    settings = SHORT | {"adapt.weights": str(weights), "experts.rate": 1e-9, "base.by": "none", "generalist.rate": 1e-9}
    nofe.train(tmp_path / "run", dataset, "timm:test_resnet@32", 2, settings=settings, device="cpu", quiet=True)
    given = safetensors.torch.load_file(weights)
    saved = safetensors.torch.load_file(tmp_path / "run" / "network.safetensors")
    torch.testing.assert_close(saved["trunk.conv1.0.weight"], given["conv1.0.weight"])
    norms = [
        name for name in given if name.endswith("running_mean") and not torch.equal(saved[f"trunk.{name}"], given[name])
    ]
    assert norms


def own_network(classes: int) -> torch.nn.Module:
    model: torch.nn.Module = timm.create_model("test_resnet", num_classes=classes)
    return model


def test_a_function_that_builds_a_network_is_known_by_where_it_stands(dataset: Dataset, tmp_path: Path) -> None:
    settings = SHORT | {"base.by": "none"}
    nofe.train(tmp_path / "run", dataset, own_network, 2, settings=settings, device="cpu", quiet=True)
    assert Run(tmp_path / "run").read_config()["architecture"] == f"python:{__name__}:own_network"
    assert nofe.load(tmp_path / "run")(torch.zeros(1, 3, 32, 32)).shape == (1, dataset.classes)


def test_a_network_that_has_no_name_is_refused_with_the_next_move(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"architecture: a \w+ that is built already .* the function or class"):
        nofe.train(tmp_path / "run", dataset, own_network(4))
    with pytest.raises(UserError, match=r"lambda> cannot be found again .* 'python:my_module:my_function'"):
        nofe.train(tmp_path / "run", dataset, lambda classes: own_network(classes))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [{}, {"adapt.cut": "layer4"}, {"adapt.parameters": 600_000}], ids=str)
def test_a_finished_run_is_loaded_as_it_was_trained(
    dataset: Dataset, tmp_path: Path, options: dict[str, object]
) -> None:
    settings = SHORT | options | {"base.by": "none"}
    summary = nofe.train(
        tmp_path / "run", dataset, "timm:test_resnet@32", 2, settings=settings, device="cpu", quiet=True
    )
    network = nofe.load(tmp_path / "run")
    with torch.inference_mode():
        logits = network(network.preprocess(torch.from_numpy(dataset.test.images)))
    accuracy = float((logits.argmax(1).numpy() == dataset.test.labels).mean())
    assert accuracy == summary["networks"]["experts"]["accuracy"]
    parameters = sum(parameter.numel() for parameter in network.parameters())
    assert parameters == summary["networks"]["experts"]["parameters"]
    assert parameters <= options.get("adapt.parameters", parameters)  # type: ignore[operator]
    assert (len([name for name in network.trunk.state_dict() if "layer4" in name]) == 0) == ("adapt.cut" in options)


def test_a_network_of_the_users_own_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    animals = write_animals(tmp_path / "animals")
    (tmp_path / "my_net.py").write_text(
        "from torch import nn\n"
        "def net(classes):\n"
        "    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]\n"
        "    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(zoo, "_trusted", set())
    options = ["--dataset", f"folder:{animals}", "--architecture", "python:my_net:net", "--experts", "2", *AS_OPTIONS]
    said = answered("train", *options, "--set", "experts.batch=8", "--set", "generalist.batch=8", "--device", "cpu")
    # 32 x 32 places x 27 numbers x 8 channels and 8 x 4 logits; a branch reads 8 channels, and has 2 logits.
    base, experts = 32 * 32 * 27 * 8 + 8 * 4, 32 * 32 * 27 * 8 + 2 * (32 * 32 * 72 * 8 + 8 * 2)
    assert f"{base / 1e6:,.1f} million" in said
    assert f"{experts / 1e6:,.1f} million" in said
    assert said.index("multiplications") < said.index("epoch")
    run = Path("runs") / "folder-python-my_net-net-k2"
    assert (run / "report.html").exists()
    # Another process knows nothing of what this one was told.
    sys.modules.pop("my_net")
    monkeypatch.setattr(zoo, "_trusted", set())
    forget_architectures()
    assert "--trust-code" in refusal("evaluate", run)
    assert "my_net" not in sys.modules
    assert "top-1" in answered("evaluate", run, "--trust-code")
    sys.modules.pop("my_net")
    forget_architectures()


def forget_architectures() -> None:
    architecture_named.cache_clear()
    architecture_with.cache_clear()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cut", "layer9", "--architecture", "timm:test_resnet@32"], "timm:test_resnet@32 has no such layer"),
        (["--cut", "conv4", "--architecture", "small"], "has a fixed place where it is cut"),
        (["--branch-width", "0"], "adapt.branch_width=0.0: out of range"),
        (["--parameters", "1000"], "parameters=1,000: small with 10 experts has"),
        (["--frozen-trunk"], "--frozen-trunk: the trunk would stay as random as it begins; start from trained weights"),
        (["--pretrained"], "nobody has trained small"),
        (["--pretrained", "--weights", "x.pth"], "two sources of weights"),
        (["--weights", "nowhere.safetensors"], "no such file"),
        (["--architecture", "timm:nothing_like_it"], "timm has no such model"),
        (
            ["--architecture", "resnet50@64"],
            "did you mean 'timm:resnet50@64', 'torchvision:resnet50@64' or 'resnet56-c100'?",
        ),
        (
            ["--architecture", "python:test_any_run:BUILT"],
            "is a network that is built already; name the function or class that builds one",
        ),
        (
            ["--architecture", "timm:test_resnet@32", "--set", "experts.batch=1"],
            "experts.batch=1: timm:test_resnet@32 normalises a map of one pixel over the images of a batch; use 2 or",
        ),
        (
            ["--architecture", "timm:vit_tiny_patch16_224@32", "--set", "experts.augmentation.crop=16"],
            "timm:vit_tiny_patch16_224@32 cannot read images of this size (Input height (16) does",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_before_anything_is_trained(options: list[str], said: str, tmp_path: Path) -> None:
    assert said in refusal("train", *options, "--out", tmp_path / "run", "--device", "cpu")
    assert not (tmp_path / "run" / "config.json").exists()  # so that the corrected command may use the folder


def test_weights_that_do_not_fit_are_refused_before_the_run_begins(weights: Path, tmp_path: Path) -> None:
    state = safetensors.torch.load_file(weights)
    some = tmp_path / "some.safetensors"
    safetensors.torch.save_file({name: state[name] for name in state if name != "conv1.0.weight"}, some)
    wide = tmp_path / "wide.safetensors"
    safetensors.torch.save_file(state | {"conv1.0.weight": torch.zeros(7, 3, 3, 3)}, wide)
    out = tmp_path / "run"
    options = ("--architecture", "timm:test_resnet@32", "--experts", "2", "--device", "cpu", "--out", out)
    assert "has conv1.0.weight and the weights have not (1 of " in refusal("train", *options, "--weights", some)
    assert "and the weights (7, 3, 3, 3); name weights of" in refusal("train", *options, "--weights", wide)
    assert "are missing" in refusal("train", *options, "--architecture", "small", "--weights", weights)
    assert not (out / "config.json").exists()


def test_a_single_image_is_a_batch_where_nothing_is_normalised(dataset: Dataset, tmp_path: Path) -> None:
    """Or where maps are larger than a pixel."""
    settings = SHORT | {"experts.batch": 1, "base.by": "none"}
    summary = nofe.train(tmp_path / "run", dataset, "small", 2, settings=settings, device="cpu", quiet=True)
    assert summary["networks"]["experts"]["epochs"] == 1


@pytest.mark.parametrize(
    ("architecture", "setting", "said"),
    [
        ("small", {"adapt.frozen_trunk": True}, r"--frozen-trunk: .* --pretrained or --weights FILE"),
        ("timm:test_resnet@32", {"adapt.branch_width": 0.99}, r"branch_width=0\.99: rounds to the full width"),
    ],
)
def test_a_run_that_was_begun_before_its_settings_were_refused_goes_on(
    architecture: str,
    setting: dict[str, object],
    said: str,
    dataset: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, settings = tmp_path / "run", SHORT | setting | {"base.by": "none"}
    with pytest.raises(UserError, match=said):
        nofe.train(out, dataset, architecture, 2, settings=settings, device="cpu", quiet=True)
    config = configure(dataset.name, architecture, 2, settings=settings)
    monkeypatch.setattr("nofe.task.require_same_images", lambda *_: None)
    with open_run(out, resume=False, check=lambda _: None) as begun:
        begun.write_json(runs.ENVIRONMENT, {})
        begun.write_json(runs.CONFIG, to_json(config))
        task = prepare(config, dataset, begun, make_runtime("cpu"), Silent())
        assert task.config.adapt == config.adapt
        task.architecture.branch(2)


def test_a_short_training_on_few_images_gets_no_worse_as_its_rate_falls(tmp_path: Path) -> None:
    """With Caffe's velocity, which outlives a drop by ten steps, here five epochs, it ended at half the accuracy."""
    settings = {"until": "base", "experts.epochs": 12, "experts.batch": 32}
    images = small_dataset(per_class=10)
    nofe.train(tmp_path / "run", images, "timm:test_resnet@32", 2, settings=settings, device="cpu", quiet=True)
    epochs = Run(tmp_path / "run").metrics()
    rates, losses = ([epoch[figure] for epoch in epochs] for figure in ("rate", "loss"))
    before = max(losses[epoch] for epoch in (4, 5))  # the rate falls after six epochs and nine
    assert rates[5] > rates[6] > rates[9]
    assert max(losses[6:]) < before
    assert epochs[-1]["test_accuracy"] > 0.9


@pytest.mark.parametrize("given", ["weights", "setting"])
def test_trained_weights_are_trained_on_gently_unless_a_recipe_is_named(given: str) -> None:
    def rate(chosen: dict[str, object], settings: list[str]) -> tuple[str, float]:
        config, _ = _configured(chosen | {"architecture": "timm:test_resnet@32"}, settings, Path("x"), False, Ranks())
        return config.experts.optimizer, config.experts.rate

    weights: tuple[dict[str, object], list[str]] = ({"adapt.weights": "pretrained"}, [])
    if given == "setting":
        weights = ({}, ["adapt.weights=pretrained"])
    assert rate({}, []) == ("sgd", 0.1)
    assert rate(*weights) == ("adamw", 2e-4)
    assert rate(weights[0] | {"recipe": "paper"}, weights[1]) == ("sgd", 0.1)
    assert rate(weights[0], [*weights[1], "experts.rate=0.5"]) == ("adamw", 0.5)
    by_api = configure("glyphs", "timm:test_resnet@32", settings={"adapt.weights": "pretrained"})
    assert by_api.generalist.optimizer == "adamw"
    assert configure("glyphs", "timm:test_resnet@32").generalist.optimizer == "sgd"


def test_another_run_shares_the_stages_that_its_options_leave_as_they_are() -> None:
    def keys(*settings: str) -> dict[str, str]:
        return stage_keys(with_settings(default_run("timm:test_resnet@32"), settings))

    plain, narrow, frozen = keys(), keys("adapt.branch_width=0.5"), keys("adapt.frozen_trunk=true")
    assert {stage for stage in plain if plain[stage] == narrow[stage]} == {"base", "generalist"}
    assert not [stage for stage in plain if plain[stage] == frozen[stage]]
