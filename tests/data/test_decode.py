"""Any allowed file gives the picture a viewer would show; any other is refused with a reason."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from nofe.data.decode import FORMATS, UnreadableError, decode_image, decode_picture
from nofe.data.pictures import Stored

SIZE = 8
RED, GREY = (255, 0, 0), (128, 128, 128)


def colour_of(path: Path) -> tuple[int, ...]:
    """The one colour of a picture; it must have only one, give or take what JPEG does to it."""
    pixels = decode_image(path, SIZE)
    assert pixels.shape == (3, SIZE, SIZE)
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert np.ptp(pixels.reshape(3, -1), axis=1).max() <= 3
    return tuple(int(value) for value in pixels.reshape(3, -1).mean(axis=1).round())


def palette_picture(transparent: bool = False) -> Image.Image:
    picture = Image.new("P", (20, 20), 3)
    picture.putpalette([0, 255, 0] * 3 + [255, 0, 0] + [0, 0, 255] * 4)
    if transparent:
        picture.info["transparency"] = 3
    return picture


def wide_grey(value: int) -> Image.Image:
    return Image.fromarray(np.full((20, 20), value, dtype=np.uint16))


def transparent(picture: Image.Image, value: int) -> Image.Image:
    picture.info["transparency"] = value
    return picture


MODES: dict[str, tuple[Image.Image, str, tuple[int, int, int]]] = {
    "colour jpeg": (Image.new("RGB", (20, 20), RED), "jpg", RED),
    "grey jpeg": (Image.new("L", (20, 20), 128), "jpg", GREY),
    "print colours jpeg": (Image.new("CMYK", (20, 20), (0, 255, 255, 0)), "jpg", RED),
    "print black jpeg": (Image.new("CMYK", (20, 20), (0, 0, 0, 255)), "jpg", (0, 0, 0)),
    "colour png": (Image.new("RGB", (20, 20), RED), "png", RED),
    "grey png": (Image.new("L", (20, 20), 128), "png", GREY),
    "two-tone png": (Image.new("1", (20, 20), 1), "png", (255, 255, 255)),
    "palette png": (palette_picture(), "png", RED),
    "transparent palette png": (palette_picture(transparent=True), "png", (255, 255, 255)),
    "opaque png": (Image.new("RGBA", (20, 20), (*RED, 255)), "png", RED),
    "glassy png": (Image.new("RGBA", (20, 20), (0, 0, 0, 127)), "png", GREY),
    "invisible png": (Image.new("RGBA", (20, 20), (0, 0, 0, 0)), "png", (255, 255, 255)),
    "grey glassy png": (Image.new("LA", (20, 20), (0, 127)), "png", GREY),
    "grey opaque png": (Image.new("LA", (20, 20), (128, 255)), "png", GREY),
    "16-bit png": (wide_grey(128 * 257), "png", GREY),
    "16-bit dark png": (wide_grey(1000), "png", (4, 4, 4)),
    "16-bit transparent png": (transparent(wide_grey(1000), 1000), "png", (255, 255, 255)),
    "16-bit opaque png": (transparent(wide_grey(1000), 1001), "png", (4, 4, 4)),
    "16-bit tiff": (wide_grey(65535), "tif", (255, 255, 255)),
    "print colours tiff": (Image.new("CMYK", (20, 20), (0, 255, 255, 0)), "tif", RED),
    "colour bmp": (Image.new("RGB", (20, 20), RED), "bmp", RED),
    "palette gif": (palette_picture(), "gif", RED),
    "transparent gif": (palette_picture(transparent=True), "gif", (255, 255, 255)),
    "colour webp": (Image.new("RGB", (20, 20), RED), "webp", RED),
    "invisible webp": (Image.new("RGBA", (20, 20), (0, 0, 0, 0)), "webp", (255, 255, 255)),
}


@pytest.mark.parametrize("case", MODES)
def test_every_mode_gives_the_right_colour(tmp_path: Path, case: str) -> None:
    picture, suffix, expected = MODES[case]
    path = tmp_path / f"picture.{suffix}"
    picture.save(path, **({"lossless": True} if suffix == "webp" else {}))
    with Image.open(path) as stored:
        assert stored.mode in (picture.mode, "RGB", "RGBA"), "the file does not test what it says"
    assert np.abs(np.subtract(colour_of(path), expected)).max() <= 2


def test_big_endian_16_bits(tmp_path: Path) -> None:
    path = tmp_path / "wide.tif"
    # A TIFF by hand, as Pillow writes only the other byte order: 2 x 2 pixels of 0x8080.
    entries = [(256, 3, 2), (257, 3, 2), (258, 3, 16), (259, 3, 1), (262, 3, 1), (273, 4, 8), (278, 3, 2), (279, 4, 8)]
    directory = struct.pack(">H", len(entries))
    for tag, kind, value in entries:
        short = kind == 3  # which fills the first half of its four bytes
        directory += struct.pack(">HHI", tag, kind, 1) + struct.pack(">I", value << 16 if short else value)
    path.write_bytes(b"MM" + struct.pack(">HI", 42, 16) + b"\x80" * 8 + directory + bytes(4))
    assert colour_of(path) == GREY


def test_the_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert colour_of(tmp_path / "a.gif") == RED


def test_the_format_is_what_the_file_holds_not_its_name(tmp_path: Path) -> None:
    Image.new("RGB", (20, 20), RED).save(tmp_path / "a.jpg", format="PNG")
    assert colour_of(tmp_path / "a.jpg") == RED


REFERENCE = np.zeros((SIZE, SIZE, 3), np.uint8)
REFERENCE[: SIZE // 2, : SIZE // 2] = RED
REFERENCE[: SIZE // 2, SIZE // 2 :] = (0, 255, 0)
REFERENCE[SIZE // 2 :, : SIZE // 2] = (0, 0, 255)
# How a camera held in each of the eight ways stores an upright scene.
STORED_AS = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", STORED_AS)
def test_pictures_are_turned_upright(tmp_path: Path, orientation: int, suffix: str) -> None:
    turn = STORED_AS[orientation]
    upright = Image.fromarray(REFERENCE)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"webp": {"lossless": True}, "jpg": {"quality": 100, "subsampling": 0}}.get(suffix, {})
    path = tmp_path / f"turned.{suffix}"
    (upright if turn is None else upright.transpose(turn)).save(path, exif=exif, **options)
    difference = np.abs(decode_image(path, SIZE).astype(int) - REFERENCE.transpose(2, 0, 1))
    assert difference.max() <= 4


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_is_no_reason_to_give_up(tmp_path: Path) -> None:
    Image.new("RGB", (20, 20), RED).save(tmp_path / "a.jpg", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xffgarbage")
    assert np.abs(np.subtract(colour_of(tmp_path / "a.jpg"), RED)).max() <= 2


@pytest.mark.parametrize("upright", [False, True])
def test_the_middle_is_cut_out(tmp_path: Path, upright: bool) -> None:
    pixels = np.zeros((20, 60, 3), np.uint8)
    pixels[:, 17:43] = RED  # a little more than the middle: resizing looks at the neighbours
    picture = Image.fromarray(pixels)
    (picture.transpose(Image.Transpose.ROTATE_90) if upright else picture).save(tmp_path / "a.png")
    assert colour_of(tmp_path / "a.png") == RED


def test_small_pictures_are_enlarged(tmp_path: Path) -> None:
    Image.new("RGB", (3, 1), RED).save(tmp_path / "a.png")
    assert colour_of(tmp_path / "a.png") == RED


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_shrinking_averages(tmp_path: Path, suffix: str) -> None:
    board = (np.indices((160, 160)).sum(axis=0) % 2 * 255).astype(np.uint8)
    Image.fromarray(board).save(tmp_path / f"a.{suffix}", **({"quality": 100} if suffix == "jpg" else {}))
    assert np.abs(np.subtract(colour_of(tmp_path / f"a.{suffix}"), GREY)).max() <= 2


def test_a_picture_of_one_line_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resized whole before it is cut, it would be 8 million pixels wide and 8 high."""
    Image.new("L", (1_000_000, 1), 128).save(tmp_path / "a.png")
    resize = Image.Image.resize
    sizes = []

    def note(self: Image.Image, size: tuple[int, int], *options: object) -> Image.Image:
        sizes.append(size)
        return resize(self, size, *options)

    monkeypatch.setattr(Image.Image, "resize", note)
    assert colour_of(tmp_path / "a.png") == GREY
    assert sizes == [(SIZE, SIZE)]


