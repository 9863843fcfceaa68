"""Networks of other libraries, and a user's own, by name.

    timm:resnet18   torchvision:convnext_tiny   python:my_module:my_function   any of them @64: read images of 64 pixels

A library is imported when one of its networks is asked for.
"""

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nofe.architectures.adapt import Build, adapted
from nofe.architectures.architecture import Architecture
from nofe.architectures.line import first_line, in_users_code, require_shapes_alone
from nofe.errors import UserError

SOURCES = {
    "timm:NAME": "any classifier of timm, e.g. timm:resnet18 or, for 64 x 64 images, timm:resnet18@64",
    "torchvision:NAME": "any classifier of torchvision, e.g. torchvision:convnext_tiny",
    "python:MODULE:NAME": "your own: NAME(classes) of MODULE gives an nn.Module over so many classes",
}
IMAGENET_STD = (0.229, 0.224, 0.225)
# In training these two give the logits of side branches as well, and their weights are for pixels of -1..1.
WITH_EXTRA_OUTPUTS = ("googlenet", "inception_v3")
INCEPTION_STD = (0.5, 0.5, 0.5)
# Pixels up to which images are stored at the size that is read, and padded for crops; larger ones have a margin.
SMALL_IMAGES = 64

_trusted: set[str] = set()


def is_zoo_name(name: str) -> bool:
    return name.partition(":")[0] in ("timm", "torchvision", "python")


def names_in_libraries(name: str) -> list[str]:
    """What a network without a library before its name may be: resnet50 is one of timm's and one of torchvision's."""
    known: dict[str, Callable[[], Iterable[str]]] = {
        "timm": lambda: importlib.import_module("timm").list_models(),
        "torchvision": lambda: torchvision_names(importlib.import_module("torchvision.models")),
    }
    found = []
    for library, names in known.items():
        with suppress(ImportError, RuntimeError):  # it is not installed, or does not fit torch
            found += [f"{library}:{name}"] if name.partition("@")[0] in names() else []
    return found


def torchvision_names(models: Any) -> list[str]:
    names: list[str] = models.list_models(module=models)  # without those of segmentation and detection
    return names


def trust(name: str) -> None:
    """Allow the code of this network to run, as the user has named it; that a run folder names it is not enough."""
    _trusted.add(name)


def name_of(architecture: str | Build) -> str:
    """The name by which a run folder finds a network again; of a function or class, the module that it stands in."""
    if isinstance(architecture, str):
        return architecture
    if isinstance(architecture, nn.Module):
        raise UserError(
            f"architecture: a {type(architecture).__name__} that is built already has its number of classes, and no "
            "name that the run folder could keep; pass the function or class that builds one for a number of classes, "
            "and its weights as settings={'adapt.weights': FILE}; or nofe.convert it"
        )
    module, name = getattr(architecture, "__module__", ""), getattr(architecture, "__qualname__", "")
    in_module = getattr(sys.modules.get(module), name, None) is architecture
    if not in_module or module == "__main__":
        raise UserError(
            f"architecture: {name or repr(architecture)} cannot be found again by name; define the function in a "
            "module that can be imported, not in the script or inside another function, and pass it, or "
            "'python:my_module:my_function'"
        )
    return f"python:{module}:{name}"


def zoo_architecture(name: str, cut: str = "") -> Architecture:
    source, size = _split(name)
    library, _, network = source.partition(":")
    find = {"timm": _timm, "torchvision": _torchvision, "python": _python}[library]
    build, own_size, std, summary = find(name, network, size)
    input_size = size or own_size
    image_size = input_size if input_size <= SMALL_IMAGES else input_size * 8 // 7  # 224 of 256, as on ImageNet
    return adapted(build, name, input_size, image_size=image_size, summary=summary, cut=cut, std=std)


def library_weights(name: str) -> dict[str, Tensor]:
    """What the library was trained to, by the names of its own model."""
    source, size = _split(name)
    library, _, network = source.partition(":")
    try:
        if library == "timm":
            model = _imported("timm", name).create_model(network, pretrained=True, **_timm_size(name, network, size))
        elif library == "torchvision":
            models = _imported("torchvision.models", name)
            model = models.get_model(network, weights="DEFAULT")
        else:
            raise UserError(f"--pretrained: nobody has trained {name}; name a file with --weights FILE")
    except UserError:
        raise
    except Exception as error:  # each library has its own for a network that is not reached
        raise UserError(
            f"--pretrained: cannot get the weights of {name} ({first_line(error)}); fetch them elsewhere and name the "
            "file with --weights FILE"
        ) from error
    state: dict[str, Tensor] = model.state_dict()
    return state


