#!/usr/bin/env python3
"""Writes spec/golden/_boxes.safetensors: torchvision's values for spec/vision/boxes_spec.lua. Numbers of images and
boxes count from 1, as Luminary's do."""
import os

import torch
import torchvision.ops as ops
from safetensors.torch import save_file

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")


def main():
    gen = torch.Generator().manual_seed(3)
    corner = torch.rand(12, 2, generator=gen) * 12 - 2
    boxes = torch.cat([corner, corner + torch.rand(12, 2, generator=gen) * 12], 1)
    scores, classes = torch.rand(12, generator=gen), torch.randint(0, 2, (12,), generator=gen)
    x = torch.randn(2, 2, 5, 6, generator=gen).requires_grad_()
    rois = torch.cat([torch.randint(0, 2, (12, 1), generator=gen).float(), boxes], 1)
    store = {
        "boxes": boxes, "scores": scores, "classes": classes, "x": x.detach(),
        "rois": torch.cat([rois[:, :1] + 1, rois[:, 1:]], 1),
        "area": ops.box_area(boxes), "iou": ops.box_iou(boxes, boxes[:4]),
        "giou": ops.generalized_box_iou(boxes, boxes[:4]), "clip": ops.clip_boxes_to_image(boxes, (13, 9)),
        "large": ops.remove_small_boxes(boxes, 5.0) + 1, "nms": ops.nms(boxes, scores, 0.4) + 1,
        "batched_nms": ops.batched_nms(boxes, scores, classes, 0.4) + 1,
    }
    for a in ("xyxy", "xywh", "cxcywh"):
        for b in ("xyxy", "xywh", "cxcywh"):
            store[f"convert.{a}.{b}"] = ops.box_convert(boxes, a, b)

    def case(name, y):
        weight = torch.randn(y.shape, generator=gen)
        store[name], store[name + ".weight"] = y.detach(), weight
        store[name + ".grad"], = torch.autograd.grad((y * weight).sum(), x)

    for ratio in (-1, 2):
        for aligned in (True, False):
            case(f"roi_align.{ratio}.{str(aligned).lower()}", ops.roi_align(x, rois, (2, 3), 0.5, ratio, aligned))
    case("roi_pool", ops.roi_pool(x, rois, (2, 3), 0.5))
    save_file({k: v.contiguous() for k, v in store.items()}, os.path.join(ROOT, "spec/golden/_boxes.safetensors"))


main()
