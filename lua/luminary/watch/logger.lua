--- watch.logger: Defines the interface of watch.SummaryWriter, watch.JSONLogger and watch.CSVLogger. A logger writes
--- only on rank 0, unless {all_ranks = true}.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local rank_and_size = require "luminary.base.rank_and_size"
local signature = require "luminary.base.signature"
local wall_time = require("luminary.watch.log_file").wall_time

--- watch.Logger(): Defines the interface of loggers; a class of the script may extend one of them.
local Logger = class.root "watch.Logger"

--- Sets up a logger; returns whether it writes on this rank.
function Logger:start(all_ranks)
  self.enabled = all_ranks or rank_and_size() == 0
  self.warned = {}
  return self.enabled
end

local lacking = "this version writes scalars, histograms, images, text, hyperparameters and graphs"
Logger.__missing = {add_figure = "add_image adds a picture", add_tensor = lacking}
for name in ([[
  add_video add_audio add_embedding add_mesh add_pr_curve add_pr_curve_raw add_custom_scalars add_onnx_graph
  add_custom_scalars_multilinechart add_custom_scalars_marginchart add_image_with_boxes add_histogram_raw
]]):gmatch "%S+" do Logger.__missing[name] = lacking end

-- Internal methods: start, and those that subclasses define if they support them: write_scalars(values, step, time,
-- style) of a table by tag, write_scalar_group(main, values, step, time), write_histogram, write_image and write_text(
-- tag, value, step, time), write_hparams(hparams, metrics, step, time, run_name, domains), write_graph(model, inputs).
Logger.__inner = {
  "start", "write_scalars", "write_scalar_group", "write_histogram", "write_image", "write_text", "write_hparams",
  "write_graph",
}

local function write(self, kind, ...)
  if not self.enabled then return end
  local f = self["write_" .. kind]
  if f then return f(self, ...) end
  if not self.warned[kind] then
    self.warned[kind] = true
    core.warn(("%s: %s is left out; watch.SummaryWriter writes it"):format(self.__name, kind))
  end
end

local function check_numbers(who, name, values)
  local out = {}
  for tag, value in pairs(options.arg(who, name, values, "table")) do
    options.arg(who, "a tag", tag, "string")
    out[tag] = options.arg(who, ("%s.%s"):format(name, tag), value, "scalar")
  end
  return out
end

local at = "global_step: integer?, walltime: number?"

--- Adds a number to the log.
Logger.add_scalar = signature.of("add_scalar(tag: string, scalar_value: scalar, " .. at
  .. ", new_style = false, double_precision = false)", function(self, tag, value, step, time, new_style, double)
  write(self, "scalars", {[tag] = value}, step, time or wall_time(),
    double and "double" or new_style and "float" or nil)
end)

--- Adds several numbers to the log, a table by name, such as the values of a lm.metrics.MetricCollection.
Logger.log_metrics = signature.of("log_metrics(metrics: table, step: integer?, walltime: number?)",
  function(self, metrics, step, time)
  if not self.enabled then return end -- reads no tensors
  write(self, "scalars", check_numbers("log_metrics", "metrics", metrics), step, time or wall_time())
end)

--- Adds several numbers under one main tag. TensorBoard shows them in one chart.
Logger.add_scalars = signature.of("add_scalars(main_tag: string, tag_scalar_dict: table, " .. at .. ")",
  function(self, main, values, step, time)
  values, time = check_numbers("add_scalars", "tag_scalar_dict", values), time or wall_time()
  if self.write_scalar_group then return write(self, "scalar_group", main, values, step, time) end
  local named = {}
  for tag, value in pairs(values) do named[main .. "/" .. tag] = value end
  write(self, "scalars", named, step, time)
end)

