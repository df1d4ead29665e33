#!/usr/bin/env python3
"""Golden values of lm.vision: scripts/dev/golden/gen_images.py, with a Python that has torch, torchvision, Pillow and
safetensors, and libturbojpeg.so.0.

Writes spec/golden/_images.safetensors: files' bytes by name ("420.jpg"), and pixels by name and mode ("420.jpg rgb") as
torchvision returns them; where torchvision does not read a kind of file as it is meant (palettes, transparency, fewer
than 8 bits), by the format's definition, which Pillow must confirm. And "grid", images, with "grid 1" and so on,
torchvision's make_grid of them by the options that vision_spec.lua has too. WebP, GIF, BMP and TIFF are as Pillow reads
them, and as torchvision does where it can; "frames.gif frames" are all frames of a GIF.
"""
import ctypes
import io
import os
import struct
import zlib

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors.torch import save_file
from torchvision.io import ImageReadMode, decode_image
from torchvision.utils import make_grid

out = {}
rng = np.random.default_rng(0)


def picture(height, width, channels=3):
    y, x = np.mgrid[0:height, 0:width].astype(float)
    waves = [100 * np.sin(x / 5 + y / 9), 90 * np.cos(x / 4 - y / 7), 110 * np.sin(x * y / 40), 60 * np.cos(x / 3)]
    return np.clip(128 + np.stack(waves[:channels], -1) + rng.normal(0, 9, (height, width, channels)), 0,
                   255).astype(np.uint8)


def put(name, data):
    out[name] = torch.frombuffer(bytearray(data), dtype=torch.uint8)


def expect(name, mode, pixels):  # [H, W, C] or [H, W]
    pixels = np.asarray(pixels)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    out[f"{name} {mode}"] = torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def by_torchvision(name, *modes):
    for mode in modes:
        kind = {"rgba": "RGB_ALPHA"}.get(mode, mode.upper())
        pixels = decode_image(out[name], ImageReadMode[kind], apply_exif_orientation=True)
        if pixels.dtype == torch.uint16:
            pixels = (pixels.to(torch.int32) >> 8).to(torch.uint8)
        out[f"{name} {mode}"] = pixels.contiguous()


# ---- JPEG


def jpeg(name, image, modes=("unchanged", "gray", "rgb"), **options):
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    put(name, file.getvalue())
    by_torchvision(name, *modes)


def turbo(name, pixels, format, sampling, *modes):
    library = ctypes.CDLL("libturbojpeg.so.0")
    library.tjInitCompress.restype = ctypes.c_void_p
    data, size = ctypes.c_void_p(), ctypes.c_ulong()
    height, width, _ = pixels.shape
    pixels = np.ascontiguousarray(pixels)
    failed = library.tjCompress2(ctypes.c_void_p(library.tjInitCompress()), pixels.ctypes.data_as(ctypes.c_void_p),
                                 width, 0, height, format, ctypes.byref(data), ctypes.byref(size), sampling, 85, 0)
    assert not failed
    put(name, ctypes.string_at(data, size.value))
    by_torchvision(name, *modes)


photo = Image.fromarray(picture(43, 61))
for name, sampling in ("444", 0), ("422", 1), ("420", 2):
    jpeg(name + ".jpg", photo, subsampling=sampling, quality=85)
jpeg("progressive.jpg", photo, progressive=True)
jpeg("restarts.jpg", photo, restart_marker_blocks=2)
jpeg("gray.jpg", photo.convert("L"))
jpeg("cmyk.jpg", Image.fromarray(picture(43, 61, 4), "CMYK"), ("gray", "rgb"))
TJPF_RGB, TJPF_CMYK, TJSAMP_420, TJSAMP_440, TJSAMP_411 = 0, 11, 2, 4, 5
turbo("440.jpg", picture(43, 61), TJPF_RGB, TJSAMP_440, "rgb")
turbo("411.jpg", picture(43, 61), TJPF_RGB, TJSAMP_411, "rgb")
turbo("ycck.jpg", picture(43, 61, 4), TJPF_CMYK, TJSAMP_420, "gray", "rgb")


