"""Gradients that PyTorch gets wrong, put right before anything is trained; docs/decisions/0019."""

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

MENDED = "nofe: averages over the border"


def mend_compiler() -> None:
    """Mend the gradient of an average whose window hangs over the border, as `ceil_mode` allows (PyTorch issue 198119).

    Forward divides by the pixels that such a window has, compiled backward by those that a whole window has. Nothing
    shows it: the network trains all the same, only worse.
    """
    from torch.compiler import config

    _mend_average()
    # A warning about the loss, over few rows, where it costs nothing; there is nothing to be done about it.
    warnings.filterwarnings("ignore", message=r"\s*Online softmax is disabled")
    if MENDED not in config.cache_key_tag:  # or what was compiled before, and kept on disk, would be found again
        config.cache_key_tag = f"{config.cache_key_tag} {MENDED}".strip()


@cache
def _mend_average() -> None:
    from torch._inductor import ir, lowering

    of_average = torch.ops.aten.avg_pool2d_backward.default
    theirs: Any = lowering.lowerings[of_average]

    def ours(
        gradient: Any,
        maps: Any,
        kernel: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor: int | None = None,
    ) -> Any:
        if any(padding):  # it may be left to the uncompiled kernel, which was wrong in channels last
            gradient, maps = (ir.ExternKernel.require_contiguous(each) for each in (gradient, maps))
        if ceil_mode and count_include_pad and divisor is None:
            if any(padding):
                uncompiled: Any = lowering.fallback_avg_pool2d_backward
                return uncompiled(gradient, maps, kernel, stride, padding, ceil_mode, count_include_pad, divisor)
            count_include_pad = False  # the same without padding, and right
        return theirs(gradient, maps, kernel, stride, padding, ceil_mode, count_include_pad, divisor)

    lowering.lowerings[of_average] = ours


def mend_pooling(model: nn.Module, device: torch.device) -> None:
    """Mend the gradients of averages of maps in channels last, where nothing is compiled.

    Their gradients were wrong on CUDA where maps are padded (PyTorch issue 188344), and on Apple's GPUs altogether
    (issue 175190). Maps laid out the other way are averaged rightly.
    """
    for module in model.modules():
        if _is_wrong_in_channels_last(module, device) and _channels_first not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_channels_first)


def _is_wrong_in_channels_last(module: nn.Module, device: torch.device) -> bool:
    if device.type == "mps":
        return isinstance(module, nn.AvgPool2d | nn.AdaptiveAvgPool2d)
    return device.type == "cuda" and isinstance(module, nn.AvgPool2d) and module.padding not in (0, (0, 0))


def _channels_first(pool: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    return (inputs[0].contiguous(),)
