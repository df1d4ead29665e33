-- Finding objects: a small convolution network says where in a picture rectangles, ellipses and triangles are. As in
-- FCOS (Tian, Shen, Chen and He, "FCOS: Fully Convolutional One-Stage Object Detection", 2019) each position of its
-- last map that lies in the middle of an object predicts the object's class and the distances to its four sides; there
-- are no anchors. Pictures are drawn here, new ones for every step: one to four shapes of random position, size and
-- color. The measure is the mean average precision at IoU 0.5 in unseen pictures: 0.995 after the 1,500 steps, which
-- take two cores some minutes. --selftest expects 0.3 after 200 small steps, which reach 0.4.
--
--   luajit examples/detector.lua --out pictures       writes pictures/found.png: what it finds in some of them
local lm = require "luminary"
local nn, F, optim, vision = lm.nn, lm.nn.functional, lm.optim, lm.vision

local USAGE = [[
usage: luajit detector.lua [options]

  --steps N        steps of the optimizer, each of new pictures  (1500)
  --batch-size N   (32)
  --channels N     of the network at its bottom, a multiple of 4 (64)
  --lr X           of AdamW at its highest                       (0.003)
  --test N         pictures to judge by                          (500)
  --out DIR        found.png                                     (none is written)
  --shown N        pictures in it                                (8)
  --seed N         (1)
  --device DEVICE  such as cpu or cuda:0                         (a GPU if there is one)
  --selftest       a few seconds; fails if it did not learn
]]

local options, _, refuse = require "luminary.cli.script_options"(USAGE, {}, {
  steps = 200, ["batch-size"] = 16, channels = 32, lr = 6e-3, test = 100,
})
local device = options.device
if options.channels % 4 ~= 0 then refuse("--channels must be a multiple of 4, got %d", options.channels) end
if options.out then lm.paths.mkdir(options.out) end

-- ---- pictures

local SIZE, STRIDE, MAX_SHAPES = 64, 4, 4 -- pixels of a side, pixels between positions of the last map, per picture
local CLASSES = {"rectangle", "ellipse", "triangle"}

