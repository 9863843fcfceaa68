"""What `nofe.convert` is given, looked at before anything is made of it."""

import copy
import math
import operator
from collections.abc import Callable
from numbers import Real

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nofe.architectures.line import (
    first_line,
    floating_dtype,
    in_users_code,
    require_images_alone,
    require_shapes_alone,
    require_three_channels,
)  # fmt: skip
from nofe.errors import NofeError, UserError

Branch = Callable[[int], nn.Module]
USUAL_SIZES = (224, 32, 64, 128, 28, 256, 299, 384)
OLD_NORMS = {"WeightNorm": "weight_norm", "SpectralNorm": "spectral_norm"}  # before torch had parametrizations


def uncompiled(model: object) -> nn.Module:
    """The network itself, if what is given is compiled by torch."""
    if not isinstance(model, nn.Module):
        raise UserError(f"model: is {model!r:.60}, not an nn.Module; pass the network itself, already built")
    original = getattr(model, "_orig_mod", model)
    assert isinstance(original, nn.Module)
    return original


def copy_of(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode: in training, reading a weight may change it (spectral norm)."""
    if isinstance(model, torch.jit.ScriptModule):
        raise UserError(
            "model: is a script (torch.jit), which has no layers to cut at; pass the module that it was made from"
        )
    name = type(model).__name__
    lazy = [path for path, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise UserError(f"{name}: {lazy[0]} has no size yet; call the model on images once, then convert it")
    _require_one_dtype(model, name)
    require_images_alone(model, name)
    for path, layer in model.named_modules():
        for hook in layer._forward_pre_hooks.values():
            if type(hook).__module__.startswith("torch.nn.utils.") and type(hook).__name__ in OLD_NORMS:
                norm = OLD_NORMS[type(hook).__name__]
                raise UserError(
                    f"{name}: {path} has torch.nn.utils.{norm}, whose weights can be neither copied nor drawn anew; "
                    f"use torch.nn.utils.parametrizations.{norm}"
                )
    try:
        return copy.deepcopy(model).eval()
    except Exception as error:  # whatever a module says that cannot be copied
        raise UserError(
            f"{name}: cannot be copied ({first_line(error)}), and each expert is a copy; remove the tensors that its "
            "modules keep from one call to the next"
        ) from error


def _require_one_dtype(model: nn.Module, name: str) -> None:
    found: dict[torch.dtype, str] = {}
    for path, parameter in model.named_parameters():
        if parameter.is_floating_point():
            found.setdefault(parameter.dtype, path)
    if len(found) > 1:
        (first, of_first), (second, of_second), *_ = found.items()
        raise UserError(
            f"{name}: {of_first} is {first} and {of_second} is {second}, and experts have one precision; convert "
            "model.float(), and train it with autocast"
        )


def require_width(width: object) -> None:
    if not isinstance(width, Real) or isinstance(width, bool) or not 0 < float(width) < math.inf:
        raise UserError(f"width={width!r}: not a number above 0; use a fraction of the branches' width, such as 0.5")


def require_factory(branch: object) -> None:
    if branch is not None and (isinstance(branch, nn.Module) or not callable(branch)):
        raise UserError(
            f"branch: is a {type(branch).__name__}, and each expert needs one of its own; pass a function that takes a "
            "number of classes and gives a new module, such as lambda classes: nn.Linear(64, classes)"
        )


def checked(branch: Branch, features: tuple[int, ...]) -> Branch:
    """The user's function, each of its branches tried: it must read what the trunk gives, and give a logit a class."""

    def build(count: int) -> nn.Module:
        expert = _built(branch, count)
        place = next(expert.parameters(), torch.empty(0))
        try:
            with torch.no_grad():
                logits = expert.eval()(torch.zeros(features, device=place.device, dtype=place.dtype))
        except Exception as error:  # whatever a layer says of what it cannot read
            raise UserError(
                f"branch: cannot read what the trunk gives, {features} for one image ({first_line(error)}); make its "
                "first layer one for that shape"
            ) from error
        given = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        if given != (1, count):
            raise UserError(
                f"branch: gives {given} for one image and a specialty of {count} classes; end it with one output for "
                f"each class, (N, {count})"
            )
        return expert.train()

    return build


def _built(branch: Branch, count: int) -> nn.Module:
    try:
        expert = branch(count)
    except NofeError:
        raise
    except Exception as error:  # code of the user's
        raise UserError(
            f"branch: your function fails for {count} classes with {in_users_code(error)}; fix it"
        ) from error
    if not isinstance(expert, nn.Module):
        raise UserError(f"branch: gives {expert!r:.60} for {count} classes; return an nn.Module")
    return expert


def size_read(model: nn.Module, given: object) -> int:
    """The side of the images: the one that the user says, or the first usual one that the model reads."""
    if given is not None:
        return _side(given)
    structure = copy.deepcopy(model).to("meta").eval()
    name, reasons = type(model).__name__, []
    for size in USUAL_SIZES:
        image = torch.zeros(1, 3, size, size, device="meta", dtype=floating_dtype(model))
        try:
            with torch.no_grad():
                logits = structure(image)
        except Exception as error:  # whatever a layer says of a size that it cannot read
            require_shapes_alone(error, name)
            require_three_channels(structure, name, image)
            reasons.append(f"{size} pixels: {first_line(error)}")
            continue
        if isinstance(logits, Tensor):
            return size
        raise UserError(
            f"{name}: gives {type(logits).__name__} for images of {size} pixels, not a tensor of logits; pass a module "
            "whose forward returns the logits alone"
        )
    raise UserError(
        f"{name}: cannot read images of three channels at a usual size ({reasons[0]}); pass image_size= the side of "
        "its images in pixels"
    )


def _side(given: object) -> int:
    try:
        side = operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        side = 0
    if side < 1 or isinstance(given, bool):
        raise UserError(
            f"image_size={given!r}: not the side of square images in pixels; pass a whole number above 0, such as 224"
        )
    return side
