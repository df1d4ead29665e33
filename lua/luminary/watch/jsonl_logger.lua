--- watch.JSONLogger(path, {append = false, wall_time = true, all_ranks = false}): Writes JSON lines, an object for each
--- call of the log.
local characters = require "luminary.base.characters"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local json_encode = require "luminary.base.json_encode"
local log_file = require "luminary.watch.log_file"
local Logger = require "luminary.watch.logger"

local JSONLogger = class.define("JSONLogger", Logger)

JSONLogger.init = signature.of("JSONLogger(path: string, {append = false, *, wall_time = true, all_ranks = false})",
  function(self, path, opts)
  if not self:start(opts.all_ranks) then return end
  self.wall_time = opts.wall_time
  self.file = log_file.open("JSONLogger", path, opts.append, 0)
end)

-- Removes NaN and infinity, which JSON lacks.
local function finite(value)
  if type(value) == "number" then return value - value == 0 and value or nil end
  if type(value) ~= "table" then return value end
  local out = {}
  for key, each in pairs(value) do out[key] = finite(each) end
  return out
end

local function write(self, values, step, time)
  local line = finite(values)
  for _, name in ipairs {"step", "wall_time"} do
    if values[name] ~= nil then options.must_be("JSONLogger", "a tag", "neither 'step' nor 'wall_time'", name) end
  end
  line.step, line.wall_time = step, self.wall_time and math.floor(time * 1e6 + 0.5) / 1e6 or nil
  local text = json_encode(line)
  for _, name in ipairs(options.sorted_keys(values)) do
    if line[name] == nil then text = text:gsub("}$", (",%s:null}"):format(json_encode(name):gsub("%%", "%%%%"))) end
  end
  self.file:write(characters.as_utf8(text), "\n")
end

--- Writes numbers by tag.
function JSONLogger:write_scalars(values, step, time, _style) write(self, values, step, time) end

--- Writes text.
function JSONLogger:write_text(tag, text, step, time) write(self, {[tag] = text}, step, time) end

--- Writes hyperparameters and the metrics they led to.
function JSONLogger:write_hparams(hparams, metrics, step, time, _run_name, _domains)
  write(self, {hparams = hparams, metrics = metrics}, step, time)
end

--- Writes a histogram.
function JSONLogger:write_histogram(tag, h, step, time)
  local mean = h.sum / h.num
  local std = math.sqrt(math.max(h.sum_squares / h.num - mean * mean, 0))
  write(self, {[tag] = {min = h.min, max = h.max, num = h.num, mean = mean, std = std}}, step, time)
end

return JSONLogger