-- Boxes {x1, y1, x2, y2} of one to MAX_SHAPES shapes, none of which covers much of another.
local function random_boxes(random)
  local list = {}
  for _ = 1, 1 + math.floor(random() * MAX_SHAPES) do
    for _ = 1, 10 do
      local w, h = 12 + 20 * random(), 12 + 20 * random()
      local x, y = random() * (SIZE - w), random() * (SIZE - h)
      local box, free = {x, y, x + w, y + h}, true
      for _, other in ipairs(list) do
        local wide = math.min(box[3], other[3]) - math.max(box[1], other[1])
        local high = math.min(box[4], other[4]) - math.max(box[2], other[2])
        free = free and (wide <= 0 or high <= 0 or wide * high < 0.1 * w * h)
      end
      if free then
        list[#list + 1] = box
        break
      end
    end
  end
  return list
end

-- Draws n pictures [n, 3, SIZE, SIZE] from 0 to 1, their boxes [n, MAX_SHAPES, 4], classes [n, MAX_SHAPES], 0 for none.
local function draw(n, generator)
  local numbers, at = lm.rand({n * 200}, {generator = generator}):totable(), 0
  local function random()
    at = at % #numbers + 1
    return numbers[at]
  end
  local boxes, classes = lm.zeros {n, MAX_SHAPES, 4}, lm.zeros({n, MAX_SHAPES}, {dtype = "int64"})
  for i = 1, n do
    for k, box in ipairs(random_boxes(random)) do
      boxes[{i, k}] = lm.tensor(box)
      classes[{i, k}] = 1 + math.floor(random() * #CLASSES)
    end
  end
  local function colors() return lm.rand({n, 3, 1, 1}, {generator = generator}) end
  local x = colors():expand(n, 3, SIZE, SIZE)
  local pixel = lm.arange(SIZE) + 0.5
  for k = 1, MAX_SHAPES do
    local x1, y1, x2, y2 = unpack(boxes:select(2, k):view(n, 4, 1, 1, 1):unbind(2))
    local across = (2 * pixel:view(1, 1, 1, SIZE) - x1 - x2) / (x2 - x1) -- -1 to 1 within the box
    local down = (2 * pixel:view(1, 1, SIZE, 1) - y1 - y2) / (y2 - y1)
    local class = classes:select(2, k):view(n, 1, 1, 1)
    local inside = lm.where(class:eq(1), lm.maximum(across:abs(), down:abs()):le(1),
      lm.where(class:eq(2), (across ^ 2 + down ^ 2):le(1), lm.logical_and(down:le(1), (2 * across:abs()):le(down + 1))))
    x = lm.where(lm.logical_and(inside, class:gt(0)), colors(), x)
  end
  return (x + 0.08 * lm.randn(x.shape, {generator = generator})):clamp(0, 1), boxes, classes
end

-- ---- model: down to an eighth of the size, up again to a quarter, with what was seen on the way

local function conv(inputs, outputs, stride)
  return nn.Sequential(nn.Conv2d(inputs, outputs, 3, {stride = stride or 1, padding = 1, bias = false}),
    nn.BatchNorm2d(outputs), nn.ReLU())
end

local Detector = nn.Module:extend "Detector"

function Detector:init(c)
  self.top = nn.Sequential(conv(3, c / 4, 2), conv(c / 4, c / 2, 2), conv(c / 2, c / 2)) -- 16 x 16
  self.bottom = nn.Sequential(conv(c / 2, c, 2), conv(c, c), conv(c, c))                 -- 8 x 8
  self.across = nn.Conv2d(c / 2, c, 1)
  self.joined = conv(c, c)
  self.class = nn.Conv2d(c, #CLASSES, 3, {padding = 1})
  self.sides = nn.Conv2d(c, 4, 3, {padding = 1})
  nn.init.constant_(self.class.bias, -math.log(99)) -- an initial probability of objects of 0.01
end

-- Logits of the classes [n, positions, classes] and the distances left, up, right and down to the sides [n, positions,
-- 4].
function Detector:forward(x)
  local high = self.top(x)
  local y = self.joined(F.interpolate(self.bottom(high), {scale_factor = 2}) + self.across(high))
  local function by_place(map) return map:flatten(3):transpose(2, 3) end
  return by_place(self.class(y)), by_place(self.sides(y)):exp() * (2 * STRIDE)
end

lm.manual_seed(options.seed)
local net = Detector(options.channels):to(device)

-- The centers of the positions of the last map, (x, y) [positions, 2].
local along = (lm.arange(SIZE / STRIDE) + 0.5) * STRIDE
local centers = lm.stack({along:repeat_tensor(#along), along:repeat_interleave(#along)}, 2):to(device)

-- ---- training

-- Returns for each position the class of the object whose middle part it lies in, or 0, and the distances to the sides.
local function targets(boxes, classes)
  local n, points = boxes:size(1), centers:view(1, -1, 1, 2)
  local low, high = boxes:narrow(3, 1, 2):unsqueeze(2), boxes:narrow(3, 3, 2):unsqueeze(2)   -- [n, 1, MAX_SHAPES, 2]
  local near = (points - (low + high) / 2):abs():lt(lm.maximum((high - low) / 4, STRIDE / 2)):all(4)
  near = lm.logical_and(near, classes:unsqueeze(2):gt(0)) -- [n, positions, MAX_SHAPES]
  local area = (high - low):prod(4):expand_as(near):masked_fill(lm.logical_not(near), math.huge)
  local smallest, which = area:min(3)
  local found = smallest:lt(math.huge)
  local class = lm.gather(classes, 2, which) * found:long()
  local box = lm.gather(boxes, 2, which:unsqueeze(3):expand(n, -1, 4))
  return class, lm.cat({centers - box:narrow(3, 1, 2), box:narrow(3, 3, 2) - centers}, 3), found
end

-- Sums focal loss of classes (Lin et al. 2017) and -log IoU of boxes (Yu et al. 2016), by the objects' positions.
local function loss_of(logits, sides, boxes, classes)
  local class, wanted, found = targets(boxes, classes)
  local count = found:sum():clamp(1)
  local truth = class:unsqueeze(3):eq(lm.arange(1, #CLASSES + 1, {device = device})):float()
  local sure = lm.where(truth:gt(0), lm.sigmoid(logits), lm.sigmoid(-logits))
  local weight = (truth * 0.25 + (1 - truth) * 0.75) * (1 - sure) ^ 2
  local by_class = (weight * -F.logsigmoid((2 * truth - 1) * logits)):sum() / count
  local function chosen(t) return t:masked_select(found:unsqueeze(3)):view(-1, 4) end
  local mine, theirs = chosen(sides), chosen(wanted)
  local function area(t) return (t:select(2, 1) + t:select(2, 3)) * (t:select(2, 2) + t:select(2, 4)) end
  local shared = area(lm.minimum(mine, theirs))
  local iou = shared / (area(mine) + area(theirs) - shared)
  return by_class + (-iou:clamp(1e-6):log()):sum() / count
end

local decay, plain = {}, {}
for _, p in ipairs(net:parameters()) do table.insert(p.ndim > 1 and decay or plain, p) end
local opt = optim.AdamW({{params = decay, weight_decay = 1e-2}, {params = plain, weight_decay = 0}}, {lr = options.lr})
local schedule = optim.lr_scheduler.OneCycleLR(opt, {max_lr = options.lr, total_steps = options.steps, pct_start = 0.1})
local generator, began = lm.Generator():manual_seed(options.seed), lm.time()
for step = 1, options.steps do
  local x, boxes, classes = draw(options["batch-size"], generator)
  local logits, sides = net(x:to(device))
  local loss = loss_of(logits, sides, boxes:to(device), classes:to(device))
  opt:zero_grad()
  loss:backward()
  nn.utils.clip_grad_norm_(net:parameters(), 5)
  opt:step()
  schedule:step()
  if step % 100 == 0 then print(("step %d  loss %.4f  %.1f s"):format(step, loss:item(), lm.time() - began)) end
end

-- ---- what it finds

-- Returns the objects found in one picture, the best first: boxes [k, 4], scores [k], classes [k].
local function found_in(logits, sides)
  local scores, classes = lm.sigmoid(logits):max(2)
  local boxes = lm.cat({centers - sides:narrow(2, 1, 2), centers + sides:narrow(2, 3, 2)}, 2)
  local good = lm.nonzero(scores:gt(0.05)):view(-1)
  boxes, scores, classes = boxes:index_select(1, good), scores:index_select(1, good), classes:index_select(1, good)
  local stay = vision.batched_nms(vision.clip_boxes_to_image(boxes, {SIZE, SIZE}), scores, classes, 0.5)
  return boxes:index_select(1, stay):cpu(), scores:index_select(1, stay):cpu(), classes:index_select(1, stay):cpu()
end

-- Returns the area below precision over recall, the best at that recall or a higher one. hits: {score, right}.
local function average_precision(hits, objects)
  table.sort(hits, function(a, b) return a[1] > b[1] end)
  local right, precision = 0, {}
  for i, hit in ipairs(hits) do
    right = right + (hit[2] and 1 or 0)
    precision[i] = right / i
  end
  local area, best = 0, 0
  for i = #hits, 1, -1 do
    best = math.max(best, precision[i])
    if hits[i][2] then area = area + best / objects end
  end
  return area
end

-- Compares what is found in pictures with what is there: an object counts once, for the best that covers it by IoU 0.5.
local function mean_average_precision(n)
  local hits, objects = {}, {}
  for class = 1, #CLASSES do hits[class], objects[class] = {}, 0 end
  local unseen = lm.Generator():manual_seed(options.seed + 1000000)
  for first = 1, n, 50 do
    local x, there, classes = draw(math.min(50, n - first + 1), unseen)
    local logits, sides = net(x:to(device))
    for i = 1, x:size(1) do
      local boxes, scores, guessed = found_in(logits[i], sides[i])
      local count = classes[i]:gt(0):sum():item()
      local truth, iou, taken = classes[i]:totable(), vision.box_iou(boxes, there[i]:narrow(1, 1, count)):totable(), {}
      for k = 1, count do objects[truth[k]] = objects[truth[k]] + 1 end
      scores, guessed = scores:totable(), guessed:totable()
      for j, class in ipairs(guessed) do
        local best, which = 0.5, nil
        for k = 1, count do
          if truth[k] == class and not taken[k] and iou[j][k] >= best then best, which = iou[j][k], k end
        end
        if which then taken[which] = true end
        table.insert(hits[class], {scores[j], which ~= nil})
      end
    end
  end
  local sum = 0
  for class, name in ipairs(CLASSES) do
    local reached = average_precision(hits[class], objects[class])
    print(("%-10s average precision %.3f of %d"):format(name, reached, objects[class]))
    sum = sum + reached / #CLASSES
  end
  return sum
end

-- Pictures with a frame, in its class's color, round each thing found.
local function framed(x)
  local color = {{1, 0, 0}, {0, 1, 0}, {0, 0.4, 1}}
  local logits, sides = net(x:to(device))
  local shown = F.interpolate(x, {scale_factor = 4})
  for i = 1, x:size(1) do
    local boxes, scores, classes = found_in(logits[i], sides[i])
    for j = 1, boxes:size(1) do
      if scores[j] > 0.3 then
        local edge = {}
        for d = 1, 4 do edge[d] = math.max(1, math.min(4 * SIZE, math.floor(4 * boxes[{j, d}]) + 1)) end
        local paint = lm.tensor(color[classes[j]]):view(3, 1, 1)
        for _, y in ipairs {edge[2], edge[4]} do shown[{i, {}, {y, y}, {edge[1], edge[3]}}] = paint end
        for _, at in ipairs {edge[1], edge[3]} do shown[{i, {}, {edge[2], edge[4]}, {at, at}}] = paint end
      end
    end
  end
  return shown
end

net:eval()
local reached = lm.no_grad(mean_average_precision, options.test)
print(("mean average precision at IoU 0.5, test: %.3f"):format(reached))
if options.out then
  local pictures = draw(options.shown, lm.Generator():manual_seed(options.seed + 1))
  vision.save_image(lm.no_grad(framed, pictures), options.out .. "/found.png")
end

if options.selftest then assert(reached > 0.3, "it did not learn: more than 0.3 was expected") end