def png_claiming(width: int, height: int) -> bytes:
    """A tiny PNG whose header says it is larger."""
    buffer = io.BytesIO()
    Image.new("L", (1, 1)).save(buffer, "PNG")
    raw = buffer.getvalue()
    header = b"IHDR" + struct.pack(">II", width, height) + raw[24:29]
    return raw[:12] + header + struct.pack(">I", zlib.crc32(header)) + raw[33:]


@pytest.mark.parametrize("side", [8001, 9500, 20000])  # over our limit, Pillow's warning, Pillow's error
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bombs_are_refused_before_they_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: int) -> None:
    def load(self: ImageFile.ImageFile) -> None:
        pytest.fail("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    (tmp_path / "bomb.png").write_bytes(png_claiming(side, side))
    with pytest.raises(UnreadableError, match="over the limit of 64 megapixels"):
        decode_image(tmp_path / "bomb.png", SIZE)


def test_a_large_picture_is_no_bomb(tmp_path: Path) -> None:
    Image.new("1", (8000, 8000), 1).save(tmp_path / "large.png")
    assert colour_of(tmp_path / "large.png") == (255, 255, 255)


def noise(suffix: str) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, size=(32, 32, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, {"jpg": "JPEG", "tif": "TIFF"}.get(suffix, suffix))
    return buffer.getvalue()


REASONS = {
    "truncated.jpg": (noise("jpg")[:1000], "^truncated$"),
    "truncated.png": (noise("png")[:1000], "^truncated$"),
    "empty.jpg": (b"", "^empty file$"),
    "text.jpg": (b"not a picture", "^not JPEG, PNG, BMP, GIF, WEBP or TIFF$"),
    "script.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "^not JPEG"),  # Pillow would run gs on it
    "headless.png": (noise("png")[:30], "truncated|damaged|not JPEG"),
}


@pytest.mark.parametrize("name", REASONS)
def test_unreadable_files_get_a_short_reason(tmp_path: Path, name: str) -> None:
    content, reason = REASONS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableError, match=reason) as caught:
        decode_image(tmp_path / name, SIZE)
    assert len(str(caught.value)) < 100
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_get_a_reason(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=r"^no such file"):
        decode_image(tmp_path / "none.jpg", SIZE)
    with pytest.raises(UnreadableError, match=r"^is a directory"):
        decode_image(tmp_path, SIZE)


