/* Transforms of images [..., C, H, W] or [H, W] on the CPU, of uint8 (0 to 255) or floating (0 to 1); where pixels move
 * or are averaged, of any dtype.
 *
 * Each has a name and takes a list of numbers:
 *
 *   resize      height, width, LM_RESIZE_…, antialias, top, left, height and width of what is resized, of whose last
 *               pixels there may be a part
 *   affine      height, width, bilinear, fills f; 6 numbers a to f: output (x, y) comes from (a x + b y + c, d x + e y
 * + f), counted in pixels from the images' middles; f numbers (none, 1, or one for each channel) perspective bilinear,
 * fills f; 8 numbers: (x, y) comes from (a x + b y + c, d x + e y + f) / (g x + h y + 1), counted in pixels from the
 * upper left corner; f numbers pad         left, top, right, bottom, LM_BORDER_…; 1 number to fill with, or one for
 * each channel flip        horizontally, vertically rotate90    how many quarters of a turn, against the clock
 *   brightness, contrast, saturation, hue, sharpness, gamma (and gain): torchvision's adjust_…
 *   grayscale   how many channels come out: 1 or 3
 *   invert, autocontrast, equalize; posterize (bits); solarize (threshold)
 *   blur        width and height of the kernel; its weights along x; along y
 *   normalize   scale first (uint8 alone: 0 to 255 as 0 to 1); for each channel or once: mean, standard deviation
 *   convert     uint8 to float32, or floats to uint8, with white for white
 *
 * Formulas are torchvision's (transforms.v2, tensors); its uint8 resize, which rounds between its two passes, is met to
 * the bit. */
#pragma once

#include "tensor/tensor.h"

enum { LM_RESIZE_NEAREST, LM_RESIZE_NEAREST_EXACT, LM_RESIZE_BILINEAR, LM_RESIZE_BICUBIC };
enum { LM_BORDER_CONSTANT, LM_BORDER_EDGE, LM_BORDER_REFLECT, LM_BORDER_SYMMETRIC };

/* `given`, if not NULL, is written to, and must be what would come out; it must not share memory with x. LM_E_ARG for
 * names and numbers that make no sense, LM_E_DTYPE, LM_E_SHAPE, LM_E_DEVICE. *out is x's, new, or `given` retained. */
LM_API lm_status lm_image_transform(const char *name, lm_tensor *x, int n, const double *v, lm_tensor *given,
                                    lm_tensor **out);
