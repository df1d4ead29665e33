--- nn.Module(): Defines the base class of all layers and models.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local class = require "luminary.base.class"
local one_based_list = require "luminary.base.one_based_list"
local gradients = require "luminary.autograd.zero_gradients"
local hooks_add = require "luminary.base.hooks"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local own = require "luminary.base.own_functions"
local parameter = require "luminary.nn.parameter"
local records = require "luminary.nn.module_fields"
local fail, is_plain, pack = options.fail, options.is_plain, options.pack

local ops = core.ops
local is_module, record_of, check_name, register = records.is_module, records.of, records.check_name, records.register
local find, joined = records.find, records.joined

local function call_forward(self, record, ...)
  if not record.backward_hooks then return self:forward(...) end
  return load_module "luminary.nn.backward_hooks"(self, record, ...)
end

local function call_with_hooks(self, record, ...)
  local inputs = pack(...)
  for _, hook in ipairs(record.pre_hooks or {}) do
    local changed = hook(self, inputs)
    if changed ~= nil then
      inputs = is_plain(changed) and changed or {changed}
      inputs.n = inputs.n or #inputs
    end
  end
  local outputs = pack(call_forward(self, record, unpack(inputs, 1, inputs.n)))
  for _, hook in ipairs(record.hooks or {}) do
    local changed = pack(hook(self, inputs, unpack(outputs, 1, outputs.n)))
    if changed[1] ~= nil then outputs = changed end
  end
  return unpack(outputs, 1, outputs.n)
end

-- Calls forward. Without gradients, results are freed at once that a module of the library with children made and did
-- not return. Other modules, and hooks, may keep what they see.
local function call_module(self, ...)
  local record = getmetatable(self)
  local forward, hooked = record.values.forward, record.pre_hooks or record.hooks or record.backward_hooks
  if not hooked and own.is[forward] then
    if #record.child == 0 or core.is_grad_enabled() then return forward(self, ...) end
    return core.call_own(forward, self, ...)
  end
  if not hooked then return own.call(forward, self, ...) end
  if core.in_call_of_own() then return core.call_foreign(call_with_hooks, self, record, ...) end
  return call_with_hooks(self, record, ...)
end

local function call(self, ...)
  local in_range = records.call_in_range -- set by a profiler
  if in_range then return in_range(self.__name, call_module, self, ...) end
  return call_module(self, ...)
end

local function construct(this, ...)
  local self, record = records.blank(this, call)
  record.values.training = true
  self:init(class.arguments(this, ...))
  return self
end

local Module = class.guard(class.new("Module", nil, construct))
Module.extend = class.methods.extend
Module.init = class.methods.init
Module.__hint = "m:named_children() and m:named_parameters() walk a module; nn.Sequential and nn.ModuleList are lists"

Module.__missing = {
  backward = "loss:backward() computes all gradients",
  save_pretrained = "lm.save(\"model.safetensors\", net:state_dict()) writes what Python reads, too",
  push_to_hub = "nothing is uploaded; lm.save(\"model.safetensors\", net:state_dict()) writes what the Hub takes",
  from_pretrained = "lm.models.gpt2 {weights = \"folder\"} and the like read Hugging Face's folders",
  compile = "lm.compile(net) returns a function that computes elementwise ops in a row together",
  generate = "lm.models.generate(net, ids) generates tokens with any language model",
  set_requires_gradient_sync = "no_sync(f), a method by nn.parallel.fully_shard, averages no gradients",
  set_is_last_backward = "no_sync(f), a method by nn.parallel.fully_shard, averages no gradients",
  set_reshard_after_backward = "nn.parallel.fully_shard takes {reshard_after_backward = …}",
  unshard = "nn.parallel.full_state_dict(net) returns full tensors; calls of a sharded module gather them",
  reshard = "nn.parallel.fully_shard takes {reshard_after_forward = …, reshard_after_backward = …}",
  gradient_checkpointing_enable = "lm.autograd.checkpoint(f, x) computes a part again instead of keeping it",
  resize_token_embeddings = "create the net with another vocab_size and load the weights with "
    .. "{ignore_mismatched_sizes = true}",
}

--- Returns whether v is an object of a class that extends nn.Module.
Module.is_module = is_module

--- Computes the result of a call net(x); classes define it.
function Module:forward(...) -- luacheck: ignore
  fail("%s: define function %s:forward(x)", self.__name, self.__name)
end