def test_pixels_without_a_white_are_refused(tmp_path: Path) -> None:
    Image.new("F", (20, 20), 0.5).save(tmp_path / "a.tif")
    with pytest.raises(UnreadableError, match="no telling which value is white"):
        decode_image(tmp_path / "a.tif", SIZE)


def test_truncated_pictures_are_not_filled_up() -> None:
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


@pytest.mark.parametrize("suffix", ["jpg", "png", "bmp", "gif", "webp", "tif"])
@pytest.mark.filterwarnings("ignore")  # Pillow's, about what it finds in damaged files
def test_damage_is_refused_or_decoded_and_nothing_else(tmp_path: Path, suffix: str) -> None:
    raw = noise(suffix)
    rng = np.random.default_rng(1)
    path = tmp_path / f"damaged.{suffix}"
    refused = 0
    for _ in range(150):
        damaged = bytearray(raw)
        for _ in range(rng.integers(1, 6)):
            damaged[rng.integers(min(len(raw), 300))] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            assert decode_image(path, SIZE).shape == (3, SIZE, SIZE)
        except UnreadableError:
            refused += 1
    assert refused > 0


def test_formats_are_those_pillow_can_read() -> None:
    Image.init()
    assert set(FORMATS) <= set(Image.OPEN)


def deep_png(colour_type: int, *samples: int) -> bytes:
    """A PNG of 16 bits a sample, 20 x 20, by hand: Pillow writes grey ones only."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    line = b"\0" + struct.pack(f">{len(samples)}H", *samples) * 20
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 20, 20, 16, colour_type, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(line * 20)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("colour_type", "samples", "expected"),
    [
        (0, (128 * 257,), GREY),
        (2, (65535, 0, 1000), (255, 0, 4)),
        (4, (128 * 257, 65535), GREY),
        (4, (0, 0), (255, 255, 255)),
        (6, (65535, 0, 0, 65535), RED),
        (6, (0, 0, 0, 127 * 257), GREY),
    ],
)
def test_16_bits_in_every_kind_of_png(
    tmp_path: Path, colour_type: int, samples: tuple[int, ...], expected: tuple[int, int, int]
) -> None:
    (tmp_path / "deep.png").write_bytes(deep_png(colour_type, *samples))
    assert np.abs(np.subtract(colour_of(tmp_path / "deep.png"), expected)).max() <= 1


def test_a_signed_or_wide_tiff_is_refused(tmp_path: Path) -> None:
    Image.new("I", (20, 20), 70_000).save(tmp_path / "a.tif")
    with pytest.raises(UnreadableError, match="no telling which value is white"):
        decode_image(tmp_path / "a.tif", SIZE)


@pytest.mark.parametrize("orientation", STORED_AS)
def test_whole_pictures_are_upright_and_keep_their_aspect(tmp_path: Path, orientation: int) -> None:
    """What nofe pack stores."""
    upright = Image.fromarray(REFERENCE).resize((32, 48), Image.Resampling.NEAREST)
    exif = Image.Exif()
    exif[0x0112] = orientation
    turn = STORED_AS[orientation]
    (upright if turn is None else upright.transpose(turn)).save(tmp_path / "a.png", exif=exif)
    found = decode_picture(tmp_path / "a.png", 16)
    assert found.size == (16, 24)
    assert found.mode == "RGB"
    expected = upright.resize((16, 24), Image.Resampling.BICUBIC)
    assert np.abs(np.asarray(found).astype(int) - np.asarray(expected)).max() <= 4


def test_bytes_decode_as_files_do(tmp_path: Path) -> None:
    for suffix in ("jpg", "png", "webp"):
        raw = noise(suffix)
        (tmp_path / f"a.{suffix}").write_bytes(b"before" + raw + b"after")
        part = Stored(str(tmp_path / f"a.{suffix}"), 6, len(raw))
        np.testing.assert_array_equal(decode_image(part, SIZE), decode_image(raw, SIZE))
    with pytest.raises(UnreadableError, match="ends 5 bytes early"):
        decode_image(Stored(str(tmp_path / "a.png"), 6, len(noise("png")) + 10), SIZE)
    with pytest.raises(UnreadableError, match="empty file"):
        decode_image(b"", SIZE)
