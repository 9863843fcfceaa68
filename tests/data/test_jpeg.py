"""With torchcodec the pictures are the same, and what it cannot be trusted with goes to Pillow."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from nofe.data.decode import UnreadableError, decode_image, decode_picture
from nofe.data.jpeg import torchcodec_decoder

SIZE = 16


def jpeg(mode: str = "RGB", size: tuple[int, int] = (40, 30), **options: object) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    picture = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).convert(mode)
    picture.save(buffer, "JPEG", **options)
    return buffer.getvalue()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A stand-in that decodes as torchcodec does, upright, and notes for what it was asked."""
    asked: list[int] = []

    def decode_jpeg(content: bytes) -> torch.Tensor:
        asked.append(len(content))
        with Image.open(io.BytesIO(content)) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
            return torch.from_numpy(np.asarray(upright).copy()).permute(2, 0, 1)

    package, decoders = ModuleType("torchcodec"), ModuleType("torchcodec.decoders")
    decoders.decode_jpeg = decode_jpeg  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchcodec", package)
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", decoders)
    torchcodec_decoder.cache_clear()
    yield asked
    torchcodec_decoder.cache_clear()


def by_pillow(content: bytes, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    with monkeypatch.context() as patched:
        patched.setattr("nofe.data.jpeg.torchcodec_decoder", lambda: None)
        return decode_image(content, SIZE)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_plain_jpegs_are_decoded_by_it(
    decoded: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str
) -> None:
    content = jpeg(mode)
    np.testing.assert_array_equal(decode_image(content, SIZE), by_pillow(content, monkeypatch))
    (tmp_path / "a.jpg").write_bytes(content)
    assert decode_picture(tmp_path / "a.jpg", SIZE).size == (21, 16)
    assert decoded == [len(content)] * 2


@pytest.mark.parametrize("orientation", range(2, 9))
def test_what_is_to_be_turned_is_turned_once(
    decoded: list[int], monkeypatch: pytest.MonkeyPatch, orientation: int
) -> None:
    """torchcodec turns it by itself, which the shape of a square does not tell."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = jpeg(size=(40, 40), exif=exif)
    np.testing.assert_array_equal(decode_image(content, SIZE), by_pillow(content, monkeypatch))
    assert decode_picture(jpeg(exif=exif), SIZE).size == ((21, 16) if orientation < 5 else (16, 21))
    assert decoded == []


def test_the_rest_goes_to_pillow(decoded: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (20, 20), "red").save(buffer, "PNG")
    for content in (jpeg("CMYK"), jpeg(size=(400, 300)), jpeg() + b"trailing", buffer.getvalue()):
        np.testing.assert_array_equal(decode_image(content, SIZE), by_pillow(content, monkeypatch))
    with pytest.raises(UnreadableError, match="truncated"):
        decode_image(jpeg()[:-40], SIZE)
    assert decoded == []


def test_when_it_fails_pillow_decides(decoded: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(content: bytes) -> torch.Tensor:
        raise RuntimeError("no")

    expected = by_pillow(jpeg(), monkeypatch)
    for wrong in (fails, lambda content: torch.zeros(3, 2, 2), lambda content: torch.zeros(3, 30, 40)):
        monkeypatch.setattr("nofe.data.jpeg.torchcodec_decoder", lambda wrong=wrong: wrong)
        np.testing.assert_array_equal(decode_image(jpeg(), SIZE), expected)


def test_an_older_torchcodec_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchcodec", ModuleType("torchcodec"))
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", ModuleType("torchcodec.decoders"))
    torchcodec_decoder.cache_clear()
    assert torchcodec_decoder() is None
    torchcodec_decoder.cache_clear()


def test_an_image_of_the_right_size_is_cut_and_not_resampled() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE + 5, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    np.testing.assert_array_equal(decode_image(buffer.getvalue(), SIZE), pixels[:, 2 : 2 + SIZE].transpose(2, 0, 1))


class TestWithTorchcodecItself:
    """Run where torchcodec is installed."""

    @pytest.fixture(autouse=True)
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        torchcodec_decoder.cache_clear()
        decoder = torchcodec_decoder()
        if decoder is None:
            pytest.skip("torchcodec 0.16 or newer is not installed, or cannot be loaded")
        asked: list[int] = []

        def noting(content: bytes) -> torch.Tensor:
            asked.append(len(content))
            return decoder(content)

        monkeypatch.setattr("nofe.data.jpeg.torchcodec_decoder", lambda: noting)
        return asked

    @pytest.mark.parametrize("mode", ["RGB", "L"])
    @pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 100, "subsampling": 0}], ids=str)
    def test_plain_jpegs(
        self, asked: list[int], monkeypatch: pytest.MonkeyPatch, mode: str, options: dict[str, object]
    ) -> None:
        """Decoders may round differently: by one or two steps of 256, which resizing makes no larger."""
        for size in ((40, 30), (33, 17), (16, 16)):
            content = jpeg(mode, size, **options)
            found, expected = decode_image(content, SIZE), by_pillow(content, monkeypatch)
            assert np.abs(found.astype(int) - expected).max() <= 2
        assert len(asked) == 3

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_orientations(self, monkeypatch: pytest.MonkeyPatch, orientation: int) -> None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        content = jpeg(size=(40, 40), exif=exif)
        assert np.abs(decode_image(content, SIZE).astype(int) - by_pillow(content, monkeypatch)).max() <= 2

    def test_damaged_ones(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Cut short, with a hole, and with an end mark in the wrong place: as Pillow takes them."""
        whole = jpeg(size=(60, 60), quality=95)
        half = len(whole) // 2
        for content in (whole[:half], whole[:half] + bytes(40) + whole[half + 40 :], whole[:half] + b"\xff\xd9"):
            assert outcome(content) == by_pillow_outcome(content, monkeypatch)


def outcome(content: bytes) -> str:
    try:
        return str(decode_image(content, SIZE).shape)
    except UnreadableError as error:
        return str(error)


def by_pillow_outcome(content: bytes, monkeypatch: pytest.MonkeyPatch) -> str:
    with monkeypatch.context() as patched:
        patched.setattr("nofe.data.jpeg.torchcodec_decoder", lambda: None)
        return outcome(content)
