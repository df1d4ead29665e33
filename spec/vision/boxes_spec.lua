-- lm.vision's boxes, against torchvision's (scripts/dev/golden/gen_boxes.py).
local lm = require "luminary"
local message = require "spec.support.error_of"
local vision = lm.vision
local golden = lm.load "spec/golden/_boxes.safetensors"

local function same(name, got)
  local want = golden[name]
  assert.same({ unpack(want.shape) }, { unpack(got.shape) }, name)
  assert.is_true(got:allclose(want, { rtol = 1e-4, atol = 1e-5 }), name)
end

-- Returns f's value of golden.x, and the gradient of its weighted sum.
local function differentiated(name, f)
  local x = golden.x:clone():requires_grad_()
  local y = f(x)
  same(name, y)
  lm.sum(y * golden[name .. ".weight"]):backward()
  same(name .. ".grad", x.grad)
end

describe("boxes", function()
  local boxes, scores = golden.boxes, golden.scores

  it("are compared and converted as torchvision's", function()
    same("area", vision.box_area(boxes))
    same("iou", vision.box_iou(boxes, boxes[{ { 1, 4 } }]))
    same("giou", vision.generalized_box_iou(boxes, boxes[{ { 1, 4 } }]))
    same("clip", vision.clip_boxes_to_image(boxes, { 13, 9 }))
    same("large", vision.remove_small_boxes(boxes, 5))
    for _, from in ipairs { "xyxy", "xywh", "cxcywh" } do
      for _, to in ipairs { "xyxy", "xywh", "cxcywh" } do
        same(("convert.%s.%s"):format(from, to), vision.box_convert(boxes, from, to))
      end
    end
  end)

  it("are sorted out where they cover the same", function()
    same("nms", vision.nms(boxes, scores, 0.4))
    same("batched_nms", vision.batched_nms(boxes, scores, golden.classes, 0.4))
    assert.equal(0, vision.nms(lm.zeros(0, 4), lm.zeros(0), 0.5):numel())
    assert.equal(0, vision.batched_nms(lm.zeros(0, 4), lm.zeros(0), lm.zeros(0):long(), 0.5):numel())
  end)

  it("are sorted out as by comparing all pairs", function()
    lm.manual_seed(0)
    local function kept(box, threshold)
      local keep = lm.ones(box.shape[1]):bool()
      for i = 1, box.shape[1] - 1 do
        if keep[i] == true then
          local own, rest = box[{ { i } }], box[{ { i + 1, -1 } }]
          local size = lm.minimum(own[{ {}, { 3, 4 } }], rest[{ {}, { 3, 4 } }])
            - lm.maximum(own[{ {}, { 1, 2 } }], rest[{ {}, { 1, 2 } }])
          local shared = size:clamp(0, math.huge):prod(2)
          local areas = (box[{ {}, { 3, 4 } }] - box[{ {}, { 1, 2 } }]):prod(2)
          keep[{ { i + 1, -1 } }] = keep[{ { i + 1, -1 } }]
            * (shared / (areas[i] + areas[{ { i + 1, -1 } }] - shared)):le(threshold)
        end
      end
      return keep
    end
    for round, spread in ipairs { 1, 30, 300, 5000 } do
      local corner = (lm.rand({ 90, 2 }, { dtype = "float64" }) * spread):round() - 40
      local size = lm.rand({ 90, 2 }, { dtype = "float64" }) * 40 - (round == 2 and 5 or 0)
      local some = lm.cat({ corner, corner + size }, 2)
      if round == 3 then some[{ {}, 1 }] = 7 end
      if round == 4 then some[90][3] = math.huge end
      for _, threshold in ipairs { 0, 0.3, 0.7, -0.5 } do
        assert.is_true(lm.equal(kept(some, threshold), lm.ops.nms_sorted(some, threshold)))
      end
    end
  end)

  it("are pooled, with gradients", function()
    for _, ratio in ipairs { -1, 2 } do
      for _, aligned in ipairs { true, false } do
        differentiated(("roi_align.%d.%s"):format(ratio, aligned), function(x)
          return vision.roi_align(x, golden.rois, { 2, 3 }, 0.5, ratio, aligned)
        end)
      end
    end
    differentiated("roi_pool", function(x)
      return vision.roi_pool(x, golden.rois, { 2, 3 }, { spatial_scale = 0.5 })
    end)
    local list = { boxes[{ { 1, 2 } }], boxes[{ { 3, 3 } }] }
    local rows = lm.cat({ lm.tensor { { 1 }, { 1 }, { 2 } }, boxes[{ { 1, 3 } }] }, 2)
    for _, f in ipairs { vision.roi_align, vision.roi_pool } do
      assert.is_true(f(golden.x, list, 2):equal(f(golden.x, rows, 2)))
      assert.same({ 0, 2, 2, 2 }, { unpack(f(golden.x, lm.zeros(0, 5), 2).shape) })
    end
    local x, rois = golden.x:double():requires_grad_(), rows:double()
    assert(lm.autograd.gradgradcheck(function(v) return vision.roi_align(v, rois, 1):square() end, { x }))
  end)

  for want, f in pairs {
    ["box_iou: expected boxes2 to have shape %[N, 4%],"] = function() vision.box_iou(lm.zeros(1, 4), lm.zeros(4)) end,
    ["box_convert: in_fmt must be one of 'xyxy', 'xywh', 'cxcywh', got string 'xyhw'"] = function()
      vision.box_convert(lm.zeros(1, 4), "xyhw", "xyxy")
    end,
    ["nms: expected scores to have shape %[2%], one"] = function() vision.nms(lm.zeros(2, 4), lm.zeros(3), 0.5) end,
    ["nms: unknown option 'threshold'; did you mean 'iou_threshold'%?"] = function()
      vision.nms(lm.zeros(2, 4), lm.zeros(2), { threshold = 0.5 })
    end,
    ["roi_align: image indices in boxes are from 0 to 0"] = function()
      vision.roi_align(lm.zeros(1, 1, 4, 4), lm.zeros(1, 5), 2)
    end,
    ["roi_pool: boxes%[1, 1%] is out of range for x's 1 images"] = function()
      vision.roi_pool(lm.zeros(1, 1, 4, 4), lm.zeros(1, 5), 2)
    end,
    ["roi_pool: expected boxes to have"] = function() vision.roi_pool(lm.zeros(1, 1, 4, 4), lm.zeros(1, 4), 2) end,
    ["roi_align: expected x to have shape %[N,"] = function() vision.roi_align(lm.zeros(4, 4), lm.zeros(1, 5), 2) end,
  } do
    it("refuse with a reason: " .. want, function() assert.matches(want, message(f)) end)
  end
end)
