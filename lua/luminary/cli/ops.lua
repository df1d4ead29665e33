--- Runs `luminary ops [NAME]`: shows where ops run, by the ops' entries and the loaded backends.
local core = require "luminary.core"
local index = require "luminary.help.index"
local op_text = require "luminary.help.op_text"

local ops = {}

local KINDS = {
  elementwise = "element by element", kernel = "a kernel of its own", view = "a view, without a copy",
  write = "writes into its first tensor", new = "makes a tensor", composite = "made of other ops",
}
local CASTS = {
  [""] = "as it comes", lower = "in the low dtype", keep = "in float32",
  keep_result = "in float32, of low inputs as they are", keep_gpu = "in float32, but on the CPU",
  banned_gpu = "an error, but on the CPU", widest = "in the widest of its dtypes",
}
local RESULTS = {
  [""] = "what its tensors have in common", float = "floating", bool = "bool", number = "as x, int64 for bool",
}

local function gradient(info)
  if info.gradient == nil then return "of the ops it is made of" end
  return info.gradient == "" and "none" or ("for %s, of any order"):format(info.gradient)
end

local function has_backend_text(available)
  if available == nil then return "no such backend is loaded here" end
  return available and "yes" or "no"
end

--- Returns the facts about one op, as lines; nil if there is none.
function ops.of(name)
  local info = core.op_info(name)
  if not info then return nil end
  local lines = {op_text(name)}
  local function add_line(what, text) lines[#lines + 1] = ("  %-10s %s"):format(what, text) end
  add_line("kind", KINDS[info.kind] .. (info.kernel and info.kind ~= "kernel" and ", with a kernel of its own" or ""))
  if info.takes then
    add_line("dtypes", ("takes %s, returns %s"):format(
      info.takes, RESULTS[info.result_dtype] or "that of " .. info.result_dtype))
  end
  add_line("gradient", gradient(info))
  add_line("autocast", CASTS[info.autocast])
  add_line("CPU", has_backend_text(info.cpu))
  add_line("CUDA", has_backend_text(info.cuda))
  return table.concat(lines, "\n")
end

local function yes_no_or_unknown(value)
  if value == nil then return "?" end
  return value and "yes" or "no"
end

--- Returns all public ops, one a line below a heading.
function ops.table()
  local lines, form = {}, "%-30s %-12s %-18s %-9s %-11s %-4s %s"
  lines[1] = form:format("op", "kind", "takes", "gradient", "autocast", "CPU", "CUDA")
  for _, name in ipairs(core.op_list()) do
    if not index.is_inner(name) then
      local info = core.op_info(name)
      local grad = info.gradient == nil and "its ops'" or info.gradient == "" and "no" or "yes"
      lines[#lines + 1] = form:format(name, info.kind, info.takes or "-", grad,
        info.autocast == "" and "-" or info.autocast, yes_no_or_unknown(info.cpu), yes_no_or_unknown(info.cuda))
    end
  end
  return table.concat(lines, "\n")
end

--- Runs the command; returns the exit status.
function ops.main(args, first)
  local name = args[first]
  if name == nil then
    print(ops.table())
    return 0
  end
  local text = ops.of(name)
  local near = not text and core.nearest(name, core.op_list())
  print(text or ("no op '%s'%s"):format(name, near and ("; did you mean '%s'?"):format(near) or ""))
  return text and 0 or 1
end

return ops