def _split(name: str) -> tuple[str, int | None]:
    source, at, size = name.rpartition("@")
    if not at:
        return name, None
    if not size.isdecimal() or not 1 <= int(size) <= 4096:
        raise UserError(f"architecture {name!r}: '{size}' is no image size; write NAME@64 for 64 x 64 pixels")
    return source, int(size)


_Found = tuple[Build, int, tuple[float, float, float], str]


def _timm(name: str, network: str, size: int | None) -> _Found:
    timm = _imported("timm", name)
    if not timm.is_model(network):
        raise UserError(f"architecture {name!r}: timm has no such model; {_nearest(network, timm.list_models())}")
    settings = timm.get_pretrained_cfg(network) or timm.models.PretrainedCfg()
    bare = network.partition(".")[0]  # without the tag of its pretrained weights
    extra = _timm_size(name, network, size)

    def build(outputs: int) -> nn.Module:
        model: nn.Module = timm.create_model(bare, num_classes=outputs, **extra)
        return model

    own_size = int(settings.input_size[-1])
    return build, own_size, tuple(settings.std)[:3], f"timm's {bare}"


def _timm_size(name: str, network: str, size: int | None) -> dict[str, Any]:
    """The argument for models that are built for one size of image, as they learn a position for each patch."""
    timm = _imported("timm", name)
    if size is None:
        return {}
    try:
        with torch.device("meta"):
            timm.create_model(network.partition(".")[0], img_size=size)
    except TypeError:
        return {}
    return {"img_size": size}


def _torchvision(name: str, network: str, size: int | None) -> _Found:
    models = _imported("torchvision.models", name)
    known = torchvision_names(models)
    if network not in known:
        raise UserError(f"architecture {name!r}: torchvision has no such classifier; {_nearest(network, known)}")
    crop = models.get_model_weights(network).DEFAULT.transforms().crop_size
    extra: dict[str, Any] = {"image_size": size} if size is not None and network.startswith("vit_") else {}
    std = IMAGENET_STD
    if network in WITH_EXTRA_OUTPUTS:
        extra, std = {"aux_logits": False, "init_weights": True}, INCEPTION_STD

    def build(outputs: int) -> nn.Module:
        model: nn.Module = models.get_model(network, weights=None, num_classes=outputs, **extra)
        return model

    return build, int(crop[0]), std, f"torchvision's {network}"


def _python(name: str, network: str, size: int | None) -> _Found:
    module_name, colon, attribute = network.partition(":")
    if not colon:
        raise UserError(f"architecture {name!r}: names no function; write python:my_module:my_function")
    if name not in _trusted and module_name not in sys.modules:
        raise UserError(
            f"architecture {name!r}: is code of its own, which is not run because a folder says so; import "
            f"{module_name} first, or pass --trust-code (nofe train --resume: --architecture {name} again)"
        )
    function = getattr(_users_module(module_name, name), attribute, None)
    if isinstance(function, nn.Module):
        raise UserError(
            f"architecture {name!r}: is a network that is built already; name the function or class that builds one "
            "for a number of classes"
        )
    if not callable(function):
        raise UserError(f"architecture {name!r}: {module_name} has no function {attribute}; check the spelling")
    try:
        inspect.signature(function).bind(2)
    except TypeError as error:
        raise UserError(
            f"architecture {name!r}: cannot be called with a number of classes alone ({error}); give the rest of its "
            "arguments defaults"
        ) from error
    return _checked(function, name), 32, IMAGENET_STD, f"{attribute} of {module_name}"


def _checked(function: Callable[[int], Any], name: str) -> Build:
    def build(outputs: int) -> nn.Module:
        try:
            model = function(outputs)
        except UserError:
            raise
        except Exception as error:  # code of somebody else's
            require_shapes_alone(error, name)
            raise UserError(
                f"architecture {name!r}: fails for {outputs} classes with {in_users_code(error)}; fix it, or name "
                "another"
            ) from error
        if not isinstance(model, nn.Module):
            raise UserError(f"architecture {name!r}: gives {type(model).__name__}; return an nn.Module")
        return model

    return build


def _users_module(module: str, name: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))  # where `python -m` would look as well; the command does not
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"architecture {name!r}: cannot import {module} ({error}); run where it lies") from error
    finally:
        sys.path.remove(str(Path.cwd()))


def _imported(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # the latter where torch and torchvision do not fit each other
        package = module.partition(".")[0]
        raise UserError(
            f"architecture {name!r}: cannot import {package} ({error}); install it with pip install {package}, or nofe "
            "with the extra 'zoo'"
        ) from error


def _nearest(network: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(network, list(known), n=1, cutoff=0.4)
    return f"did you mean {close[0]!r}?" if close else "see its list_models()"
