"""Every mode an image file can have, and every way it can be broken."""

import io
import struct
import threading
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from neotta.data.decode import MAX_PIXELS, decode, probe
from neotta.errors import DataError


def encode(image, fmt="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, fmt, **options)
    return buffer.getvalue()


@pytest.fixture
def picture():
    """Height and width differ, no symmetry: a wrong rotation cannot hide."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (5, 9, 3), dtype=np.uint8)


def test_rgb_comes_back_bit_for_bit_from_bytes_and_from_a_path(picture, tmp_path):
    data = encode(Image.fromarray(picture))
    path = tmp_path / "picture.png"
    path.write_bytes(data)
    for source in (data, path, str(path)):
        image = decode(source)
        assert image.dtype == np.uint8
        assert image.flags.writeable
        np.testing.assert_array_equal(image, picture)


def test_grey_and_two_level_are_repeated_over_the_channels(picture):
    grey = Image.fromarray(picture[..., 0])
    np.testing.assert_array_equal(decode(encode(grey)), np.repeat(picture[..., :1], 3, axis=2))
    two = grey.point(lambda value: 255 * (value > 127), mode="1")
    np.testing.assert_array_equal(decode(encode(two))[..., 2], 255 * (picture[..., 0] > 127))


def test_palette_gives_its_colours():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    np.testing.assert_array_equal(decode(encode(image)), [[[10, 20, 30], [40, 50, 60]]])


def test_transparency_is_laid_on_white():
    rgba = np.array([[[0, 0, 0, 0], [100, 150, 200, 255], [0, 0, 0, 51]]], dtype=np.uint8)
    np.testing.assert_array_equal(
        decode(encode(Image.fromarray(rgba))), [[[255, 255, 255], [100, 150, 200], [204, 204, 204]]]
    )
    grey_alpha = Image.fromarray(rgba[..., [0, 3]])
    assert grey_alpha.mode == "LA"
    np.testing.assert_array_equal(decode(encode(grey_alpha))[0, :, 0], [255, 100, 204])


@pytest.mark.parametrize("fmt", ["PNG", "GIF"])
def test_transparent_palette_entry_is_laid_on_white(fmt):
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    np.testing.assert_array_equal(decode(encode(image, fmt, transparency=0)), [[[255, 255, 255], [40, 50, 60]]])


def test_palette_with_alpha_per_entry_is_laid_on_white():
    image = Image.new("P", (2, 1))
    image.putpalette([0, 0, 0, 40, 50, 60])
    image.putpixel((1, 0), 1)
    np.testing.assert_array_equal(
        decode(encode(image, transparency=bytes([51, 255]))), [[[204, 204, 204], [40, 50, 60]]]
    )


def test_colour_key_of_an_rgb_png_is_laid_on_white():
    image = Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], dtype=np.uint8))
    np.testing.assert_array_equal(decode(encode(image, transparency=(1, 2, 3))), [[[255, 255, 255], [4, 5, 6]]])


def test_cmyk_jpeg_becomes_rgb():
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    red = decode(encode(image, "JPEG", quality=95))
    assert np.abs(red.astype(int) - [255, 0, 0]).max() <= 3


@pytest.mark.parametrize("fmt", ["PNG", "TIFF"])
def test_sixteen_bit_grey_is_scaled_so_that_white_stays_white(fmt):
    deep = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    np.testing.assert_array_equal(decode(encode(Image.fromarray(deep), fmt))[0, :, 1], [0, 1, 128, 255])


def test_floating_point_between_0_and_1_is_scaled_and_anything_else_refused():
    unit = Image.fromarray(np.array([[0.0, 0.5, 1.0]], dtype=np.float32))
    np.testing.assert_array_equal(decode(encode(unit, "TIFF"))[0, :, 0], [0, 128, 255])
    for value in (300.0, -1.0, np.nan):
        wild = Image.fromarray(np.full((2, 2), value, dtype=np.float32))
        with pytest.raises(DataError, match="0 to 1 was expected"):
            decode(encode(wild, "TIFF"))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("fmt", ["PNG", "TIFF", "WEBP"])
def test_exif_orientation_is_applied(picture, orientation, fmt):
    stored = {  # how a camera held that way would have stored the upright picture
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.swapaxes(0, 1),
        6: lambda a: np.rot90(a, 1),
        7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
        8: lambda a: np.rot90(a, -1),
    }[orientation](picture)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if fmt == "WEBP" else {}
    data = encode(Image.fromarray(np.ascontiguousarray(stored)), fmt, exif=exif, **options)
    np.testing.assert_array_equal(decode(data), picture)


def test_a_broken_exif_block_does_not_spoil_the_picture(picture):
    whole = encode(Image.fromarray(picture), "JPEG")
    broken = encode(Image.fromarray(picture), "JPEG", exif=b"Exif\0\0MM\0\x2a\xff\xff\xff\xff")
    np.testing.assert_array_equal(decode(broken), decode(whole))


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP", "GIF", "TIFF"])
def test_truncated_files_are_refused(fmt):
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = encode(Image.fromarray(noise), fmt)
    with pytest.raises(DataError):
        decode(data[: len(data) // 2])


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b"%!PS-Adobe-3.0 EPSF-3.0\n", b"<html>not found</html>"])
def test_what_is_no_image_is_refused(data):
    with pytest.raises(DataError, match="not an image of a known format"):
        decode(data)
    with pytest.raises(DataError, match="not an image of a known format"):
        probe(data)


def test_missing_file_and_folder_are_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.png.*No such file"):
        decode(tmp_path / "gone.png")
    with pytest.raises(DataError, match="directory"):
        decode(tmp_path)


def bomb(width, height):
    """A PNG that claims a size and has nothing behind it."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [10_000, 100_000])  # where Pillow warns, and where Pillow raises an error
def test_decompression_bombs_are_refused_without_a_warning(side):
    assert side * side > MAX_PIXELS
    for read in (decode, probe):
        with pytest.raises(DataError, match=r"more (pixels )?than the limit"):
            read(bomb(side, side))


def test_the_pixel_limit_can_be_lowered(picture):
    data = encode(Image.fromarray(picture))
    assert decode(data, max_pixels=45).shape == (5, 9, 3)
    with pytest.raises(DataError, match="9 x 5 pixels"):
        decode(data, max_pixels=44)


def test_probe_reads_the_header_alone(picture):
    data = encode(Image.fromarray(picture))
    assert probe(data) == ("PNG", "RGB", 9, 5)
    assert probe(data[:60]) == ("PNG", "RGB", 9, 5)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["JPEG", "PNG", "GIF", "TIFF", "BMP", "WEBP"]), st.data())
