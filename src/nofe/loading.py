"""A finished run, ready to use: the network, its class names, and how its images are prepared."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nofe import config as configuration
from nofe import runs
from nofe.architectures import Architecture, Classifier
from nofe.config import RunConfig, architecture_of
from nofe.data.batches import DeviceImages, centre_crop
from nofe.data.photos import Photo, read_photos
from nofe.data.stream import on_device
from nofe.errors import UserError
from nofe.experts.network import NetworkOfExperts, plant_experts
from nofe.files import expand_home
from nofe.judging import Place, ToJudgeBy, images_to_judge_by
from nofe.runs import Run
from nofe.specialties import Specialties
from nofe.stages import FILES_OF_STAGE, base_recipes
from nofe.training.runtime import Runtime
from nofe.training.weights import load_weights


@dataclass(frozen=True)
class FinishedRun:
    """What a run folder holds, read but not yet on any device."""

    run: Run
    config: RunConfig
    class_names: tuple[str, ...]
    mean: NDArray[np.float32]  # (3, H, W)

    @property
    def crop(self) -> int:
        """Pixels a side of what the network of experts reads; bases may read others (`stages.crop_of_stage`)."""
        return self.config.experts.augmentation.crop

    def architecture(self) -> Architecture:
        return architecture_of(self.config, len(self.class_names))

    def specialties(self) -> Specialties:
        return Specialties.from_json(self.run.read_json(runs.SPECIALTIES))

    def network(self) -> NetworkOfExperts:
        network = plant_experts(self.architecture(), self.specialties())
        load_weights(network, self.run, runs.NETWORK)
        network.class_names = self.class_names
        network.read, network.preprocess = self.read, self.preprocess
        return network.eval()

    def base(self, file: str = runs.BASE) -> Classifier | None:
        """The plain network, by the experts' recipe or by the paper's (runs.PAPER_BASE), where the run has one."""
        if not self.run.has(file):
            return None
        base = self.architecture().classifier(len(self.class_names))
        load_weights(base, self.run, file)
        return base.eval()

    def classifiers(self) -> dict[str, nn.Module]:
        """Every network that tells classes apart, by stage, the experts fused. A run may end before them (`until`)."""
        bases = {stage: self.base(*FILES_OF_STAGE[stage]) for stage in base_recipes(self.config)}
        networks: dict[str, nn.Module] = {stage: base for stage, base in bases.items() if base is not None}
        if self.config.until == "experts":
            experts = self.network()
            experts.fuse()
            networks["experts"] = experts
        return networks

    def read(self, photos: Photo | Iterable[Photo]) -> Tensor:
        """Files, their content or Pillow images, one or several, to bytes (N, 3, H, W) for `preprocess`.

        They are those that `nofe predict` has. Content is bytes, or a file that is open for reading them.
        An image that Pillow has opened is resized from all of its pixels; a large JPEG file is decoded at half its size
        or less, if that is enough.
        """
        return torch.from_numpy(read_photos(photos, self.mean.shape[-1]))

    def preprocess(self, images: Tensor | NDArray[Any]) -> Tensor:
        """Bytes (N, 3, H, W), or floats from 0 to 1 as `nofe.train` takes them, to what the network reads."""
        try:
            images = torch.as_tensor(images)
        except (TypeError, ValueError, RuntimeError) as error:
            given = type(images).__name__
            advice = "read photos with network.read"
            raise UserError(f"images: neither a tensor nor an array but {given}; {advice}") from error
        if tuple(images.shape[1:]) != self.mean.shape:
            wanted = ", ".join(map(str, self.mean.shape))
            raise UserError(
                f"images of shape {tuple(images.shape)}: the run was trained on bytes of shape (N, {wanted}); "
                "read photos with network.read, or resize the images"
            )
        if images.is_floating_point():
            if not bool(((images >= 0) & (images <= 1)).all()):
                raise UserError(
                    "images: floats that are not from 0 to 1; give bytes (torch.uint8), or what torchvision's ToTensor "
                    "gives, and leave normalising to the network"
                )
            images = (255 * images).round()
        elif images.dtype != torch.uint8 and bool((images.long() // 256).any()):
            raise UserError("images: whole numbers that are not from 0 to 255; scale them to bytes (torch.uint8)")
        mean = torch.from_numpy(self.mean).to(images.device)
        return centre_crop(images.float() - mean, self.crop)

    def test_images(self, runtime: Runtime) -> DeviceImages:
        """Those of the run; an error if they are not the same any more."""
        return self.on_device(self.to_judge_by(runtime), runtime)

    def to_judge_by(self, runtime: Runtime, place: Place = Place()) -> ToJudgeBy:  # noqa: B008 (frozen)
        """The test images of the run, or other labelled images."""
        size = self.mean.shape[-1]
        return images_to_judge_by(self.config, self.class_names, size, self.run, runtime, place)

    def on_device(self, judged: ToJudgeBy, runtime: Runtime) -> DeviceImages:
        return on_device(judged.images, self.mean, runtime.device)


def open_finished(path: Path | str) -> FinishedRun:
    run = Run(expand_home(path))
    if not run.file(runs.CONFIG).exists():
        raise UserError(runs.no_run_in(run.path))
    config: Any = configuration.from_json(run.read_json(runs.CONFIG))
    stored = run.read_arrays(runs.INPUT)
    return FinishedRun(run, config, tuple(str(name) for name in stored["class_names"]), stored["mean"])


def load(path: Path | str) -> NetworkOfExperts:
    """The trained network of a run, in evaluation mode, on the CPU.

    `network.class_names` and `network.specialties` say what its outputs are; `network.read` gives photos as bytes, and
    `network.preprocess` bytes as what it reads.
    """
    return open_finished(path).network()
