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

  it("are sorted out as all pairs say: near, far, equal, inverted, infinite and NaN", function()
    lm.manual_seed(0)
    local n, odd = 60, { 0 / 0, math.huge, -math.huge, -3 }
    local corner = lm.rand(n, 2) * 40
    local some = lm.cat({ corner, corner + lm.rand(n, 2) * 20 }, 2):round()
    for i, value in ipairs(odd) do
      for side = 1, 4 do some[{ 8 * i + side, side }] = value end
    end
    local ranks = lm.arange(n, 0, -1):float()
    for _, dtype in ipairs { "float32", "float64" } do
      local iou = vision.box_iou(some:to(dtype), some:to(dtype)):totable()
      for _, threshold in ipairs { -0.5, 0, 0.3, 1 } do
        local expected, gone = {}, {}
        for i = 1, n do
          if not gone[i] then expected[#expected + 1] = i end
          for j = gone[i] and n + 1 or i + 1, n do gone[j] = gone[j] or iou[i][j] > threshold end
        end
        assert.same(expected, vision.nms(some:to(dtype), ranks, threshold):totable())
      end
    end
  end)

  it("have areas that their dtype lacks", function()
    local list = { { 0, 0, 400, 400 }, { 0, 0, 400, 200 } }
    for _, dtype in ipairs { "float16", "bfloat16" } do
      local b = lm.tensor(list, { dtype = dtype })
      assert.same({ 160000, 80000 }, vision.box_area(b):totable())
      assert.same({ { 1, 0.5 }, { 0.5, 1 } }, vision.box_iou(b, b):totable())
      assert.same({ { 1, 0.5 }, { 0.5, 1 } }, vision.generalized_box_iou(b, b):totable())
      assert.equal("float32", vision.box_iou(b, b).dtype) -- as torchvision's
    end
    for dtype, size in pairs { uint8 = 250, int8 = 120, int16 = 30000, int32 = 30000, int64 = 30000 } do
      local b = lm.tensor({ { 0, 0, size, size } }, { dtype = dtype })
      assert.equal(size * size, tonumber(vision.box_area(b):item()))
      assert.equal(dtype == "int64" and "int64" or "int32", vision.box_area(b).dtype)
      assert.equal(1, vision.box_iou(b, b):item())
    end
  end)

  it("of many classes stay apart, in half precision and below 0 as well", function()
    for _, dtype in ipairs { "float32", "float16", "bfloat16" } do
      for _, at in ipairs { 600, 3000, -3300 } do
        local pair = lm.tensor { { at, at, at + 300, at + 300 }, { at + 16, at + 16, at + 316, at + 316 } }
        for _, n in ipairs { 2, 40, 80 } do
          local all, classes = pair:repeat_tensor(n, 1):to(dtype), lm.arange(1, n + 1):repeat_interleave(2)
          assert.equal(n, vision.batched_nms(all, lm.linspace(1, 0.1, 2 * n):to(dtype), classes, 0.5):numel())
        end
      end
    end
  end)

  it("without size have no samples unless their number is given", function()
    local x = lm.arange(1, 33):float():reshape(1, 2, 4, 4)
    local function pooled(box, o) return vision.roi_align(x, lm.tensor { box }, { 2, 2 }, o):flatten():totable() end
    local none = { 0, 0, 0, 0, 0, 0, 0, 0 }
    assert.same(none, pooled({ 1, 1, 1, 1, 1 }, { aligned = true }))
    assert.same(none, pooled({ 1, 1, 1, 1, 3 }, { aligned = true }))
    assert.same(none, pooled({ 1, 2, 2, 1, 1 }, { aligned = true }))
    local two = { aligned = true, sampling_ratio = 2 }
    assert.same({ 3.5, 3.5, 3.5, 3.5, 19.5, 19.5, 19.5, 19.5 }, pooled({ 1, 1, 1, 1, 1 }, two))
    assert.same({ 7.25, 7.75, 9.25, 9.75, 23.25, 23.75, 25.25, 25.75 }, pooled { 1, 1, 1, 1, 1 })
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

  for _, row in ipairs {
    { "box_iou: expected boxes2 to have shape %[N, 4%],", vision.box_iou, lm.zeros(1, 4), lm.zeros(4) },
    { "box_convert: in_fmt must be one of 'xyxy', 'xywh', 'cxcywh', got string 'xyhw'",
      vision.box_convert, lm.zeros(1, 4), "xyhw", "xyxy" },
    { "nms: expected scores to have shape %[2%], one", vision.nms, lm.zeros(2, 4), lm.zeros(3), 0.5 },
    { "nms: unknown option 'threshold'; did you mean 'iou_threshold'%?",
      vision.nms, lm.zeros(2, 4), lm.zeros(2), { threshold = 0.5 } },
    { "roi_align: image indices in boxes are from 0 to 0", vision.roi_align, lm.zeros(1, 1, 4, 4), lm.zeros(1, 5), 2 },
    { "roi_pool: boxes%[1, 1%] is out of range for x's 1 images",
      vision.roi_pool, lm.zeros(1, 1, 4, 4), lm.zeros(1, 5), 2 },
    { "roi_pool: expected boxes to have", vision.roi_pool, lm.zeros(1, 1, 4, 4), lm.zeros(1, 4), 2 },
    { "roi_align: expected x to have shape %[N,", vision.roi_align, lm.zeros(4, 4), lm.zeros(1, 5), 2 },
  } do
    it("refuse with a reason: " .. row[1], function()
      assert.matches(row[1], message(unpack(row, 2, table.maxn(row))))
    end)
  end
end)