def test_damaged_bytes_give_an_image_or_a_data_error(fmt, data):
    image = Image.fromarray(np.arange(12 * 12 * 3, dtype=np.uint8).reshape(12, 12, 3))
    damaged = bytearray(encode(image, fmt))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        result = decode(bytes(damaged), max_pixels=1_000_000)
    except DataError:
        return
    assert result.dtype == np.uint8
    assert result.shape[2] == 3


def test_threads_leave_the_warning_filters_as_they_were():
    before = list(warnings.filters)
    pictures = [encode(Image.new("RGB", (64, 64))), bomb(10_000, 10_000)]

    def work():
        for data in pictures * 20:
            try:
                decode(data)
            except DataError:
                continue

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before


def test_other_warnings_of_the_program_are_still_shown_once(recwarn):
    warnings.simplefilter("default")
    data = encode(Image.new("RGB", (8, 8)))
    for _ in range(3):
        decode(data)
        warnings.warn("said once", stacklevel=1)
    assert [str(warning.message) for warning in recwarn] == ["said once"]


def chunk(kind, data):
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def many(kind, count):
    """A file of many tiny blocks, which Pillow would walk through in Python."""
    if kind.startswith("PNG"):
        head = (64).to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
        pixels = chunk(b"IDAT", zlib.compress(bytes(64 * 193))) + chunk(b"IEND", b"")
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(kind[4:].encode(), b"") * count + pixels
    return {
        "JPEG": b"\xff\xd8\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0" + b"\x01" * count + b"\xff\xd9",
        "GIF": b"GIF89a\x08\0\x08\0\x80\0\0" + bytes(6) + b"\x21\xfe\1a\0" * count + b"\x3b",
        "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x14ftypjp2 \0\0\0\0jp2 " + b"\0\0\0\x08free" * count,
        "PPM of numbers": b"P3\n100 100\n255\n" + b"1 " * count,
        "PPM of other depth": b"P6\n400 400\n254\n" + b"12" * count,
        "comments": b"P6\n#" + b"1" * count,
    }[kind]


@pytest.mark.parametrize(
    "kind",
    ["PNG tEXt", "PNG IDAT", "JPEG", "GIF", "JPEG 2000", "PPM of numbers", "PPM of other depth", "comments"],
)
def test_files_of_many_tiny_blocks_are_rejected(kind):
    for count in (50_000, 500_000):
        with pytest.raises(DataError, match=r"too many blocks|numbers"):
            decode(many(kind, count))


def test_a_file_with_as_many_blocks_as_encoders_make_is_read(picture):
    large = np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), dtype=np.uint8)
    data = encode(Image.fromarray(large))
    start = data.index(b"IDAT") - 4
    packed = zlib.compress(b"".join(b"\0" + row.tobytes() for row in large))
    blocks = b"".join(chunk(b"IDAT", packed[place : place + 4096]) for place in range(0, len(packed), 4096))
    np.testing.assert_array_equal(decode(data[:start] + blocks + chunk(b"IEND", b"")), large)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "I;16", "CMYK"])
def test_a_large_image_is_converted_as_a_small_one(mode):
    values = np.random.default_rng(0).integers(0, 256, (2100, 1000, 4), dtype=np.uint8)
    if mode == "I;16":
        image = Image.fromarray(values[..., 0].astype(np.uint16) * 250)
    else:
        image = Image.fromarray(values, "RGBA" if mode in ("RGBA", "LA", "P") else "CMYK").convert(mode)
    whole = decode(encode(image, "TIFF"))
    for top in (0, 1040, 2090):
        strip = decode(encode(image.crop((0, top, 1000, top + 10)), "TIFF"))
        np.testing.assert_array_equal(whole[top : top + 10], strip)