--- m:is(nn.Linear): Returns true if m's class is nn.Linear or extends it.
function Module:is(wanted)
  class.check("is", wanted)
  return is_module(self) and class.descends(record_of(self).class, wanted)
end

-- ---- registering

--- Registers a tensor that is state but not a parameter. {persistent = false} keeps it out of state_dict.
Module.register_buffer = signature.of("register_buffer(name, t, {persistent = true})", function(self, name, t, opts)
  local record = record_of(self)
  if t ~= nil then core.keep(options.arg("register_buffer", "the buffer", t, "tensor")) end
  check_name(record, "buffer", name)
  if t == nil then
    self[name] = nil
  else
    register(self, record, "buffer", name, t)
    record.transient[name] = not opts.persistent or nil
  end
end)

--- Registers a parameter, as self[name] = p does.
function Module:register_parameter(name, p)
  check_name(record_of(self), "param", name)
  if p ~= nil and not parameter.is(p) then
    options.must_be(self.__name .. ":register_parameter", ("'%s'"):format(name), "an nn.Parameter", p)
  end
  self[name] = p
end

--- Registers a child module, as self[name] = module does.
function Module:add_module(name, module)
  check_name(record_of(self), "child", name)
  if module ~= nil and not is_module(module) then
    options.must_be(self.__name .. ":add_module", ("'%s'"):format(name), "a module", module)
  end
  self[name] = module
end
Module.register_module = Module.add_module

local function add_hook(record, list, fn)
  if type(fn) ~= "function" then fail("%s: hook must be a function", record.class.__name) end
  return hooks_add(record, list, fn)
end

--- Calls fn(module, inputs, output…) after each forward. Values that it returns replace the outputs, unless nil.
--- `inputs` is a list. Returns a handle with :remove().
function Module:register_forward_hook(fn) return add_hook(record_of(self), "hooks", fn) end

--- Calls fn(module, inputs) before each forward. A list that it returns, or one value, replaces the inputs.
--- Returns a handle with :remove().
function Module:register_forward_pre_hook(fn) return add_hook(record_of(self), "pre_hooks", fn) end

--- Calls fn(module, grad_inputs, grad_outputs) when gradients of the module's inputs are computed. Both are lists of
--- the gradients of its tensor arguments and results, with nil where there is none, and n, their number. A list that it
--- returns, or one tensor, replaces grad_inputs. Returns a handle with :remove().
function Module:register_full_backward_hook(fn) return add_hook(record_of(self), "backward_hooks", fn) end

--- Calls fn(module, grad_outputs) before gradients of the module's inputs are computed. A list that it returns, or one
--- tensor, replaces grad_outputs. Returns a handle with :remove().
function Module:register_full_backward_pre_hook(fn)
  if type(fn) ~= "function" then fail("%s: hook must be a function", self.__name) end
  local record = record_of(self)
  local nothing = add_hook(record, "backward_hooks", function() end) -- call_with_hooks requires a backward hook
  local handle = add_hook(record, "backward_pre_hooks", fn)
  return {remove = function()
    nothing.remove()
    handle.remove()
  end}
end

--- Calls fn(module, dict, prefix) after state_dict has added the module's tensors to dict, under names that begin with
--- prefix; fn may change dict. Returns a handle with :remove().
function Module:register_state_dict_post_hook(fn) return add_hook(record_of(self), "state_hooks", fn) end

--- Calls fn(module, dict, prefix) before load_state_dict reads dict, a copy, which fn may change. Returns a handle with
--- :remove().
function Module:register_load_state_dict_pre_hook(fn) return add_hook(record_of(self), "load_pre_hooks", fn) end

--- Calls fn(module, {missing_keys = …, unexpected_keys = …}) after load_state_dict; fn may change both lists, before
--- they are an error. Returns a handle with :remove().
function Module:register_load_state_dict_post_hook(fn) return add_hook(record_of(self), "load_hooks", fn) end

-- ---- walking

-- Calls visit(module, prefix) for self and all descendants, parents first: each module once, or with `repeated` at each
-- of its positions. Returns the set of all.
local function walk(self, visit, prefix, repeated, seen)
  seen = seen or {}
  if seen[self] and not repeated then return seen end
  seen[self] = true
  visit(self, prefix)
  local record = record_of(self)
  for _, name in ipairs(record.child) do
    walk(record.values[name], visit, record.class.nameless and prefix or joined(prefix, name), repeated, seen)
  end
  return seen
end