def tiff(orientation, order):
    entries = [(0x010F, 2, 4, b"abc\0"), (0x0112, 3, 1, struct.pack(order + "HH", orientation, 0))]
    text = (b"II" if order == "<" else b"MM") + struct.pack(order + "HIH", 42, 8, len(entries))
    for tag, kind, count, value in entries:
        text += struct.pack(order + "HHI", tag, kind, count) + value
    return text + struct.pack(order + "I", 0)


small = Image.fromarray(picture(21, 35))
for orientation in range(1, 9):
    name = f"exif {orientation}.jpg"
    jpeg(name, small, ("rgb",), exif=b"Exif\0\0" + tiff(orientation, "<>"[orientation % 2]))
    seen = ImageOps.exif_transpose(Image.open(io.BytesIO(out[name].numpy().tobytes())))
    assert torch.from_numpy(np.asarray(seen).transpose(2, 0, 1).copy()).shape == out[name + " rgb"].shape

# ---- PNG (W3C recommendation, second edition)

GRAY, RGB, PALETTE, GRAY_ALPHA, RGBA = 0, 2, 3, 4, 6
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def scanlines(samples, depth):
    text = b""
    for row in samples.reshape(samples.shape[0], -1):
        if depth == 16:
            line = row.astype(">u2").tobytes()
        else:
            bits = (row[:, None].astype(np.uint8) >> np.arange(depth - 1, -1, -1, dtype=np.uint8)) & 1
            line = np.packbits(bits.reshape(-1)).tobytes()
        text += b"\0" + line
    return text


def png(name, samples, depth, kind, chunks=b"", interlaced=False):  # samples: [H, W, C]
    height, width, _ = samples.shape
    if interlaced:
        data = b"".join(scanlines(samples[y::dy, x::dx], depth) for x, y, dx, dy in ADAM7
                        if samples[y::dy, x::dx].size)
    else:
        data = scanlines(samples, depth)
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced)
    put(name, b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunks + chunk(b"IDAT", zlib.compress(data, 9)) +
        chunk(b"IEND", b""))


def confirmed(name, mode, pixels):
    theirs = Image.open(io.BytesIO(out[name].numpy().tobytes())).convert({"rgb": "RGB", "rgba": "RGBA"}[mode])
    assert (np.asarray(theirs) == pixels).all(), name
    expect(name, mode, pixels)


def random(depth, channels, height=11, width=13):
    return rng.integers(0, 1 << depth, (height, width, channels))


