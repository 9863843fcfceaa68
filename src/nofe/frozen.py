"""A network as it stands, made ready to answer: batch norm folded, kernels chosen, compiled or captured if worth it.

Evaluation and prediction go through here. The network itself is not touched: it may be in the middle of a training.
"""

import copy
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from nofe.architectures.folding import convolutions_with_norms, folded_tensors, remove_norms
from nofe.architectures.packing import freeze, pack_layers
from nofe.training.launch import compile_blocks, launcher
from nofe.training.runtime import Runtime

# What an evaluation must have before it pays to find out which kernels are fastest: that takes a second or more, and
# on a GPU saves some hundredths of one for 10,000 small images.
PIXELS_WORTH_MEASURING = {"cpu": 5_000_000, "gpu": 200_000_000}
_frozen: "WeakKeyDictionary[nn.Module, FrozenNetwork]" = WeakKeyDictionary()


def frozen(model: nn.Module, runtime: Runtime, images: int, crop: int) -> "FrozenNetwork":
    """`model` with its weights of now, for so many images of that size. What was prepared before is used again."""
    ready = _frozen.get(model)
    if ready is None or not ready.serves(runtime, crop):
        ready = _frozen[model] = FrozenNetwork(model, runtime, images, crop)
    else:
        ready.refresh(model)
    return ready


def images_at_once(runtime: Runtime) -> int:
    """A GPU wants many, though with more than this cuDNN's search takes longer; a processor's cache holds few."""
    return 48 if runtime.device.type == "cpu" else 500


def is_worth_measuring(runtime: Runtime, images: int, crop: int) -> bool:
    return images * crop**2 >= PIXELS_WORTH_MEASURING["cpu" if runtime.device.type == "cpu" else "gpu"]


class FrozenNetwork:
    """Images (N, 3, h, w), however many, to logits (N, outputs) in float32. `batch` is a good number to give it."""

    def __init__(self, model: nn.Module, runtime: Runtime, images: int, crop: int, at_once: int | None = None) -> None:
        # Whatever the number of images: how many go together shows in the last bits of their logits.
        self.batch = at_once or images_at_once(runtime)
        self._piece = min(self.batch, images_at_once(runtime))
        self._runtime, self._crop = runtime, crop
        # With norms, in the form and with the kernels of its own; takes the weights from `model` at each refresh.
        self._whole = copy.deepcopy(model).eval().requires_grad_(False)
        self._whole.to(runtime.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        # What a processor makes of weights is kept from pass to pass. A compiler makes its own of them.
        self._keeps = runtime.device.type == "cpu" and not runtime.compile
        choose: Any = getattr(self._whole, "choose_kernels", None)
        if choose is not None:
            how: Any = {"frozen": self._keeps, "may_measure": is_worth_measuring(runtime, images, crop)}
            choose((min(self._piece, max(images, 1)), 3, crop, crop), runtime, training=False, **how)
        self._network = copy.deepcopy(self._whole).eval()
        self._pairs = convolutions_with_norms(self._whole)  # code that is followed may keep what is no number
        remove_norms(self._network, self._pairs)
        if runtime.precision == "bf16":
            self._network.to(torch.bfloat16)  # once, instead of at each pass
        if self._keeps:
            pack_layers(self._network)
        self._fill()
        compile_blocks(self._network, runtime)
        self._passes: dict[int, tuple[Tensor, Tensor, Callable[[], None]]] = {}  # by the number of images

    @property
    def network(self) -> nn.Module:
        """What answers, its experts as it was chosen to run them."""
        return self._network

    def serves(self, runtime: Runtime, crop: int) -> bool:
        return runtime is self._runtime and crop == self._crop

    @torch.inference_mode()
    def refresh(self, model: nn.Module) -> None:
        """Take over the weights of now, in place: a captured pass keeps reading the same memory."""
        theirs, own = _tensors(model), _tensors(self._whole)
        if theirs.keys() == own.keys():
            for name, tensor in own.items():
                tensor.copy_(theirs[name])
        else:  # one of them runs the experts fused; on disk they have the same names
            self._whole.load_state_dict(model.state_dict())
        self._fill()

    @torch.inference_mode()
    def _fill(self) -> None:
        tensors = folded_tensors(self._whole, self._pairs)
        for name, tensor in _tensors(self._network).items():
            tensor.copy_(tensors[name])
        _look_up_again(self._network)
        if self._keeps:
            freeze(self._network)

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        if not (self._runtime.capture or self._runtime.compile):
            return torch.cat([self._answers(piece) for piece in images.split(self._piece)]).float()
        # Compiled and captured passes have one shape: the images are put in the next larger one, beside what was there.
        size = self._size_for(len(images))
        if size not in self._passes:
            self._passes[size] = self._prepare(images, size)
        given, logits, run = self._passes[size]
        given[: len(images)].copy_(images)
        run()
        return logits[: len(images)].clone()

    def _size_for(self, images: int) -> int:
        """Powers of two, and the full batch: few shapes, none of them more than twice what is wanted."""
        return min(1 << (images - 1).bit_length(), max(self.batch, images))

    def _prepare(self, images: Tensor, size: int) -> tuple[Tensor, Tensor, Callable[[], None]]:
        given = images.new_zeros(size, *images.shape[1:]).contiguous(memory_format=torch.channels_last)
        logits = self._answers(given).float()

        def run() -> None:
            logits.copy_(self._answers(given))

        return given, logits, launcher(run, self._runtime)

    def _answers(self, images: Tensor) -> Tensor:
        with self._runtime.autocast():
            answers: Tensor = self._network(images.contiguous(memory_format=torch.channels_last))
        return answers


def _look_up_again(model: nn.Module) -> None:
    """timm's LeViT and its like keep the biases that they looked up in a table of weights until `train` is called.

    In place: a captured pass reads them where they are.
    """
    for module in model.modules():
        kept: dict[str, Tensor] = getattr(module, "attention_bias_cache", {})
        if kept:
            layer: Any = module
            layer.attention_bias_cache = {}
            for device, biases in kept.items():
                biases.copy_(layer.get_attention_biases(torch.device(device)))
            layer.attention_bias_cache = kept


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()} | dict(model.named_buffers())
