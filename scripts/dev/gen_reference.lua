--- Writes docs/reference/: every public name, from what help shows (lua/luminary/help/) and the ops' entries
--- (src/op/entries/ops.lua).
---
---   luajit scripts/dev/gen_reference.lua [FOLDER]     FOLDER: where to, instead of docs/reference
local root = (arg[0]:match("^(.*)/") or ".") .. "/../.."
local folder = arg[1] or root .. "/docs/reference"
package.path = root .. "/src/op/entries/?.lua;" .. package.path
local core = require "luminary.core"
local help = require "luminary.help"
local ops = require "ops"
local lm = require "luminary"

-- Pages in the order of the index: file, title, the libraries in it as help calls them.
local PAGES = {
  {"tensors", "Tensors: methods and fields that are no ops", {"x"}},
  {"lm", "lm: the library itself", {
    "lm", "lm.autograd", "lm.autograd.functional", "lm.func", "lm.amp", "lm.backends", "lm.backends.cuda",
    "lm.checkpoint", "lm.models", "net", "lm.parallel", "lm.watch", "lm.watch.progress",
  }},
  {"nn", "nn: layers, losses, parallel training", {
    "nn", "F", "nn.init", "nn.utils", "nn.utils.rnn", "nn.utils.parametrize", "nn.utils.parametrizations",
    "nn.utils.stateless", "nn.parallel", "nn.parallel.comm", "nn.parallel.comm_hooks",
  }},
  {"distributions", "lm.distributions: probability distributions", {"lm.distributions"}},
  {"optim", "optim: optimizers and schedules", {"optim", "optim.lr_scheduler", "optim.swa_utils"}},
  {"data", "data: sets, samplers, loaders", {"data"}},
  {"text", "text: tokenizers", {"text"}},
  {"vision", "vision: images and transforms", {"vision", "transforms", "transforms.functional"}},
  {"distributed", "dist and lm.mp: ranks and processes", {"dist", "dist.ReduceOp", "lm.mp", "lm.mp.Event"}},
  {"cuda", "lm.cuda: devices, streams, graphs", {"lm.cuda", "lm.cuda.comm", "lm.cuda.nccl"}},
}

-- ---- text

local function escaped(text) return (text:gsub("<", "\\<")) end

-- A text of help's: the call or name that it begins with, and the rest, without the margin that it has below one.
local function split(text)
  local call, rest = text:match "^([%w_.:]+%b()[^:\n]*): (.*)$"
  if not call then call, rest = text:match "^([%w_.]*[%w_]): (.*)$" end
  if call then return call, rest end
  call, rest = text:match "^([%w_.:]+%b()[^\n]*)\n(.*)$"
  if not call then call, rest = text:match "^([%w_.:]+)\n(.*)$" end
  if call then return call, (("\n" .. rest):gsub("\n  ", "\n"):sub(2)) end
  if text:match "^[%w_.:]+%b()$" then return text, "" end
  return nil, text
end