-- Returns 1549 edges from -1e20 to 1e20, each 1.1 times as far from 0 as the last, as in TensorFlow's histograms.
local function tensorflow_edges()
  local edges, v = {}, 1e-12
  while v < 1e20 do
    edges[#edges + 1] = v
    v = v * 1.1
  end
  local list, n = {}, #edges
  for i = n, 1, -1 do list[#list + 1] = -edges[i] end
  list[#list + 1] = 0
  for i = 1, n do list[#list + 1] = edges[i] end
  return list
end

local default_edges

-- Returns edges of buckets: TensorFlow's, a number of equal buckets, or the given list of edges.
local function edges_of(bins, x)
  if bins == "tensorflow" then
    default_edges = default_edges or tensorflow_edges()
    return default_edges
  end
  if type(bins) == "table" then
    for i = 1, math.max(#bins, 2) do
      local rises = type(bins[i]) == "number" and (i == 1 or bins[i - 1] < bins[i])
      if not rises then
        options.must_be("add_histogram", "bins", "at least two numbers, each greater than the last", bins)
      end
    end
    return bins
  end
  local n, list = options.arg("add_histogram", "bins", bins, "count"), {}
  local low, high = x:amin():item(), x:amax():item()
  if low == high then low, high = low - 0.5, high + 0.5 end
  for i = 0, n do list[i + 1] = low + (high - low) * i / n end
  return list
end

-- Joins buckets to about max_bins, fewer than twice that number.
local function join_buckets(edges, counts, max_bins)
  local each = math.max(1, math.floor(#counts / max_bins))
  local new_edges, new_counts = {}, {}
  for i = 1, #counts, each do
    local sum = 0
    for k = i, math.min(i + each - 1, #counts) do sum = sum + counts[k] end
    new_edges[#new_edges + 1], new_counts[#new_counts + 1] = edges[i], sum
  end
  new_edges[#new_edges + 1] = edges[#edges]
  return new_edges, new_counts
end

-- Returns the histogram of a tensor's finite elements: {min, max, num, sum, sum_squares, bucket_limit, bucket}, where
-- bucket[i] counts those from bucket_limit[i - 1] to bucket_limit[i]; bucket[1] is 0. Outer empty buckets are left out.
local function histogram_of(values, bins, max_bins)
  if type(values) == "table" then values = core.tensor(values) end
  local x = options.arg("add_histogram", "values", values, "tensor"):detach():double():reshape(-1)
  x = x:masked_select(x:isfinite())
  if x:numel() == 0 then options.must_be("add_histogram", "values", "of at least one finite element", values) end
  local edges = edges_of(bins, x)
  local n = #edges - 1
  local sorted = core.tensor(edges, {dtype = "float64", device = x.device})
  local place = core.ops.searchsorted(sorted, x, {right = true}) -- 1 + the number of edges up to x
  place = core.ops.where(x:eq(edges[n + 1]), n + 1, place) -- the last bucket includes its right edge
  local counts = place:bincount({minlength = n + 2}):narrow(1, 2, n):double():totable()
  if max_bins and n > max_bins then edges, counts = join_buckets(edges, counts, max_bins) end
  local first, last = 1, #counts
  while first < last and counts[first] == 0 do first = first + 1 end
  while last > first and counts[last] == 0 do last = last - 1 end
  local histogram = {
    min = x:amin():item(), max = x:amax():item(), num = x:numel(), sum = x:sum():item(),
    sum_squares = (x * x):sum():item(), bucket_limit = {edges[first]}, bucket = {0},
  }
  for i = first, last do
    table.insert(histogram.bucket_limit, edges[i + 1])
    table.insert(histogram.bucket, counts[i])
  end
  return histogram
end

--- Adds the histogram of a tensor's elements.
Logger.add_histogram = signature.of([[add_histogram(tag: string, values: any, global_step: integer?,
  bins: any = "tensorflow", walltime: number?, max_bins: count?)]], function(self, tag, values, step, bins, time, most)
  if not self.enabled then return end
  write(self, "histogram", tag, histogram_of(values, bins, most), step, time or wall_time())
end)

-- Converts an image to uint8 [C, H, W]: floats from 0 to 1 become 0 to 255. A batch becomes a grid of 8 columns.
local function image_of(who, image, formats)
  if #formats ~= image.ndim or formats:find "[^NCHW]" then
    local bound = ("%d letters of N, C, H and W, one for each dim of the image"):format(image.ndim)
    options.must_be(who, "dataformats", bound, formats)
  end
  local order = {}
  for letter in ("NCHW"):gmatch "." do order[#order + 1] = formats:find(letter, 1, true) end
  if #order ~= #formats then options.must_be(who, "dataformats", "of different letters", formats) end
  image = image:detach():permute(order)
  if #formats == 2 then image = image:unsqueeze(1) end
  if #formats == 4 then
    image = require("luminary.vision.make_grid").make_grid(image, {nrow = 8, padding = 0})
  end
  local channels = image.shape[1]
  if channels < 1 or channels > 4 then
    options.must_be(who, "the number of channels", "from 1 to 4", channels,
      "dataformats = \"HWC\" is for channels at the end")
  end
  if image.dtype ~= "uint8" then image = (image:float() * 255):clamp(0, 255):to "uint8" end
  return image:contiguous()
end

local function add_image(who, formats)
  return signature.of(("%s(tag: string, img_tensor: tensor, %s, dataformats = %q)"):format(who, at, formats),
    function(self, tag, image, step, time, given)
    if self.enabled then write(self, "image", tag, image_of(who, image, given:upper()), step, time or wall_time()) end
  end)
end

--- watch.Logger:add_image(tag, img_tensor [, global_step] [, walltime] [, dataformats = "CHW"]): Adds an image, uint8
--- or of floats from 0 to 1.

Logger.add_image = add_image("add_image", "CHW")

--- watch.Logger:add_images(tag, img_tensor [, global_step] [, walltime] [, dataformats = "NCHW"]): Adds a batch of
--- images, as a grid of 8 columns.

Logger.add_images = add_image("add_images", "NCHW")

--- Adds text, which TensorBoard reads as Markdown.
Logger.add_text = signature.of("add_text(tag: string, text_string: string, " .. at .. ")",
  function(self, tag, text, step, time)
  write(self, "text", tag, text, step, time or wall_time())
end)

--- Adds hyperparameters, booleans, numbers and strings by name, with the metrics they led to.
Logger.add_hparams = signature.of([[add_hparams(hparam_dict: table, metric_dict: table, hparam_domain_discrete: table?,
  run_name: string?, global_step: integer?)]], function(self, hparams, metrics, domains, run_name, step)
  for name, value in pairs(hparams) do
    options.arg("add_hparams", "a name", name, "string")
    local kind = type(value)
    if kind ~= "number" and kind ~= "string" and kind ~= "boolean" then
      options.must_be("add_hparams", "hparam_dict." .. name, "a number, a string or a boolean", value)
    end
  end
  write(self, "hparams", hparams, check_numbers("add_hparams", "metric_dict", metrics), step, wall_time(), run_name,
    domains or {})
end)

--- Adds the graph of a model: its modules, and how their results for these inputs flow between them.
Logger.add_graph = signature.of([[add_graph(model: module, input_to_model: any, verbose: lacks = false,
  use_strict_trace: lacks = true)]], function(self, model, inputs)
  if core.is_tensor(inputs) then inputs = {inputs} end
  write(self, "graph", model, options.arg("add_graph", "input_to_model", inputs, "list"), wall_time())
end)

--- Writes all added entries to the file.
function Logger:flush() if self.enabled then self.file:flush() end end

--- Writes all added entries, and closes the file.
function Logger:close() if self.enabled then self.file:close() end end

return Logger
