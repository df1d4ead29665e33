#!/usr/bin/env python3
"""Golden values of lm.vision.transforms.functional: scripts/dev/golden/gen_transforms.py, with a Python that has torch, torchvision
and safetensors.

Writes spec/golden/transforms.lua, a list of {expression in Lua, shapes, dtypes}, and _transforms.safetensors, what
torchvision's tensors make of the same (the number of the expression: the result). Images are made by a formula that
transforms_spec.lua has too.
"""
import itertools
import os
import sys

import torch
import torchvision
from safetensors.torch import save_file
from torchvision.transforms.v2 import functional as F  # used by the expressions

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "spec", "golden")


def image(shape, dtype):
    """Noise: integers, or the same over 256."""
    n = 1
    for size in shape:
        n *= size
    v = ((torch.arange(n, dtype=torch.int64) * 2654435761) >> 16) & 255
    v = v.reshape(shape)
    of = getattr(torch, dtype)
    return (v & 1).bool() if dtype == "bool" else (v.double() / 256).to(of) if of.is_floating_point else v.to(of)


CASES = []  # Python, Lua, shapes, dtypes


def case(python, lua, *shapes, dtypes=("uint8", "float32")):
    CASES.append((python, lua, shapes, dtypes))


RGB, GRAY, RGBA = (3, 13, 17), (1, 12, 9), (4, 10, 11)


def resize(size, **options):
    python, lua = [], []
    for key, value in options.items():
        python.append("%s=%r" % (key, value if key != "interpolation" else value))
        lua.append("%s = %s" % (key, {True: "true", False: "false"}.get(value, repr(value).replace("'", '"'))))
    size_lua = "{%s}" % ", ".join(map(str, size)) if isinstance(size, list) else str(size)
    return ("F.resize(x, %r, %s)" % (size, ", ".join(python)),
            "F.resize(x, %s, {%s})" % (size_lua, ", ".join(lua)))


for size in ([7, 9], [17, 21], [13, 5], [20, 17], [1, 1], 6, 15):
    for mode in ("bilinear", "bicubic"):
        for antialias in (True, False):
            # PyTorch 2.15's uint8 kernel fails an assertion where one pixel comes out or goes in.
            dtypes = ["float32"] if size == [1, 1] else ["uint8", "float32"]
            case(*resize(size, interpolation=mode, antialias=antialias), RGB, dtypes=dtypes)
case(*resize([5, 5], interpolation="bilinear", antialias=True), GRAY, RGBA)
case(*resize([5, 5], interpolation="bilinear", antialias=True), (1, 1, 1), (2, 40, 1), (3, 1, 33), dtypes=["float32"])
case(*resize([5, 5], interpolation="bilinear", antialias=True), (3, 2, 33), dtypes=["uint8"])
case(*resize([37, 41], interpolation="bilinear", antialias=True), (3, 71, 93), dtypes=["uint8"])
case(*resize([40, 35], interpolation="bicubic", antialias=True), (1, 90, 70), dtypes=["uint8"])
case(*resize([70, 33], interpolation="bilinear", antialias=True), (1, 34, 66), dtypes=["uint8"])
case(*resize([11, 9], interpolation="bilinear", antialias=True), (2, 30, 35), dtypes=["float64"])
case(*resize([4, 5], interpolation="bicubic", antialias=True), (1, 12, 9), dtypes=["float64"])
for mode in ("nearest", "nearest-exact"):
    for size in ([7, 9], [17, 21], 5):
        case(*resize(size, interpolation=mode), RGB)
case(*resize(10, interpolation="bilinear", max_size=12), RGB)
case(*resize(10, interpolation="bilinear", max_size=30), (3, 9, 17))

case("F.crop(x, 2, 3, 5, 6)", "F.crop(x, 2, 3, 5, 6)", RGB)
case("F.crop(x, -2, 3, 9, 30)", "F.crop(x, -2, 3, 9, 30)", RGB)
for size in ("[6, 8]", "7", "[20, 5]", "[4, 30]", "[21, 22]"):
    case("F.center_crop(x, %s)" % size, "F.center_crop(x, %s)" % size.replace("[", "{").replace("]", "}"), RGB, GRAY)
