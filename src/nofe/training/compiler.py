"""What PyTorch's compiler gets wrong, put right before anything is compiled."""

from functools import cache
from typing import Any

import torch

MENDED = "nofe: averages over the border"


@cache
def mend_compiler() -> None:
    """The gradient of an average whose window hangs over the border, as `ceil_mode` allows (PyTorch issue 198119).

    Forward divides by the pixels that such a window has, compiled backward by those it would have. A network trains
    all the same, only worse: nothing else tells.
    """
    from torch._inductor import lowering
    from torch.compiler import config

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
        if ceil_mode and count_include_pad and divisor is None:
            if any(padding):  # uncompiled it is right
                uncompiled: Any = lowering.fallback_avg_pool2d_backward
                return uncompiled(gradient, maps, kernel, stride, padding, ceil_mode, count_include_pad, divisor)
            count_include_pad = False  # the same without padding, and right
        return theirs(gradient, maps, kernel, stride, padding, ceil_mode, count_include_pad, divisor)

    lowering.lowerings[of_average] = ours
    # Or what was compiled before, and kept on disk, would be found again.
    config.cache_key_tag = f"{config.cache_key_tag} {MENDED}".strip()
