--- watch.SummaryWriter(…): Writes entries to event files in a folder, which TensorBoard shows.
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local event_file = require "luminary.watch.event_file"
local Logger = require "luminary.watch.logger"

local encode = event_file.encode

local SummaryWriter = class.define("SummaryWriter", Logger)

local DT_FLOAT, DT_DOUBLE, DT_STRING = 1, 2, 7 -- types.proto
local SESSION_START = 1 -- event.proto

local function file_in(self, folder)
  return event_file.open(folder, self.max_queue, self.flush_secs, self.filename_suffix)
end

-- Returns the event file of a separate run, in a folder of log_dir.
local function file_of_run(self, who, what, name)
  if ("/" .. name .. "/"):find("/../", 1, true) then options.must_be(who, what, "inside of log_dir", name) end
  return file_in(self, ("%s/%s"):format(self.log_dir, name))
end

SummaryWriter.init = signature.of([[SummaryWriter({log_dir: string, comment = "", purge_step: natural,
  max_queue: natural = 10, flush_secs: positive = 120, filename_suffix = "", *, all_ranks = false})]],
  function(self, opts)
  signature.assign(self, opts)
  if opts.filename_suffix:find "/" then
    options.must_be("SummaryWriter", "filename_suffix", "without a slash", opts.filename_suffix)
  end
  if not self:start(opts.all_ranks) then return end
  self.log_dir = opts.log_dir or ("runs/%s_%s%s"):format(os.date "%b%d_%H-%M-%S", event_file.host(), opts.comment)
  self.groups = {} -- event files of add_scalars, by run
  self.file = file_in(self, self.log_dir)
  if opts.purge_step then -- TensorBoard ignores earlier files from that step on
    self.file:add({session_log = {status = SESSION_START}}, opts.purge_step)
  end
end)

--- Returns the folder of the event files; nil on ranks that write nothing.
function SummaryWriter:get_logdir() return self.log_dir end

local function add(self, value, step, time, file) (file or self.file):add({summary = {value = {value}}}, step, time) end

local function plugin(name, content) return {plugin_data = {plugin_name = name, content = content}} end

--- Writes numbers by tag.
--- style: nil, or the precision, "float" or "double", of a value as a tensor.
function SummaryWriter:write_scalars(values, step, time, style)
  for tag, value in lists.sorted_pairs(values) do
    local tensor
    if style == "float" then tensor = {dtype = DT_FLOAT, float_val = {value}} end
    if style == "double" then tensor = {dtype = DT_DOUBLE, double_val = {value}} end
    add(self, {
      tag = tag, simple_value = not tensor and value or nil, tensor = tensor, metadata = tensor and plugin "scalars",
    }, step, time)
  end
end

--- Writes numbers by name under one tag.
--- TensorBoard shows one tag of several folders in one chart.
function SummaryWriter:write_scalar_group(main, values, step, time)
  for _, name in ipairs(options.sorted_keys(values)) do
    local run = ("%s_%s"):format(main:gsub("/", "_"), name)
    self.groups[run] = self.groups[run] or file_of_run(self, "add_scalars", "the tag", run)
    add(self, {tag = main, simple_value = values[name]}, step, time, self.groups[run])
  end
end

--- Writes a histogram.
function SummaryWriter:write_histogram(tag, histogram, step, time)
  add(self, {tag = tag, histo = histogram}, step, time)
end

--- Writes an image, uint8 [C, H, W].
function SummaryWriter:write_image(tag, image, step, time)
  local channels, height, width = unpack(image.shape)
  local png = load_module("luminary.vision.image_files").encode_png(image)
  local bytes = require("ffi").string(require("ffi").cast("const char *", png:data_ptr()), png:numel())
  add(self, {tag = tag, image = {height = height, width = width, colorspace = channels, encoded_image_string = bytes}},
    step, time)
end

--- Writes text.
function SummaryWriter:write_text(tag, text, step, time)
  add(self, {
    tag = tag .. "/text_summary", metadata = plugin("text", ""),
    tensor = {dtype = DT_STRING, shape = {dim = {{size = 1}}}, string_val = {text}},
  }, step, time)
