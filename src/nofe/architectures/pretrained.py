"""Weights that a base or a generalist starts from: of timm, of torchvision, or of a file."""

import re
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from nofe.architectures.architecture import Architecture, Classifier
from nofe.architectures.line import first_line
from nofe.architectures.zoo import is_zoo_name, library_weights
from nofe.errors import UserError
from nofe.files import expand_home

FROM_LIBRARY = "pretrained"


def read_weights(weights: str, architecture: str) -> dict[str, Tensor]:
    """By the names of the model itself, or with trunk. and head. before them as in the files of a run."""
    if weights == FROM_LIBRARY:
        if not is_zoo_name(architecture):
            raise UserError(
                f"--pretrained: nobody has trained {architecture}; name a timm: or torchvision: network, or a file "
                "with --weights FILE"
            )
        return library_weights(architecture)
    path = expand_home(weights)
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        # Not safetensors: torch's own files are pickles. weights_only lets tensors through and no code.
        return _state(torch.load(path, map_location="cpu", weights_only=True), path)
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"--weights {weights}: no such file; check the spelling") from error
    except Exception as error:  # a damaged file fails in as many ways as there are formats
        raise UserError(
            f"--weights {weights}: cannot be read as tensors alone ({_reason(error, path)}); save the state_dict with "
            "safetensors.torch.save_file"
        ) from error


def _reason(error: Exception, path: Path) -> str:
    """In plain words: torch's own run over a page, in colours, and end in the advice to trust the file."""
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    if path.suffix == ".safetensors":
        return first_line(error)
    if found := re.search(r"GLOBAL ([\w.]+)", str(error)):
        return f"it holds a {found[1]}, too, which is code, as in a model that was pickled whole"
    with path.open("rb") as file:
        begins_as_torch_does = file.read(2) == b"PK"
    return "its content is damaged or cut off" if begins_as_torch_does else "it is no file that torch.save wrote"


def require_fitting_weights(state: dict[str, Tensor], architecture: Architecture, what: str) -> None:
    """That the network can start from them, before there is one."""
    with torch.device("meta"):  # names and shapes alone
        model = architecture.classifier(2)
    _fitting(model, state, architecture, what)


def start_from(model: Classifier, state: dict[str, Tensor], architecture: Architecture, what: str) -> None:
    """Load trunk and head of `model`, all but the last layer, which has outputs of its own."""
    for module, given in _fitting(model, state, architecture, what):
        module.load_state_dict(module.state_dict() | given)


def _fitting(
    model: Classifier, state: dict[str, Tensor], architecture: Architecture, what: str
) -> list[tuple[nn.Module, dict[str, Tensor]]]:
    """Trunk and head, each with the weights that it is to start from, by its own names."""
    named = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    of_run = all(name.startswith(("trunk.", "head.")) for name in named)  # and not a model with a head of its own
    last = architecture.classifier_layer() if architecture.classifier_layer else _last_layer(model.head)
    found = []
    for part, module in (("trunk", model.trunk), ("head", model.head)):
        # Another cut puts other layers in the trunk, by the same names; the part's own come first.
        ordered = sorted(named.items(), key=lambda each: each[0].startswith(f"{part}.")) if of_run else named.items()
        given = {name.partition(".")[2] if of_run else name: tensor for name, tensor in ordered}
        own = module.state_dict()
        wanted = [name for name in own if part == "trunk" or not name.startswith(f"{last}.")]
        _require_fitting(own, given, wanted, f"{what}: {architecture.name}")
        found.append((module, {name: given[name] for name in wanted}))
    return found


def _require_fitting(own: dict[str, Tensor], given: dict[str, Tensor], wanted: list[str], what: str) -> None:
    missing = [name for name in wanted if name not in given]
    if missing:
        raise UserError(
            f"{what} has {missing[0]} and the weights have not ({len(missing)} of {len(wanted)} are missing); name "
            "weights of the same network"
        )
    for name in wanted:
        if own[name].shape != given[name].shape:
            raise UserError(
                f"{what} has {name} of shape {tuple(own[name].shape)} and the weights {tuple(given[name].shape)}; name "
                "weights of the same network and image size"
            )


def _state(loaded: object, path: Path) -> dict[str, Tensor]:
    for key in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(tensor, Tensor) for tensor in loaded.values()):
        raise UserError(f"--weights {path}: holds no state_dict; save model.state_dict()")
    return loaded


def _last_layer(head: nn.Module) -> str:
    paths: list[str] = [path for path, module in head.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    return paths[-1]