def to_8(samples, depth):
    return (samples >> 8 if depth == 16 else samples * (255 // ((1 << depth) - 1))).astype(np.uint8)


for interlaced in False, True:
    ending = " interlaced.png" if interlaced else ".png"
    for depth in 1, 2, 4, 8, 16:
        samples, name = random(depth, 1), f"gray {depth}{ending}"
        png(name, samples, depth, GRAY, interlaced=interlaced)
        expect(name, "unchanged", to_8(samples, depth))
        expect(name, "rgb", to_8(samples, depth).repeat(3, 2))
        key = samples[3, 4, 0]  # one level is transparent
        png("transparent " + name, samples, depth, GRAY, chunk(b"tRNS", struct.pack(">H", key)), interlaced)
        with_alpha = np.concatenate([to_8(samples, depth), np.where(samples == key, 0, 255).astype(np.uint8)], 2)
        expect("transparent " + name, "unchanged", with_alpha)
        expect("transparent " + name, "gray", with_alpha[..., :1])
        if depth == 16:
            continue
        palette = rng.integers(0, 256, (1 << depth, 3)).astype(np.uint8)
        alpha = rng.integers(0, 256, 1 << depth - 1).astype(np.uint8)  # of the first half
        plte, name = chunk(b"PLTE", palette.tobytes()), f"palette {depth}{ending}"
        if depth < 8:
            samples = random(depth, 1)
        png(name, samples, depth, PALETTE, plte, interlaced)
        confirmed(name, "rgb", palette[samples[..., 0]])
        expect(name, "unchanged", palette[samples[..., 0]])
        png("transparent " + name, samples, depth, PALETTE, plte + chunk(b"tRNS", alpha.tobytes()), interlaced)
        all_alpha = np.concatenate([alpha, np.full((1 << depth) - len(alpha), 255, np.uint8)])
        rgba = np.concatenate([palette, all_alpha[:, None]], 1)[samples[..., 0]]
        confirmed("transparent " + name, "rgba", rgba)
        expect("transparent " + name, "unchanged", rgba)
    for depth in 8, 16:
        for kind, channels, title in (RGB, 3, "rgb"), (GRAY_ALPHA, 2, "gray_alpha"), (RGBA, 4, "rgba"):
            samples, name = random(depth, channels), f"{title} {depth}{ending}"
            png(name, samples, depth, kind, interlaced=interlaced)
            expect(name, "unchanged", to_8(samples, depth))
            by_torchvision(name, "gray", "rgb")
        samples = random(depth, 3)
        key = samples[3, 4]
        png(f"transparent rgb {depth}{ending}", samples, depth, RGB,
            chunk(b"tRNS", struct.pack(">HHH", *key.tolist())), interlaced)
        alpha = np.where((samples == key).all(2, keepdims=True), 0, 255).astype(np.uint8)
        expect(f"transparent rgb {depth}{ending}", "rgba", np.concatenate([to_8(samples, depth), alpha], 2))
png("gamma.png", random(8, 3), 8, RGB, chunk(b"gAMA", struct.pack(">I", 45455)))
by_torchvision("gamma.png", "gray", "rgb")
for orientation in 3, 6:
    samples = random(8, 3, 5, 9)
    png(f"exif {orientation}.png", samples, 8, RGB, chunk(b"eXIf", tiff(orientation, ">")))
    by_torchvision(f"exif {orientation}.png", "rgb")
put("huge", b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 100000, 100000, 8, RGB, 0, 0, 0)) +
    chunk(b"IDAT", b""))

# ---- grids

images = torch.from_numpy(rng.normal(0, 1, (5, 3, 4, 6)).astype(np.float32))
out["grid"] = images
for i, options in enumerate([
        {}, {"nrow": 2}, {"nrow": 3, "padding": 0}, {"padding": 1, "pad_value": 0.5}, {"normalize": True},
        {"normalize": True, "value_range": (-1, 1)}, {"normalize": True, "scale_each": True, "nrow": 4}]):
    out[f"grid {i + 1}"] = make_grid(images, **options).contiguous()

# ---- WebP, GIF, BMP and TIFF


def seen(name, *modes):
    """As Pillow reads it: its modes of our names, and "unchanged" as the first of them."""
    with Image.open(io.BytesIO(out[name].numpy().tobytes())) as image:
        image = ImageOps.exif_transpose(image)
        for i, mode in enumerate(modes):
            pixels = np.array(image.convert({"gray": "L", "gray_alpha": "LA"}.get(mode, mode.upper())))
            if name.endswith(".gif") and mode == "rgba":  # the background shows, not the transparent color's own
                first = 3 * image.info["background"]
                pixels[pixels[..., 3] == 0, :3] = image.getpalette()[first:first + 3]
            expect(name, mode, pixels)
            if i == 0:
                expect(name, "unchanged", pixels)


def saved(name, image, *modes, format=None, **options):
    file = io.BytesIO()
    image.save(file, format or name.rsplit(".", 1)[1].upper(), **options)
    put(name, file.getvalue())
    seen(name, *modes)


color, levels = Image.fromarray(picture(13, 17)), Image.fromarray(picture(13, 17, 1)[..., 0])
colors = color.quantize(16)
with_alpha = color.convert("RGBA")
with_alpha.putalpha(Image.fromarray(rng.integers(0, 256, (13, 17)).astype(np.uint8)))

saved("lossy.webp", color, "rgb", "gray", quality=80)
saved("lossless.webp", color, "rgb", lossless=True)
saved("alpha.webp", with_alpha, "rgba", lossless=True, exact=True)
saved("lossy alpha.webp", with_alpha, "rgba", quality=70)
for name in "lossy.webp", "lossless.webp", "alpha.webp":
    assert (decode_image(out[name], ImageReadMode.UNCHANGED) == out[name + " unchanged"]).all(), name