end

-- ---- hyperparameters: a separate run, as PyTorch writes it

local of_kind = { -- the field of a value, and DataType of hparams/api.proto
  string = {"string_value", 1}, boolean = {"bool_value", 2}, number = {"number_value", 3},
}

local function value_of(v) return {[of_kind[type(v)][1]] = v} end

local function add_session(file, tag, session, step)
  session.version = 0
  add(nil, {tag = "_hparams_/" .. tag, metadata = plugin("hparams", encode("HParams", session))}, step, nil, file)
end

--- Writes hyperparameters and the metrics they led to.
function SummaryWriter:write_hparams(hparams, metrics, step, time, run_name, domains)
  local infos, entries = {}, {}
  for i, name in ipairs(options.sorted_keys(hparams)) do
    local domain
    if domains[name] then
      domain = {values = {}}
      for k, v in ipairs(options.arg("add_hparams", "hparam_domain_discrete." .. name, domains[name], "list")) do
        local what = ("hparam_domain_discrete.%s[%d]"):format(name, k)
        if not of_kind[type(v)] then options.must_be("add_hparams", what, "a number, a string or a boolean", v) end
        domain.values[k] = value_of(v)
      end
    end
    infos[i] = {name = name, type = of_kind[type(hparams[name])][2], domain_discrete = domain}
    entries[i] = {key = name, value = value_of(hparams[name])}
  end
  local names = options.sorted_keys(metrics)
  local metric_infos = lists.map(names, function(name) return {name = {tag = name}} end)
  local file = file_of_run(self, "add_hparams", "run_name", run_name or ("%.6f"):format(time))
  add_session(file, "experiment", {experiment = {hparam_infos = infos, metric_infos = metric_infos}}, step)
  add_session(file, "session_start_info", {session_start_info = {hparams = entries}}, step)
  add_session(file, "session_end_info", {session_end_info = {status = 1}}, step) -- 1: STATUS_SUCCESS
  for _, name in ipairs(names) do add(self, {tag = name, simple_value = metrics[name]}, step, time, file) end
  file:close()
end

-- ---- graphs

local function shape_proto(shape)
  return {dim = lists.map(shape, function(size) return {size = size} end)}
end

local function shape_attr(shapes)
  return {key = "_output_shapes", value = {list = {shape = lists.map(shapes, shape_proto)}}}
end

--- Writes a model's graph.
function SummaryWriter:write_graph(model, inputs, time)
  local calls = require("luminary.watch.module_calls").trace(model, inputs, true)
  local root, names, times, nodes = model.__name, {input = "input"}, {}, {}
  nodes[1] = {name = "input", op = "input", attr = {shape_attr(calls[1].inputs)}}
  for _, call in ipairs(calls) do
    if call.is_leaf then
      local name = call.module and (call.path == "" and root or root .. "/" .. call.path:gsub("%.", "/")) or call.path
      times[name] = (times[name] or 0) + 1
      if times[name] > 1 then name = ("%s_%d"):format(name, times[name]) end -- a repeated call of a module
      names[call] = name
      local from = lists.map(call.from, function(each) return names[each] end)
      local attr = {shape_attr(call.outputs)}
      if call.module then
        attr[2] = {key = "attr", value = {s = (tostring(call.module))}}
      end
      nodes[#nodes + 1] = {name = name, op = call.module and call.module.__name or "output", input = from, attr = attr}
    end
  end
  self.file:add({graph_def = encode("GraphDef", {node = nodes, versions = {producer = 22}})}, nil, time)
end

-- ---- all files

local function each_file(self, method)
  if not self.enabled then return end
  self.file[method](self.file)
  for _, file in pairs(self.groups) do file[method](file) end
end

--- Writes all added entries to the files.
function SummaryWriter:flush() each_file(self, "flush") end

--- Writes all added entries, and closes the files.
function SummaryWriter:close() each_file(self, "close") end

return SummaryWriter
