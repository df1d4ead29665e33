--- Does the work of luminary.h's functions on models. src/c_interface/model.c calls these functions with a model,
--- strings and tensors. A model is a table: net (a module or function, or nil), functions (by name), inputs and outputs
--- (lists of {name, dtype, dims}), takes_names (true if net takes a table of inputs).
local core = require "luminary.core"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
require "luminary"
local is_module = require("luminary.nn.module_fields").is_module

local describe, is_plain, pack, shown_path = options.describe, options.is_plain, options.pack, options.shown_path
local host = {}

-- Values of lum_status in luminary.h. An error that is a table {status, message} has its status.
local ARGUMENT, FILE, MISSING, SCRIPT = 1, 7, 9, 10

local function fail(status, format, ...) error({status, format:format(...)}, 0) end

-- Returns f(...); an error without a status gets this one.
local function with_status(status, f, ...)
  local results = pack(pcall(f, ...))
  if results[1] then return unpack(results, 2, results.n) end
  error(type(results[2]) == "string" and {status, results[2]} or results[2], 0)
end

-- ---- loading

local function load_onnx(path)
  local loaded, onnx = pcall(load_module, "luminary.onnx")
  if not loaded then
    fail(MISSING, "'%s': this installation has no reader of ONNX files: %s", shown_path(path), tostring(onnx))
  end
  local net = with_status(FILE, onnx.load, path)
  return {net = net, functions = {}, inputs = net.inputs, outputs = net.outputs, takes_names = true}
end

-- Runs a Lua file, whose chunk gets the path of its folder.
local function load_lua(path)
  local file, why = io.open(path, "rb")
  local text
  if file then
    text, why = file:read "*a"
    file:close()
  end
  if not text then fail(FILE, "cannot read '%s': %s", shown_path(path), (why:gsub("^.*: ", ""))) end
  if text:byte() == 27 then fail(FILE, "'%s': expected Lua source, got bytecode", shown_path(path)) end
  local chunk, problem = loadstring(text, "@" .. path)
  if not chunk then fail(SCRIPT, "%s", problem) end
  local value = chunk(path:match "^(.*)/[^/]*$" or ".")
  if is_module(value) or type(value) == "function" then value = {model = value} end
  local net = is_plain(value) and value.model
  if not is_plain(value) or net ~= nil and not is_module(net) and type(net) ~= "function" then
    fail(SCRIPT, "'%s': expected the file to return an nn.Module, a function or a table with one as model, got %s",
      shown_path(path), describe(net or value))
  end
  return {net = net, functions = value, inputs = value.inputs, outputs = value.outputs}
end

-- Returns declared inputs or outputs, names or tables, as a list of tables.
local function described(path, field, list)
  local infos = {}
  for i, entry in ipairs(list or {}) do
    if type(entry) == "string" then entry = {name = entry} end
    if type(entry) ~= "table" or type(entry.name) ~= "string" then
      fail(SCRIPT, "'%s': %s[%d] must be a name or a table with a name, got %s", shown_path(path), field, i,
        describe(entry))
    end
    infos[i] = {name = entry.name, dtype = entry.dtype, dims = entry.dims or entry.shape}
  end
  return infos
end

local function module_of(m)
  return is_module(m.net) and m.net or fail(ARGUMENT, "expected a model with an nn.Module, got %s", describe(m.net))
end

function host.load_weights(m, path)
  local net = module_of(m)
  local state = with_status(FILE, load_module("luminary.save_load").load, path, {mmap = true})
  with_status(FILE, net.load_state_dict, net, state, {assign = true})
end

function host.to(m, device) module_of(m):to {device = device} end

function host.load(_, path, weights, device)
  if path:lower():find "%.safetensors$" then
    fail(ARGUMENT, "'%s': expected a Lua file or an .onnx file; pass weights in lum_model_options", shown_path(path))
  end
  local m = (path:lower():find "%.onnx$" and load_onnx or load_lua)(path)
  m.inputs, m.outputs = described(path, "inputs", m.inputs), described(path, "outputs", m.outputs)
  if weights then host.load_weights(m, weights) end
  if device then host.to(m, device) end
  if is_module(m.net) then m.net:eval() end
  return m
end

function host.info(m, which) return m[which] end

-- ---- running

local DTYPES = {number = "float64", boolean = "bool"}

local function forward(net, ...) return net(...) end