-- Warns of modules and parameters that are only in a plain table of a module, and of tensors to train that are no
-- parameters: they compute, but are not trained, saved, moved or averaged.
local function warn_of_hidden(modules, params)
  for module in pairs(modules) do
    local record = record_of(module)
    for name, value in pairs(record.values) do
      if core.is_tensor(value) and not record.kind[name] and not params[value] and value.requires_grad
        and value.is_leaf then
        core.warn(("%s: %s requires a gradient and is no nn.Parameter, so that parameters(), state_dict() and to() "
          .. "skip it; self.%s = nn.Parameter(t) registers it"):format(module.__name, tostring(name), tostring(name)))
      end
      for key, v in pairs(is_plain(value) and value or {}) do
        if is_module(v) and not modules[v] or core.is_tensor(v) and parameter.is(v) and not params[v] then
          core.warn(("%s: %s[%s] is in a plain table, so that parameters(), state_dict() and to() skip it; "
            .. "%s"):format(module.__name, tostring(name), tostring(key),
            is_module(v) and "nn.ModuleList holds modules" or "a field of its own registers a parameter"))
          break
        end
      end
    end
  end
end

local walking = [[prefix = "", recurse = true, remove_duplicate = true]]
local default_walk = {prefix = "", recurse = true, remove_duplicate = true}

