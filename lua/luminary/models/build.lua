--- How every network of lm.models is made: its options checked, a config.json beside its weights read, weights loaded.
local core = require "luminary.core"
local changes = require "luminary.base.weight_changes"
local excerpt = require "luminary.base.excerpt"
local options = require "luminary.base.options"
local Source = require "luminary.file_formats.source"

local fail = options.fail
local NULL = {} -- a JSON null

local loading = {
  strict = {"boolean", true}, ignore_mismatched_sizes = {"boolean", false}, rename = changes.options.rename,
}
local all = {weights = {"any"}, device = changes.options.device, dtype = changes.options.dtype}
for name, row in pairs(loading) do all[name] = row end

-- The config.json in the folder, or beside the file, that weights names; nil if there is none. Its path.
local function read_config(who, weights)
  if type(weights) ~= "string" then return nil end
  local folder = core.file_kind(weights) == "a folder" and weights:gsub("/*$", "/") or weights:match "^.*/" or ""
  local path = folder .. "config.json"
  if not core.file_kind(path) then return nil end
  local source = Source.open(path, {})
  local text = source:text(0, source.size)
  source:close()
  local ok, config = pcall(core.json_decode, text, NULL)
  if not ok or type(config) ~= "table" then fail("%s: %s is no JSON object", who, path) end
  for name, value in pairs(config) do
    if value == NULL then config[name] = nil end
  end
  return config, path
end

-- Options of this model as a config.json says them.
local function from_config(who, config, path, reads, spec)
  local kind = config.model_type or config._class_name
  if kind and kind ~= reads.kind then fail("%s: %s is of a '%s', not a '%s'", who, path, tostring(kind), reads.kind) end
  for name, only in pairs(reads.only or {}) do
    if config[name] ~= nil and config[name] ~= only then
      fail("%s: %s has %s = %s; this version has %s alone", who, path, name, tostring(config[name]), tostring(only))
    end
  end
  local out = {}
  for name in pairs(spec) do out[name] = config[name] end
  if reads.also then reads.also(config, out) end
  return out
end

-- A token's number, or a list of them, as they count here; nil for what is neither.
local function from_1(id)
  if type(id) == "number" then return id + 1 end
  if type(id) ~= "table" then return nil end
  local list = {}
  for i, each in ipairs(id) do list[i] = from_1(each) end
  return list
end

--- make(options) with the options of `who`, checked by spec. reads, of families that Hugging Face's folders hold: {kind
--- of config.json's model_type (or _class_name), only = {name = the value that this version has}, also(config, options)
--- for what is called otherwise there}. first: see options.check.
---
--- Every maker takes these too: weights, a file or folder that lm.load reads, or a table of tensors by name; strict,
--- ignore_mismatched_sizes and rename as load_state_dict has them; device and dtype. With weights load_state_dict's
--- report is a second result. Options that are given go before those of config.json. A network of a folder with a
--- config.json is in evaluation mode, and its eos_token_id is that of the file, from 1, which generate ends with.
return function(who, opts, spec, make, first, reads)
  local rows = {}
  for name, row in pairs(spec) do rows[name] = row end
  for name, row in pairs(all) do rows[name] = row end
  local given = options.check(who, opts, rows, first)
  local weights, config, path = given.weights, nil, nil
  if type(weights) == "string" and not core.file_kind(weights) then
    fail("%s: weights: there is no file or folder '%s'; nothing is downloaded", who, excerpt(weights, 200))
  end
  if reads then config, path = read_config(who, weights) end
  if config then
    local told = from_config(who, config, path, reads, spec)
    for name, value in pairs(opts) do told[name] = value end
    given = options.check(who, told, rows, first)
  end
  local own, how, dtype = {}, {}, changes.dtype(who, given.dtype)
  for name in pairs(spec) do own[name] = given[name] end
  for name in pairs(loading) do how[name] = given[name] end
  local net = make(own)
  if dtype or given.device then net:to {dtype = dtype, device = given.device} end
  if weights == nil then
    if how.rename then fail("%s: rename goes with weights", who) end
    return net
  end
  if type(weights) == "string" then weights = require("luminary.save_load").load(weights, {mmap = true}) end
  local report = net:load_state_dict(weights, how)
  if config then
    net:eval()
    net.eos_token_id = from_1(config.eos_token_id)
  end
  return net, report
end
