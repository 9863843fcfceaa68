"""Turn an image classifier into a network of experts.

The names below are the public interface. Each is imported when it is first used, so that `import nofe` and
`nofe --help` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nofe.api import train as train
    from nofe.architectures import ARCHITECTURES as ARCHITECTURES
    from nofe.config import RunConfig as RunConfig
    from nofe.data import Dataset as Dataset
    from nofe.data import ImageSet as ImageSet
    from nofe.data import load_dataset as load_dataset
    from nofe.errors import NofeError as NofeError
    from nofe.experts.convert import convert as convert
    from nofe.experts.network import NetworkOfExperts as NetworkOfExperts
    from nofe.loading import load as load
    from nofe.recipes import default_run as default_run
    from nofe.specialties import RULES as RULES
    from nofe.specialties import Specialties as Specialties

_HOME = {
    "ARCHITECTURES": "nofe.architectures",
    "Dataset": "nofe.data",
    "ImageSet": "nofe.data",
    "NetworkOfExperts": "nofe.experts.network",
    "NofeError": "nofe.errors",
    "RULES": "nofe.specialties",
    "RunConfig": "nofe.config",
    "Specialties": "nofe.specialties",
    "convert": "nofe.experts.convert",
    "default_run": "nofe.recipes",
    "load": "nofe.loading",
    "load_dataset": "nofe.data",
    "train": "nofe.api",
}
__all__ = list(_HOME)  # pyright: ignore


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("nofe")
    if name not in _HOME:
        raise AttributeError(f"module 'nofe' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)
