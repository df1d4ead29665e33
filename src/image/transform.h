/* Transforms images [..., C, H, W] or [H, W] on the CPU: uint8 (0 to 255) or floating (0 to 1), and any dtype where
 * pixels are moved or averaged. Each transform has a name and takes a list of numbers:
 *
 *   resize      height, width, LM_RESIZE_…, antialias; top, left, height and width of the part to resize, whose size
 *               may be fractional: its last row and column then count in part
 *   affine      height, width, bilinear, nfill; a to f: output (x, y) comes from (a x + b y + c, d x + e y + f), in
 *               pixels from the images' middles; nfill fill numbers (none, 1, or one for each channel)
 *   perspective bilinear, nfill; a to h: output (x, y) comes from (a x + b y + c, d x + e y + f) / (g x + h y + 1), in
 *               pixels from the upper left corner; nfill fill numbers
 *   pad         left, top, right, bottom, LM_BORDER_…; 1 fill number, or one for each channel
 *   flip        horizontally, vertically
 *   rotate90    number of quarter turns counterclockwise
 *   brightness, contrast, saturation, hue, sharpness, gamma (and gain): torchvision's adjust_…
 *   grayscale   number of output channels: 1 or 3
 *   invert, autocontrast, equalize; posterize (bits); solarize (threshold)
 *   blur        width and height of the kernel; its weights along x; along y
 *   normalize   scale first (uint8 only: 0 to 255 as 0 to 1); means; standard deviations (1, or one for each channel)
 *   convert     uint8 to float32, or floats to uint8: 0 to 255 as 0 to 1
 *
 * Callers check factors, as lua/luminary/vision does; here only sizes and what the memory depends on are checked.
 *
 * Formulas are torchvision's (transforms.v2, tensors). Results equal its uint8 resize, which rounds between its two
 * passes, bit for bit. */
#pragma once

#include "tensor/tensor.h"

enum { LM_RESIZE_NEAREST, LM_RESIZE_NEAREST_EXACT, LM_RESIZE_BILINEAR, LM_RESIZE_BICUBIC };
enum { LM_BORDER_CONSTANT, LM_BORDER_EDGE, LM_BORDER_REFLECT, LM_BORDER_SYMMETRIC };

/* Runs a transform. *out is a new tensor, or `given` retained, if not NULL: it must have the result's shape and dtype
 * and share no memory with x. LM_E_ARG for unknown names and invalid numbers, LM_E_DTYPE, LM_E_SHAPE, LM_E_DEVICE. */
LM_API lm_status lm_image_transform(const char *name, lm_tensor *x, int n, const double *v, lm_tensor *given,
                                    lm_tensor **out);
