"""Winograd's minimal filtering: convolutions of 3 x 3 in a third of the multiplications (Lavin & Gray, 2016).

F(4 x 4, 3 x 3) computes a tile of 4 x 4 outputs from one of 6 x 6 inputs. Inputs and weights are taken to 36 positions
by a linear map each; there a convolution is 36 small matrix products over the channels, 2.25 multiplications for an
output instead of 9, and a third linear map takes their results to outputs. The last tiles of a map may stick out: on
7 x 7 pixels it is a third of the multiplications, not a quarter.

The numbers are those of the convolution, but for rounding: in float32 to about 5e-6 of the largest output, where a
direct convolution has 5e-7. F(2 x 2, 3 x 3) rounds better, and was no faster than the direct convolutions of oneDNN.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nofe.architectures.packing import Computed, convolution_with

TILE, KERNEL, REACH = 4, 3, 6  # outputs, taps and inputs of a tile, along one axis
POSITIONS = REACH * REACH
# Where polynomials are evaluated, with infinity. Of the usual 2 and -2 one is inverted: a third of the rounding error.
POINTS = (0.0, 1.0, -1.0, 2.0, -0.5)
CACHE = 16 * 2**20  # bytes: experts are taken together while their positions stay in a processor's cache
AT_ONE = 1 * REACH + 1  # the position of 1 in both axes: what is added there is added to all outputs of the tile


class _TileRow(NamedTuple):
    """The tiles beside each other, which read and write the same rows of pixels."""

    read: slice  # of the pixels of a map
    to_positions: Tensor  # (tiles * 36, pixels read)
    to_pixels: Tensor  # (pixels written, tiles * 36)
    written: slice


class Winograd:
    """K convolutions of 3 x 3 with stride 1, on maps of one size, with weights that stay as they are.

    Weights are (K*O, D, 3, 3), a bias (K*O). `shared`: all K read the same map (N, D, h, w), instead of each its own
    part of (N, K*D, h, w).
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, experts: int, maps: Tensor, padding: tuple[int, int], *, shared: bool
    ) -> None:
        images, _, height, width = maps.shape
        self.size = height, width
        self._outputs = height + 2 * padding[0] - KERNEL + 1, width + 2 * padding[1] - KERNEL + 1
        self._rows = _tile_rows(self.size, padding, weight)
        tiles = sum(len(row.to_positions) for row in self._rows) // POSITIONS
        inputs, outputs = weight.shape[1], len(weight) // experts
        fit = max(1, CACHE // (images * tiles * POSITIONS * max(inputs, outputs) * weight.itemsize))
        at_once = -(-experts // -(-experts // fit))  # in even parts
        self._channels = len(weight)
        self._inputs_a_part = None if shared else at_once * inputs
        self._outputs_a_part = at_once * outputs
        self._products: list[tuple[Computed, Tensor]] = []
        taps = weight.new_tensor(_matrices().weights)
        biases = weight.new_zeros(len(weight)) if bias is None else bias
        for own, added in zip(*(each.split(self._outputs_a_part) for each in (weight, biases)), strict=True):
            groups = POSITIONS if shared else POSITIONS * (len(own) // outputs)
            by_position = torch.einsum("ay,bx,odyx->abod", taps, taps, own).reshape(-1, inputs, 1, 1)
            at_one = weight.new_zeros(POSITIONS, len(own))
            at_one[AT_ONE] = added
            like = 1, groups * inputs, images * tiles, 1
            self._products.append((convolution_with(by_position, like, groups=groups), at_one.flatten()))

    def __call__(self, maps: Tensor) -> Tensor:  # (N, D, h, w) or (N, K*D, h, w)
        pixels = maps.permute(0, 2, 3, 1).flatten(1, 2)  # (N, h*w, channels), a view of channels last
        outputs = maps.new_empty(len(maps), self._outputs[0] * self._outputs[1], self._channels)
        positions: Iterable[Tensor]
        if self._inputs_a_part is None:
            positions = [self._to_positions(pixels)] * len(self._products)
        else:
            positions = map(self._to_positions, pixels.split(self._inputs_a_part, dim=2))  # when its turn comes
        each = zip(self._products, positions, outputs.split(self._outputs_a_part, dim=2), strict=True)
        for (multiplied, bias), given, wanted in each:
            self._to_pixels(multiplied(given, bias), wanted)
        by_pixel: Tensor = outputs.unflatten(1, self._outputs)
        return by_pixel.permute(0, 3, 1, 2)  # (N, K*O, h', w'), channels last

    def _to_positions(self, pixels: Tensor) -> Tensor:  # (N, h*w, D)
        """(1, 36*D, N*tiles, 1), channels last: products at 36 positions are a grouped convolution of one pixel."""
        images, _, channels = pixels.shape
        tiles = self._rows[0].to_positions.shape[0]
        positions = pixels.new_empty(len(self._rows), images, tiles, channels)
        for row, own in zip(self._rows, positions, strict=True):
            torch.bmm(row.to_positions.expand(images, -1, -1), pixels[:, row.read], out=own)
        return positions.view(1, -1, 1, POSITIONS * channels).permute(0, 3, 1, 2)

    def _to_pixels(self, products: Tensor, pixels: Tensor) -> None:  # (1, 36*O, N*tiles, 1), (N, h*w, O)
        images, _, channels = pixels.shape
        by_row = products.permute(0, 2, 3, 1).reshape(len(self._rows), images, -1, channels)
        for row, own in zip(self._rows, by_row, strict=True):
            # Not with out=: torch has a fast way for results in one piece alone.
            pixels[:, row.written] = torch.bmm(row.to_pixels.expand(images, -1, -1), own)


def _tile_rows(size: tuple[int, int], padding: tuple[int, int], like: Tensor) -> list[_TileRow]:
    (height, width), (above, beside) = size, padding
    down_in, down_out = _along(height, above)  # (tiles, 6, h), (tiles, 6, outputs)
    right_in, right_out = _along(width, beside)
    rows, columns = down_out.shape[-1], right_out.shape[-1]
    made = []
    for tile, (given, wanted) in enumerate(zip(down_in, down_out, strict=True)):
        first = tile * TILE
        read = slice(max(first - above, 0), max(min(first - above + REACH, height), 0))
        written = slice(first, min(first + TILE, rows))
        to_positions = torch.einsum("ay,tbx->tabyx", given[:, read], right_in).flatten(0, 2).flatten(1)
        to_pixels = torch.einsum("ay,tbx->yxtab", wanted[:, written], right_out).flatten(0, 1).flatten(1)
        made.append(
            _TileRow(
                slice(read.start * width, read.stop * width),
                to_positions.to(like),
                to_pixels.to(like),
                slice(written.start * columns, written.stop * columns),
            )
        )
    return made


def _along(size: int, padding: int) -> tuple[Tensor, Tensor]:
    """From inputs to positions and from positions to outputs along one axis: (tiles, 6, size), (tiles, 6, outputs)."""
    outputs = size + 2 * padding - KERNEL + 1
    tiles = -(-outputs // TILE)
    of_tile = _matrices()
    to_positions = torch.zeros(tiles, REACH, tiles * TILE + KERNEL - 1, dtype=torch.float64)
    to_outputs = torch.zeros(tiles, REACH, tiles * TILE, dtype=torch.float64)
    for tile in range(tiles):
        first = tile * TILE
        to_positions[tile, :, first : first + REACH] = torch.from_numpy(of_tile.inputs)
        to_outputs[tile, :, first : first + TILE] = torch.from_numpy(of_tile.outputs)
    return to_positions[:, :, padding : padding + size], to_outputs[:, :, :outputs]


class _Matrices(NamedTuple):
    """Of one tile along one axis, by position: from inputs (6, 6), from weights (6, 3), to outputs (6, 4)."""

    inputs: NDArray[np.float64]  # B^T in the paper
    weights: NDArray[np.float64]  # G
    outputs: NDArray[np.float64]  # A


def _matrices() -> _Matrices:
    """Cook and Toom: polynomials are multiplied by their values at points, and infinity has the highest coefficient."""
    points = np.array(POINTS)
    others = [np.delete(points, place) for place in range(len(points))]
    infinity = np.eye(REACH)[-1]
    by_point = [np.append(np.poly(roots)[::-1], 0) for roots in others]  # zero at all other points
    weights = np.vander(points, KERNEL, increasing=True) / [
        [np.prod(p - q)] for p, q in zip(points, others, strict=True)
    ]
    return _Matrices(
        inputs=np.array([*by_point, np.poly(points)[::-1]]),
        weights=np.array([*weights, infinity[-KERNEL:]]),
        outputs=np.array([*np.vander(points, TILE, increasing=True), infinity[-TILE:]]),
    )