case("F.resized_crop(x, 2, 3, 9, 8, [5, 12])", "F.resized_crop(x, 2, 3, 9, 8, {5, 12})", RGB)
for mode in ("constant", "edge", "reflect", "symmetric"):
    for by in ("3", "[1, 4]", "[0, 2, 5, 1]"):
        case("F.pad(x, %s, padding_mode='%s')" % (by, mode),
             "F.pad(x, %s, {padding_mode = \"%s\"})" % (by.replace("[", "{").replace("]", "}"), mode), GRAY)
case("F.pad(x, [7, 3], padding_mode='symmetric')", "F.pad(x, {7, 3}, {padding_mode = \"symmetric\"})", (1, 3, 7))
case("F.pad(x, 2, fill=[0.25, 0.5, 1])", "F.pad(x, 2, {fill = {0.25, 0.5, 1}})", RGB, dtypes=["float32"])
case("F.pad(x, 2, fill=[7, 200, 255])", "F.pad(x, 2, {fill = {7, 200, 255}})", RGB, dtypes=["uint8"])
case("F.horizontal_flip(x)", "F.horizontal_flip(x)", RGB, GRAY, (3, 2, 70))
case("F.vertical_flip(x)", "F.vertical_flip(x)", RGB, RGBA)

for angle in (0, 90, 180, 270, -90):
    case("F.rotate(x, %d, expand=True)" % angle, "F.rotate(x, %d, {expand = true})" % angle, RGB, (1, 40, 37))
for mode in ("nearest", "bilinear"):
    for more, lua in (("", ""), (", fill=[0.5]", ", fill = 0.5"), (", fill=[1, 0.5, 0.25]", ", fill = {1, 0.5, 0.25}"),
                      (", center=[3, 4.5]", ", center = {3, 4.5}"), (", expand=True", ", expand = true")):
        case("F.rotate(x, 33, interpolation='%s'%s)" % (mode, more),
             "F.rotate(x, 33, {interpolation = \"%s\"%s})" % (mode, lua), RGB)
        if "expand" not in more:
            case("F.affine(x, -21, [2, -3], 1.3, [10, -7], interpolation='%s'%s)" % (mode, more),
                 "F.affine(x, -21, {2, -3}, 1.3, {10, -7}, {interpolation = \"%s\"%s})" % (mode, lua), RGB)
        if "e" not in more:
            case("F.perspective(x, [[0, 0], [16, 0], [16, 12], [0, 12]], [[2, 1], [15, 3], [13, 11], [1, 10]], "
                 "interpolation='%s'%s)" % (mode, more),
                 "F.perspective(x, {{0, 0}, {16, 0}, {16, 12}, {0, 12}}, {{2, 1}, {15, 3}, {13, 11}, {1, 10}}, "
                 "{interpolation = \"%s\"%s})" % (mode, lua), RGB)
case("F.rotate(x, 12, interpolation='bilinear')", "F.rotate(x, 12, {interpolation = \"bilinear\"})", (5, 9, 8), (1, 1, 1))
case("F.rotate(x, 12, interpolation='bilinear', fill=[3])", "F.rotate(x, 12, {interpolation = \"bilinear\", fill = 3})",
     (1, 9, 8), dtypes=["float64"])

for name, values in (("brightness", (0, 0.4, 1, 1.7)), ("contrast", (0, 0.4, 1, 1.7)), ("saturation", (0, 0.4, 1, 1.7)),
                     ("hue", (-0.5, -0.2, 0, 0.1, 0.5)), ("sharpness", (0, 0.4, 1, 2.5)), ("gamma", (0.5, 1, 2.2))):
    for value in values:
        call = "F.adjust_%s(x, %g)" % (name, value)
        case(call, call, RGB)
    case(call, call, GRAY)
    case(call, call, RGB, dtypes=["float64"])
case("F.adjust_sharpness(x, 2)", "F.adjust_sharpness(x, 2)", (3, 2, 5), (1, 1, 1))
case("F.adjust_gamma(x, 0.7, 1.5)", "F.adjust_gamma(x, 0.7, 1.5)", RGB)
for call in ("F.invert(x)", "F.autocontrast(x)", "F.equalize(x)"):
    case(call, call, RGB, GRAY)