local function evaluate(m, ...)
  local net = m.net
  if net == nil then fail(ARGUMENT, "the file returned no model, only functions; use lum_model_call") end
  if is_module(net) and net.training then return load_module "luminary.nn.in_mode"(net, false, forward, net, ...) end
  return core.no_grad(forward, net, ...)
end

-- Returns the results as tensors without graphs, which would keep memory. The only result may be a list of them, or
-- a table by the names of the outputs.
local function listed(m, ...)
  local list, first = pack(...), (...)
  if list.n == 1 and type(first) == "table" and is_plain(first) then
    list = {n = #first, unpack(first)}
    if options.named_field(first) then
      list.n = #m.outputs
      for i, output in ipairs(m.outputs) do list[i] = first[output.name] end
      if list.n == 0 then fail(SCRIPT, "the model returned a table with names; declare its outputs") end
    end
  end
  for i = 1, list.n do
    local value = list[i]
    local dtype = DTYPES[type(value)]
    if dtype then
      list[i] = core.tensor(value, {dtype = dtype})
    elseif not core.is_tensor(value) then
      fail(SCRIPT, "output %d must be a tensor, a number or a boolean, got %s", i, describe(value))
    elseif value.requires_grad then
      list[i] = value:detach()
    end
  end
  return list
end

local function unlisted(list) return unpack(list, 1, list.n) end

function host.run(m, ...) return unlisted(listed(m, evaluate(m, ...))) end

function host.call(m, name, ...)
  local f, names = m.functions[name], {}
  if type(f) == "function" then return unlisted(listed(m, f(...))) end
  for key, value in pairs(m.functions) do names[#names + 1] = type(value) == "function" and tostring(key) or nil end
  table.sort(names)
  fail(ARGUMENT, "the file returned no function '%s'; it has %s", name, names[1] and table.concat(names, ", ")
    or "none")
end

-- Returns the index of a name among declared inputs or outputs; `noun` is "input" or "output".
local function index_of(infos, noun, name)
  local names = {}
  for i, info in ipairs(infos) do
    if info.name == name then return i end
    names[i] = info.name
  end
  if #names == 0 then fail(ARGUMENT, "the model declares no names of %ss", noun) end
  fail(ARGUMENT, "unknown %s '%s'; the model has %s", noun, name, table.concat(names, ", "))
end

function host.run_named(m, input_names, output_names, ...)
  local inputs, chosen, list = {}, {n = #output_names}
  for i, name in ipairs(input_names) do
    local key = m.takes_names and name or index_of(m.inputs, "input", name)
    if inputs[key] then fail(ARGUMENT, "input '%s' is given twice", name) end
    inputs[key] = (select(i, ...))
  end
  for i, name in ipairs(output_names) do chosen[i] = index_of(m.outputs, "output", name) end
  for i, info in ipairs(m.inputs) do
    local needed = not m.takes_names or next(inputs) == nil -- a net that takes names knows which are optional
    if needed and not inputs[i] then fail(ARGUMENT, "input '%s' is missing", info.name) end
  end
  if m.takes_names then
    list = listed(m, evaluate(m, inputs))
  else
    list = listed(m, evaluate(m, unpack(inputs, 1, #m.inputs)))
  end
  for i = 1, chosen.n do chosen[i] = list[chosen[i]] end
  return unlisted(chosen)
end

-- ---- conversations

local function decoded(name, json)
  if not json then fail(ARGUMENT, "%s must not be NULL", name) end
  local value = with_status(ARGUMENT, core.json_decode, json, false)
  return is_plain(value) and value or fail(ARGUMENT, "%s must be a JSON object, got %s", name, describe(value))
end

function host.chat(_, path, json)
  return with_status(FILE, load_module "luminary.models.chat", path, json and decoded("options", json))
end

function host.say(chat, message, write)
  with_status(ARGUMENT, chat.say, chat, message, {
    on_text = write and function(piece) return write((piece:gsub("%z", "\239\191\189"))) end, -- a C string has no NUL
  })
end

function host.add(chat, json) with_status(ARGUMENT, chat.add, chat, decoded("message", json)) end
function host.reset(chat) chat:reset() end

-- ---- weights

function host.tensor(m, name)
  local t = module_of(m):state_dict()[name]
  return t and t:detach() or fail(ARGUMENT, "the module has no parameter or buffer '%s'", name)
end

function host.save(m, path)
  with_status(FILE, load_module("luminary.save_load").save, path, module_of(m):state_dict())
end

return host