saved("palette.gif", colors, "rgb", "gray")
saved("levels.gif", levels, "rgb")
saved("interlaced.gif", colors, "rgb", interlace=True)
saved("transparent.gif", colors, "rgba", transparency=int(np.asarray(colors)[2, 3]))
steps = [color.quantize(8)]
for i in range(1, 5):
    step = steps[0].convert("RGB")
    step.paste((50 * i, 255 - 50 * i, 0), (2 * i, i, 2 * i + 5, i + 4))
    steps.append(step.quantize(8))
for name, disposal in ("frames.gif", 1), ("background.gif", 2), ("previous.gif", [1, 3, 3, 2, 1]):
    saved(name, steps[0], "rgb", save_all=True, append_images=steps[1:], disposal=disposal, duration=10)
    with Image.open(io.BytesIO(out[name].numpy().tobytes())) as image:
        frames = []
        for i in range(image.n_frames):
            image.seek(i)
            frames.append(torch.from_numpy(np.asarray(image.convert("RGB")).transpose(2, 0, 1).copy()))
    out[name + " frames"] = torch.stack(frames)
    assert len(frames) == 5, name


def bmp(name, bits, width, height, pixels, compression=0, palette=(), masks=b"", *modes):
    used = b"".join(bytes([b, g, r, 0]) for r, g, b in palette)
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, len(pixels), 0, 0, len(palette), 0)
    start = 14 + 40 + len(masks) + len(used)
    put(name, b"BM" + struct.pack("<IHHI", start + len(pixels), 0, 0, start) + info + masks + used + pixels)
    seen(name, *modes)


saved("rgb.bmp", color, "rgb", "gray")
saved("gray.bmp", levels, "gray")
saved("palette.bmp", colors, "rgb")
saved("bits.bmp", color.convert("1"), "gray")
rows = rng.integers(0, 256, (6, 28)).astype(np.uint8).tobytes()  # 13 pixels of 16 bits and 2 bytes to fill, or 7 of 32
bmp("555.bmp", 16, 13, 6, rows, 0, (), b"", "rgb")
bmp("565.bmp", 16, 13, 6, rows, 3, (), struct.pack("<III", 0xF800, 0x7E0, 0x1F), "rgb")
bmp("down.bmp", 32, 7, -6, rows, 0, (), b"", "rgb")
eight = [(r, 255 - r, 3 * r % 256) for r in range(0, 256, 32)]
bmp("4 bits.bmp", 4, 9, 2, bytes([0x01, 0x23, 0x45, 0x67, 0x10, 0, 0, 0, 0x77, 0x66, 0x55, 0x44, 0x30, 0, 0, 0]), 0, eight,
    b"", "rgb")

for name, options in ("plain.tiff", {}), ("lzw.tiff", {"compression": "tiff_lzw"}), (
        "deflate.tiff", {"compression": "tiff_adobe_deflate"}), ("packbits.tiff", {"compression": "packbits"}):
    saved(name, color, "rgb", **options)
saved("jpeg.tiff", color, "rgb", compression="jpeg")
saved("gray.tiff", levels, "gray")
saved("palette.tiff", colors, "rgb")
saved("alpha.tiff", with_alpha, "rgba", compression="tiff_lzw")
saved("gray_alpha.tiff", with_alpha.convert("LA"), "gray_alpha")
saved("bits.tiff", color.convert("1"), "gray", compression="group4")
saved("exif 6.tiff", color, "rgb", tiffinfo={0x0112: 6})
deep = rng.integers(0, 1 << 16, (13, 17)).astype(np.uint16)
file = io.BytesIO()
Image.fromarray(deep).save(file, "TIFF")
put("deep.tiff", file.getvalue())
expect("deep.tiff", "gray", (deep >> 8).astype(np.uint8))

here = os.path.dirname(os.path.abspath(__file__))
save_file(out, os.path.join(here, "../../../spec/golden/_images.safetensors"))