case("F.equalize(x)", "F.equalize(x)", (1, 40, 30))
case("F.autocontrast(x // 2 + 20)", "F.autocontrast(x:floor_divide(2) + 20)", RGB, dtypes=["uint8"])
case("F.autocontrast(x)", "F.autocontrast(x)", (3, 1, 1))
for bits in (0, 1, 3, 8):
    case("F.posterize(x, %d)" % bits, "F.posterize(x, %d)" % bits, RGB)
case("F.solarize(x, 100)", "F.solarize(x, 100)", RGB, dtypes=["uint8"])
case("F.solarize(x, 0.3)", "F.solarize(x, 0.3)", RGB, dtypes=["float32"])
for channels in (1, 3):
    case("F.rgb_to_grayscale(x, %d)" % channels, "F.rgb_to_grayscale(x, {num_output_channels = %d})" % channels, RGB, GRAY)
for size, sigma in (("3", None), ("[5, 7]", "[0.5, 1.2]"), ("9", "2"), ("[1, 3]", None)):
    lua_size, lua_sigma = (v and v.replace("[", "{").replace("]", "}") for v in (size, sigma))
    case("F.gaussian_blur(x, %s%s)" % (size, ", " + sigma if sigma else ""),
         "F.gaussian_blur(x, %s%s)" % (lua_size, ", {sigma = %s}" % lua_sigma if sigma else ""), RGB, GRAY)
case("F.gaussian_blur(x, 5)", "F.gaussian_blur(x, 5)", (1, 40, 150), dtypes=["uint8"])
case("F.gaussian_blur(x, 5)", "F.gaussian_blur(x, 5)", GRAY, dtypes=["float64"])
case("F.normalize(x, [0.4, 0.5, 0.6], [0.2, 0.3, 0.4])", "F.normalize(x, {0.4, 0.5, 0.6}, {0.2, 0.3, 0.4})", RGB,
     dtypes=["float32", "float64"])
case("F.normalize(x, [0.5], [0.25])", "F.normalize(x, {0.5}, {0.25})", RGB, dtypes=["float32"])
case("F.to_dtype(x, torch.float32, scale=True)", "F.to_dtype(x, \"float32\", {scale = true})", RGB)
case("F.to_dtype(x, torch.float64, scale=True)", "F.to_dtype(x, \"float64\", {scale = true})", GRAY)
case("F.to_dtype(x, torch.uint8, scale=True)", "F.to_dtype(x, \"uint8\", {scale = true})", RGB, dtypes=["float32", "float64"])
case("F.to_dtype(x, torch.float32)", "F.to_dtype(x, \"float32\")", RGB)
case("F.erase(x, 2, 3, 4, 5, torch.tensor(1))", "F.erase(x, 2, 3, 4, 5, 1)", RGB)

# ---- crops in lists, crops by padding, elastic
for i in range(5):
    case("F.five_crop(x, [4, 5])[%d]" % i, "(F.five_crop(x, {4, 5})[%d])" % (i + 1), GRAY)
for i in range(10):
    case("F.ten_crop(x, 6, %s)[%d]" % (i % 2 > 0, i),
         "(F.ten_crop(x, 6, {vertical_flip = %s})[%d])" % (str(i % 2 > 0).lower(), i + 1), GRAY, dtypes=["uint8"])
for mode in ("constant", "edge", "reflect", "symmetric"):
    case("F.pad(x, [-1, 2, 1, -3], padding_mode='%s')" % mode, "F.pad(x, {-1, 2, 1, -3}, {padding_mode = \"%s\"})" % mode, GRAY)
    case("F.pad(x, [2, 1, -1, -1], padding_mode='%s')" % mode, "F.pad(x, {2, 1, -1, -1}, {padding_mode = \"%s\"})" % mode,
         (1, 3, 3))
case("F.pad(x, -2)", "F.pad(x, -2)", RGB)
for mode in ("nearest", "bilinear"):
    for more, lua in (("", ""), (", fill=[0.5]", ", fill = 0.5"), (", fill=[1, 0.5, 0.25]", ", fill = {1, 0.5, 0.25}")):
        case("F.elastic(x, torch.linspace(-0.4, 0.3, 442).view(1, 13, 17, 2), interpolation='%s'%s)" % (mode, more),
             "F.elastic(x, lm.linspace(-0.4, 0.3, 442):view(1, 13, 17, 2), {interpolation = \"%s\"%s})" % (mode, lua), RGB)

