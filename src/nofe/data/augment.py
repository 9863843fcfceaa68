"""RandAugment and TrivialAugment in batches, on the training device.

The operations and their strengths are torchvision's (`RandAugment`, `TrivialAugmentWide`), which does one image at a
time and draws as it goes. Here what happens to an image is drawn beforehand, and each operation is computed for the
whole batch; every image keeps the result of its own. All shapes are fixed, so a graph can capture it. Images are
float32 that holds the whole numbers 0..255, and each operation rounds to whole numbers as torchvision's does on bytes.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

OPERATIONS = (
    "identity", "shear-x", "shear-y", "translate-x", "translate-y", "rotate",
    "brightness", "color", "contrast", "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
IDENTITY, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y, ROTATE, *_ = range(len(OPERATIONS))
*_, BRIGHTNESS, COLOR, CONTRAST, SHARPNESS, POSTERIZE, SOLARIZE, AUTOCONTRAST, EQUALIZE = range(len(OPERATIONS))
MAGNITUDES = 30  # RandAugment's scale is 0 to this


def draw_operations(
    rng: np.random.Generator, images: int, count: int, magnitude: int, size: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """RandAugment: `count` operations for each image of `size` pixels a side, all of one magnitude; (N, count) each."""
    kinds = rng.integers(len(OPERATIONS), size=(images, count))
    levels = np.full(kinds.shape, magnitude / MAGNITUDES)
    largest = {SHEAR_X: 0.3, SHEAR_Y: 0.3, TRANSLATE_X: size * 150 / 331, TRANSLATE_Y: size * 150 / 331}
    largest |= {ROTATE: np.radians(30)} | dict.fromkeys((BRIGHTNESS, COLOR, CONTRAST, SHARPNESS), 0.9)
    return kinds, _amounts(kinds, levels, _signs(rng, kinds), largest, fewest_bits=4)


def draw_wide_operations(rng: np.random.Generator, images: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """TrivialAugment: one operation for each image, of any magnitude up to extreme ones; (N, 1) each."""
    kinds = rng.integers(len(OPERATIONS), size=(images, 1))
    levels = rng.integers(MAGNITUDES + 1, size=kinds.shape) / MAGNITUDES
    largest = dict.fromkeys((SHEAR_X, SHEAR_Y, BRIGHTNESS, COLOR, CONTRAST, SHARPNESS), 0.99)
    largest |= {TRANSLATE_X: 32.0, TRANSLATE_Y: 32.0, ROTATE: np.radians(135)}
    return kinds, _amounts(kinds, levels, _signs(rng, kinds), largest, fewest_bits=2)


def _signs(rng: np.random.Generator, kinds: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(rng.random(kinds.shape) < 0.5, -1.0, 1.0)


def _amounts(
    kinds: NDArray[np.int64],
    levels: NDArray[np.float64],
    signs: NDArray[np.float64],
    largest: dict[int, float],
    fewest_bits: int,
) -> NDArray[np.float32]:
    """What an operation reads: a slope, pixels, radians, the change of a factor, a step between values, a threshold."""
    at_most = np.array([largest.get(kind, 0.0) for kind in range(len(OPERATIONS))])
    amounts = signs * levels * at_most[kinds]
    translated = (kinds == TRANSLATE_X) | (kinds == TRANSLATE_Y)
    amounts = np.where(translated, np.trunc(amounts), amounts)
    amounts = np.where(kinds == POSTERIZE, 2 ** np.round(levels * (8 - fewest_bits)), amounts)
    amounts = np.where(kinds == SOLARIZE, 255 * (1 - levels), amounts)
    return amounts.astype(np.float32)


def operate(images: Tensor, kinds: Tensor, amounts: Tensor, fill: Tensor) -> Tensor:
    """One operation for each image of a batch: (B, 3, H, W) by kinds (B,) and amounts (B,).

    `fill`, (3,), is the colour of what comes in from outside the image.
    """
    kind, amount = kinds[:, None, None, None], amounts[:, None, None, None]  # (B, 1, 1, 1)
    result = torch.where((kind >= SHEAR_X) & (kind <= ROTATE), _moved(images, kinds, amounts, fill), images)
    result = torch.where((kind >= BRIGHTNESS) & (kind <= SHARPNESS), _blended(images, kind, amount), result)
    step = torch.where(kind == POSTERIZE, amount, 1.0)
    result = torch.where(kind == POSTERIZE, images - images % step, result)
    result = torch.where((kind == SOLARIZE) & (images >= amount), 255 - images, result)
    result = torch.where(kind == AUTOCONTRAST, _autocontrast(images), result)
    return torch.where(kind == EQUALIZE, _equalized(images), result)


def _moved(images: Tensor, kinds: Tensor, amounts: Tensor, fill: Tensor) -> Tensor:
    """Where each pixel comes from is linear in its place; the nearest one is taken."""
    height, width = images.shape[-2:]
    y = torch.arange(height, device=images.device)[None, :, None] + 0.5  # (1, H, 1)
    x = torch.arange(width, device=images.device)[None, None, :] + 0.5  # (1, 1, W)

    def of(kind: int) -> Tensor:
        return torch.where(kinds == kind, amounts, 0.0)[:, None, None]  # (B, 1, 1)

    angle = of(ROTATE)
    over, down = x - width / 2, y - height / 2  # from the centre, which a rotation leaves in place
    from_x = angle.cos() * over - angle.sin() * down + width / 2 + of(SHEAR_X) * y - of(TRANSLATE_X)  # (B, H, W)
    from_y = angle.sin() * over + angle.cos() * down + height / 2 + of(SHEAR_Y) * x - of(TRANSLATE_Y)
    column, row = (from_x - 0.5).round().long(), (from_y - 0.5).round().long()
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    source = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).flatten(1)  # (B, H * W)
    pixels = images.flatten(2).gather(2, source[:, None].expand(-1, images.shape[1], -1)).view_as(images)
    return torch.where(inside[:, None], pixels, fill[:, None, None])


def _blended(images: Tensor, kind: Tensor, amount: Tensor) -> Tensor:
    """Away from, or towards, an image that lacks something: all light, colour, contrast or detail."""
    grey = _grey(images)
    lacking = torch.where(kind == COLOR, grey, 0.0)
    lacking = torch.where(kind == CONTRAST, grey.mean((1, 2, 3), keepdim=True), lacking)
    lacking = torch.where(kind == SHARPNESS, _blurred(images), lacking)
    return (images + amount * (images - lacking)).clamp(0, 255).floor()


def _grey(images: Tensor) -> Tensor:  # (B, 1, H, W)
    red, green, blue = images.split(1, dim=1)
    return torch.floor(0.2989 * red + 0.587 * green + 0.114 * blue)


def _blurred(images: Tensor) -> Tensor:
    """Each pixel five times and its eight neighbours once, over 13; the border stays."""
    if min(images.shape[-2:]) <= 2:
        return images
    rows = images[..., :-2, :] + images[..., 1:-1, :] + images[..., 2:, :]
    around = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    middle = ((around + 4 * images[..., 1:-1, 1:-1]) / 13).round()
    blurred = images.clone()
    blurred[..., 1:-1, 1:-1] = middle
    return blurred


def _autocontrast(images: Tensor) -> Tensor:
    """Each channel stretched to 0..255; one of a single value stays."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    scale = 255 / torch.where(high > low, high - low, 255.0)
    low = torch.where(high > low, low, 0.0)
    return ((images - low) * scale).clamp(0, 255).floor()


def _equalized(images: Tensor) -> Tensor:
    """Each channel mapped so that its values are about equally frequent."""
    values = images.flatten(2).long()  # (B, 3, H * W)
    counts = torch.zeros(*values.shape[:2], 256, dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, values, torch.ones_like(values))
    of_brightest = counts.gather(2, values.amax(2, keepdim=True))  # (B, 3, 1)
    step = (values.shape[2] - of_brightest) // 255
    below = counts.cumsum(2) - counts  # (B, 3, 256) pixels darker than a value
    lookup = ((below + step // 2) // step.clamp(min=1)).clamp(0, 255)
    lookup[..., 0] = 0
    equalized = lookup.gather(2, values).view_as(images).to(images.dtype)
    return torch.where(step[..., None] > 0, equalized, images)