-- Returns two lists, names and tensors, of all parameters or buffers; each tensor occurs once.
local function collect(self, kind, how)
  how = how or default_walk
  local names, tensors, seen = {}, {}, {}
  local function visit(module, prefix)
    local record = record_of(module)
    for _, name in ipairs(record[kind]) do
      local t = record.values[name]
      if not seen[t] or how.remove_duplicate == false then
        seen[t] = true
        names[#names + 1] = joined(prefix, name)
        tensors[#tensors + 1] = t
      end
    end
  end
  local prefix, duplicates = how.prefix or "", how.remove_duplicate == false
  if not how.recurse then
    visit(self, prefix)
  else
    local modules = walk(self, visit, prefix, duplicates)
    if kind == "param" then warn_of_hidden(modules, seen) end
  end
  return tensors, names
end

local function iterate(values, names)
  local i = 0
  return function()
    i = i + 1
    if values[i] ~= nil then return names[i], values[i] end
  end
end

local list_of = one_based_list "list" -- the metatable of such lists

function list_of.__call() fail("a list cannot be called; use for i, p in ipairs(net:parameters()) do … end") end

--- Returns a list of all parameters, as optimizers take it. {recurse = false} leaves out those of child modules.
Module.parameters = signature.of("parameters({recurse = true})", function(self, opts)
  return setmetatable(collect(self, "param", opts), list_of)
end)
--- Walks all parameters with their dotted names: for name, p in net:named_parameters() do. Names begin with prefix.
--- {recurse = false} leaves out those of child modules; {remove_duplicate = false} repeats parameters used twice.
Module.named_parameters = signature.of("named_parameters({" .. walking .. "})", function(self, opts)
  return iterate(collect(self, "param", opts))
end)
--- Returns a list of all buffers. {recurse = false} leaves out those of child modules.
Module.buffers = signature.of("buffers({recurse = true})", function(self, opts)
  return setmetatable(collect(self, "buffer", opts), list_of)
end)
--- Walks all buffers with their dotted names: for name, t in net:named_buffers() do.
Module.named_buffers = signature.of("named_buffers({" .. walking .. "})", function(self, opts)
  return iterate(collect(self, "buffer", opts))
end)

local function children(self)
  local record = record_of(self)
  return lists.pick(record.values, record.child), record.child
end

--- Returns a list of the child modules.
function Module:children() return setmetatable(children(self), list_of) end
--- Walks the child modules: for name, child in net:named_children() do.
function Module:named_children() return iterate(children(self)) end

local function modules(self, how)
  local found, names = {}, {}
  walk(self, function(module, prefix)
    found[#found + 1] = module
    names[#names + 1] = prefix
  end, how and how.prefix or "", how and not how.remove_duplicate)
  return found, names
end

--- Returns a list of the module itself and all its descendants. {remove_duplicate = false} repeats modules used twice.
Module.modules = signature.of("modules({remove_duplicate = true})", function(self, opts)
  return setmetatable(modules(self, opts), list_of)
end)
--- Walks the module itself, named "", and all its descendants: for name, module in net:named_modules() do.
Module.named_modules = signature.of([[named_modules({memo: lacks, prefix = "",
  remove_duplicate = true})]], function(self, opts) return iterate(modules(self, opts)) end)

--- Returns the module of a dotted name: net:get_submodule("blocks.0"); "" is the module itself.
function Module:get_submodule(path) return (find("get_submodule", self, path, "child")) end
--- Replaces the module of a dotted name.
function Module:set_submodule(path, module)
  local _, parent, name = find("set_submodule", self, path, "child")
  if not name then fail("set_submodule: name must not be empty") end
  parent:add_module(name, module)
end
--- Returns the parameter of a dotted name: net:get_parameter("fc.weight").
function Module:get_parameter(path) return (find("get_parameter", self, path, "param")) end
--- Returns the buffer of a dotted name: net:get_buffer("norm.running_mean").
function Module:get_buffer(path) return (find("get_buffer", self, path, "buffer")) end

--- Calls fn(module) for all descendants, then for the module itself. Returns the module.
function Module:apply(fn)
  options.arg("apply", "the first argument", fn, "function")
  for _, child in ipairs(self:children()) do child:apply(fn) end
  fn(self)
  return self
end

-- ---- modes

--- Sets training mode for the module and its descendants; train(false) is eval(). Returns the module.
function Module:train(mode)
  if mode == nil then mode = true end
  options.arg("train", "mode", mode, "boolean")
  for _, module in ipairs(self:modules()) do record_of(module).values.training = mode end
  return self
end

--- Sets evaluation mode: dropout returns its input, batch normalization uses its running values. Returns the module.
function Module:eval() return self:train(false) end

--- Sets whether all parameters require gradients (true by default). Returns the module.
function Module:requires_grad_(on)
  if on == nil then on = true end
  for _, p in ipairs(on and self:parameters() or Module.parameters(self)) do p:requires_grad_(on) end
  return self
end

--- Drops all gradients; {set_to_none = false} fills them with zeros.
Module.zero_grad = signature.of("zero_grad({set_to_none = true})", function(self, opts)
  gradients.zero(self:parameters(), opts.set_to_none)
end)

-- ---- devices and dtypes

-- Replaces each parameter, its gradient and each buffer t by change(t). All are computed first, so that an error leaves
-- the module unchanged. Tensors stay the same objects, which optimizers hold.
local function convert(self, change, recurse)
  local news = {}
  for _, kind in ipairs {"param", "buffer"} do
    for _, t in ipairs((collect(self, kind, recurse == false and {prefix = "", remove_duplicate = true} or nil))) do
      local new = change(t:detach(), kind)
      news[#news + 1] = {t = t, new = new, grad = t.grad and change(t.grad:detach())}
    end
  end
  for _, change_of in ipairs(news) do
    local t = change_of.t
    t.grad = nil
    core.set_data(t, change_of.new)
    t.grad = change_of.grad
  end
  return self
end

local function device_or_dtype(v, target)
  if core.is_tensor(v) then
    target.device, target.dtype = v.device, v.dtype
  elseif type(v) == "table" then
    local given = options.check("to", v,
      '{device, dtype: string, memory_format: "channels_last" | "contiguous" | "preserve"}')
    target.format = given.memory_format
    if given.device then target.device = core.device(given.device, "to") end
    if given.dtype then target.dtype = core.dtype(given.dtype, "to") end
  elseif type(v) == "number" then
    target.device = core.device(v, "to")
  elseif type(v) == "string" then
    local kind = (v:find("^cpu") or v:find("^cuda")) and "device" or "dtype"
    target[kind] = core[kind](v, "to")
  else
    options.expected("to", "a device, a dtype, a tensor or {device = …, dtype = …}", v)
  end
end

--- Moves the module to a device, converts its floating tensors to a dtype, or both, in place: net:to("cuda:0"),
--- net:to("float64"), net:to(device, dtype). {memory_format = "channels_last"} converts parameters of 4 dims, which
--- spares convolutions on a GPU a copy of their weights in each pass. Returns the module.
function Module:to(...)
  local target = {}
  for i = 1, select("#", ...) do device_or_dtype((select(i, ...)), target) end
  if target.dtype and not core.is_floating_point(target.dtype) then
    fail("to: dtype must be floating for a module's parameters, got %s", target.dtype)
  end
  return convert(self, function(t)
    return t:to {
      device = target.device, dtype = core.is_floating_point(t) and target.dtype or nil,
      memory_format = t.ndim == 4 and target.format or nil,
    }
  end)
end

for name, dtype in pairs {float = "float32", double = "float64", half = "float16", bfloat16 = "bfloat16"} do
  --- Converts floating parameters and buffers to the dtype of this name (half: float16), in place. Returns the module.
  Module[name] = function(self) return self:to(dtype) end
end
--- Converts floating parameters and buffers to a dtype, in place. Returns the module.
function Module:type(dtype) return self:to(options.arg("type", "dtype", dtype, "string")) end
--- Replaces the memory of all parameters by uninitialized memory on a device, in place. Buffers keep their values: some
--- are in no state_dict. Returns the module.
Module.to_empty = signature.of("to_empty({device, recurse = true})", function(self, opts)
  local device = opts.device and core.device(opts.device)
  return convert(self, function(t, kind)
    return kind == "buffer" and t:to {device = device} or ops.empty_like(t, {device = device})
  end, opts.recurse)
end)
--- Moves parameters and buffers to the CPU, in place. Returns the module.
function Module:cpu() return self:to("cpu") end
--- Moves parameters and buffers to a CUDA device (the current one by default), in place. Returns the module.
function Module:cuda(device) return self:to(core.device(device or "cuda", "cuda")) end

--- Moves all parameters, their gradients and buffers to memory shared with other processes, in place. Returns the
--- module. Processes and threads that receive it train the same parameters, each with its own gradients, without
--- synchronization. Memory of a GPU is shared where it is; the process that owns it must outlive the others.
function Module:share_memory()
  local list, names = {}, {}
  for _, kind in ipairs {"param", "buffer"} do
    local tensors, found = collect(self, kind)
    for i, t in ipairs(tensors) do
      list[#list + 1], names[#names + 1] = t, found[i]
      if t.grad then list[#list + 1], names[#names + 1] = t.grad, found[i] .. ".grad" end
      for _, vector in ipairs(core.field(t, "vectors") or {}) do
        list[#list + 1], names[#names + 1] = vector, "the vector with " .. found[i]
      end
    end
  end
  load_module("luminary.mp.share_tensors")(list, function(i, why) fail("share_memory: %s: %s", names[i], why) end)
  return self
end

--- Returns a deep copy: parameters with their gradients, buffers, other tensors and plain tables are copied. Tensors
--- shared within the module are shared within the copy. Hooks and other objects are the same.
function Module:clone() return load_module "luminary.nn.clone"(self) end

-- ---- state

--- Returns a table of parameters and buffers by dotted name, which share the module's memory.
function Module:state_dict()
  local dict = {}
  for _, entry in ipairs(records.state_of(self)) do
    local place = core.field(entry[2], "placement")
    dict[entry[1]] = entry[2]:detach()
    if place then place:note_part(dict[entry[1]], entry[1]) end
  end
  records.run_hooks(self, "state_hooks", dict)
  return dict
end

--- Copies the tensors of a state_dict into the module's parameters and buffers.
Module.load_state_dict = signature.of([[load_state_dict(dict, {strict = true, assign = false,
  ignore_mismatched_sizes = false, dry_run = false, device, dtype: string, rename})]], function(self, dict, opts)
  local function hooks(name, argument) records.run_hooks(self, name, argument) end
  local function each(f) records.each_prefix(self, f) end
  return load_module "luminary.nn.load_state_dict"(self, records.state_of(self), hooks, each, dict, opts)
end)

--- Returns the state that this rank holds of a module of nn.parallel.fully_shard; nil if no parameter is sharded.
--- lm.checkpoint saves it in a file of this rank.
function Module:shard_state_dict()
  local placement = package.loaded["luminary.nn.parallel.placement"]
  return placement and placement.state_of_module(self)
end

--- Loads the shards of a module that was sharded over any number of ranks; each rank keeps its own rows. next_shard()
--- returns the ranks' shard_state_dicts one after another, then nil.
function Module:load_shards(next_shard) load_module("luminary.nn.parallel.placement").load_module(self, next_shard) end

-- ---- printing

--- Returns the text between the parentheses of repr; layers override it.
function Module.extra_repr() return "" end

local function indented(text) return (text:gsub("\n", "\n  ")) end

--- Returns the module's text, as PyTorch prints it. tostring and print use it.
function Module:repr()
  local lines, extra = {}, self:extra_repr()
  local record = record_of(self)
  for _, name in ipairs(record.child) do
    lines[#lines + 1] = ("(%s): %s"):format(name, indented(record.values[name]:repr()))
  end
  if #lines == 0 then return ("%s(%s)"):format(self.__name, extra) end
  if extra ~= "" then table.insert(lines, 1, extra) end
  return ("%s(\n  %s\n)"):format(self.__name, table.concat(lines, "\n  "))
end

return Module