# ---- masks, and halves, whose maps of coordinates torchvision computes in that precision
INTEGERS = ("bool", "int8", "int16", "int32", "int64")
for mode in ("nearest", "nearest-exact"):
    case(*resize([7, 19], interpolation=mode), RGB, dtypes=INTEGERS)
for python, lua in (
        ("F.rotate(x, 33, fill=[1])", "F.rotate(x, 33, {fill = 1})"),
        ("F.rotate(x, 90, expand=True)", "F.rotate(x, 90, {expand = true})"),
        ("F.affine(x, -21, [2, -3], 1.3, [10, -7], fill=[7, 100, 25])",
         "F.affine(x, -21, {2, -3}, 1.3, {10, -7}, {fill = {7, 100, 25}})"),
        ("F.perspective(x, [[0, 0], [16, 0], [16, 12], [0, 12]], [[2, 1], [15, 3], [13, 11], [1, 10]], "
         "interpolation='nearest')",
         "F.perspective(x, {{0, 0}, {16, 0}, {16, 12}, {0, 12}}, {{2, 1}, {15, 3}, {13, 11}, {1, 10}}, "
         "{interpolation = \"nearest\"})"),
        ("F.pad(x, [1, -2, 3, 4], fill=[1])", "F.pad(x, {1, -2, 3, 4}, {fill = 1})"),
        ("F.pad(x, 3, padding_mode='reflect')", "F.pad(x, 3, {padding_mode = \"reflect\"})"),
        ("F.horizontal_flip(x)", "F.horizontal_flip(x)"), ("F.crop(x, -2, 3, 9, 30)", "F.crop(x, -2, 3, 9, 30)"),
        ("F.elastic(x, torch.linspace(-0.4, 0.3, 442).view(1, 13, 17, 2), interpolation='nearest')",
         "F.elastic(x, lm.linspace(-0.4, 0.3, 442):view(1, 13, 17, 2), {interpolation = \"nearest\"})")):
    # int64's coordinates are float64 here, as the bits of its pixels: another pixel where two are equally near
    case(python, lua, RGB, dtypes=INTEGERS[:-1] if "perspective" in python else INTEGERS)
case("F.pad(x, 2, fill=[-7])", "F.pad(x, 2, {fill = -7})", RGB, dtypes=["int8", "int16", "int32", "int64"])
case(*resize([7, 19], interpolation="bilinear"), RGB, dtypes=INTEGERS + ("float16", "bfloat16"))
for call in ("F.adjust_brightness(x, 0.7)", "F.horizontal_flip(x)", "F.crop(x, -2, 3, 9, 30)", "F.invert(x)", "F.gaussian_blur(x, 3)",
             "F.solarize(x, 0.3)", "F.rgb_to_grayscale(x)", "F.autocontrast(x)", "F.posterize(x, 3)"):
    case(call, call, RGB, dtypes=["float16", "bfloat16"])
for dtype, others in (("uint8", ("int16", "int32", "int64", "bfloat16")), ("int16", ("uint8", "int64", "float32")),
                      ("float32", ("int8", "int16")), ("float64", ("int32",)), ("bool", ("float32",))):
    for other in others:
        case("F.to_dtype(x, torch.%s, scale=True)" % other, "F.to_dtype(x, \"%s\", {scale = true})" % other, RGB, dtypes=[dtype])


def main():
    results = {}
    with open(os.path.join(GOLDEN, "transforms.lua"), "w") as out:
        out.write("-- Written by scripts/dev/golden/gen_transforms.py with torchvision %s.\nreturn {\n" % torchvision.__version__)
        for python, lua, shapes, dtypes in CASES:
            for shape, dtype in itertools.product(shapes, dtypes):
                try:
                    y = eval(python, {"F": F, "torch": torch, "x": image(shape, dtype)})
                except Exception as error:
                    sys.exit("%s of %s %s: %s" % (python, shape, dtype, error))
                results[str(len(results) + 1)] = y.contiguous()
            out.write("  { [[%s]], { %s }, \"%s\" },\n" % (
                lua, ", ".join("{ %s }" % ", ".join(map(str, shape)) for shape in shapes), " ".join(dtypes)))
        out.write("}\n")
    save_file(results, os.path.join(GOLDEN, "_transforms.safetensors"))
    print("%d cases" % len(results))


if __name__ == "__main__":
    main()