-- One item of a list; lines with a margin are an example.
local function item(name, text, margin)
  local call, rest = split(text)
  local out, in_code = {("%s- `%s`"):format(margin, call or name)}, false
  for line in (rest .. "\n"):gmatch "(.-)\n" do
    local is_code = line:find "^%s+%S" ~= nil or in_code and line == ""
    if is_code ~= in_code then
      out[#out + 1] = margin .. "  ```" .. (is_code and "lua" or "")
      in_code = is_code
    end
    if #out == 1 and line ~= "" then
      out[1] = out[1] .. ": " .. escaped(line)
    elseif line == "" then
      if not in_code then out[#out + 1] = "" end
    else
      out[#out + 1] = margin .. (in_code and line or "  " .. escaped(line))
    end
  end
  if in_code then out[#out + 1] = margin .. "  ```" end
  while out[#out] == "" do out[#out] = nil end
  return table.concat(out, "\n")
end

local function write(name, lines)
  local file = assert(io.open(("%s/%s.md"):format(folder, name), "w"))
  file:write(table.concat(lines, "\n"), "\n")
  file:close()
end

-- ---- libraries and classes

local of_owner, classes_below = {}, {} -- entries by owner; classes without a public name, by one that extends them
for _, entry in ipairs(help.entries()) do
  of_owner[entry.owner] = of_owner[entry.owner] or {}
  table.insert(of_owner[entry.owner], entry)
end

local owner_of = require("luminary.help.index").all().owner_of -- by class

local function is_class(value) return type(value) == "table" and owner_of[value] ~= nil end

local public, said = {}, {}
for _, entry in ipairs(help.entries()) do
  if is_class(entry.value) then public[entry.value] = true end
end
for _, entry in ipairs(help.entries()) do
  local super = is_class(entry.value) and rawget(entry.value, "super")
  while super and not public[super] and not classes_below[super] do
    classes_below[super] = entry.value
    super = rawget(super, "super")
  end
end

-- Classes between ours, whose methods are for those that extend them.
local INNER = {Elementwise = true, Whole = true, Images = true}

-- The methods that a class adds to those of the one it extends; what is said of these stands there.
local function add_methods(lines, of)
  local owner = owner_of[of]
  for _, entry in ipairs(not INNER[owner] and of_owner[owner] or {}) do
    local text = not help.usual[entry.name] and not entry.inner and help.of(entry)
    local about = text and text:match "^(%u%w*):"
    if text and not said[text] and (about == nil or about == owner) then
      said[text] = true
      lines[#lines + 1] = item(entry.path, text, "  ")
    end
  end
  for super, sub in pairs(classes_below) do
    if sub == of then add_methods(lines, super) end
  end
end

local function is_op(entry) return rawget(ops, entry.name) ~= nil or rawget(ops, (entry.name:gsub("_$", ""))) ~= nil end

local function add_library(lines, name)
  lines[#lines + 1] = ("\n## %s\n"):format(name)
  local is_tensor = name == "x"
  for _, entry in ipairs(of_owner[name] or {}) do
    local text = not help.is_inner(entry.name) and not ((is_tensor or name == "lm") and is_op(entry)) and help.of(entry)
    if text and not (said[text] and type(entry.value) == "function") then
      said[text] = true
      lines[#lines + 1] = item(entry.path, text:gsub("\nIts methods: [^\n]*$", ""), "")
      if is_class(entry.value) then add_methods(lines, entry.value) end
    end
  end
end

-- ---- ops

local CAST = {
  lower = "lower", keep = "float32", keep_gpu = "float32 on a GPU", banned_gpu = "an error on a GPU", widest = "widest",
}

local function dtypes_of(op)
  if op.gives == "float" then return "integers become floating" end
  if op.gives == "bool" then return "gives bool" end
  return op.elementwise and "those of the inputs" or ""
end

local function gradient_of(op)
  if op.kind == "composite" then return "of its parts" end
  if op.grad == "none" then return "none" end
  return op.grad and "yes" or "none"
end

local function cell(text) return (escaped(text):gsub("|", "\\|")) end

local function ops_page()
  local lines = {
    "# Ops", "",
    "Functions of `lm`, most of which are methods of tensors too; `_` behind a name is the same in place, where the",
    "last column has it. Shapes: N batch, C channels, H, W. Under autocast \"lower\" computes in the low dtype,",
    "\"float32\" in that, \"widest\" in the widest among the inputs'. Written by `scripts/dev/gen_reference.lua`.", "",
    "| op | what it does | dtypes | gradient | autocast | in place |", "|---|---|---|---|---|---|",
  }
  local names = {}
  for _, op in ipairs(ops) do names[#names + 1] = op.name end
  table.sort(names)
  for _, name in ipairs(names) do
    local op, text = ops[name], core.help(name)
    if text and lm[name] and not help.is_inner(name) then
      local call, about = text:match "^([^\n]*)\n%s*(.*)$"
      lines[#lines + 1] = "| " .. table.concat({
        "`" .. call .. "`", cell(about), dtypes_of(op), gradient_of(op), CAST[op.autocast] or "",
        rawget(core.ops, name .. "_") and "`" .. name .. "_`" or "",
      }, " | ") .. " |"
    end
  end
  write("ops", lines)
end

-- ---- all pages

local index = {
  "# Reference", "",
  "Every public name, as `luminary help NAME` explains it. Written by `scripts/dev/gen_reference.lua` from the entries",
  "and comments in the sources; a spec sees to it that this is what it writes.", "",
  "- [Ops](ops.md): functions of tensors, with dtypes, gradients and autocast",
}
for _, page in ipairs(PAGES) do
  local file, title, libraries = unpack(page)
  index[#index + 1] = ("- [%s](%s.md)"):format(title, file)
  local lines = {"# " .. title}
  for _, name in ipairs(libraries) do add_library(lines, name) end
  write(file, lines)
end
index[#index + 1] = "- [Environment variables](../status/environment_variables.md)"
write("README", index)
ops_page()
