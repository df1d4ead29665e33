--- Runs `luminary inspect FILE`: shows the contents of a file of weights, in any format that lm.load reads.
local USAGE = [[
usage: luminary inspect FILE [option ...]

Lists what is in a file that lm.load reads: safetensors and torch.save's .pt, one or in shards, .npy, .npz, .gguf, .t7,
and .onnx, with the graph's inputs, outputs and nodes. Plain values and metadata first, then the tensors: name, dtype,
shape, bytes, whether it trains (.onnx), least, greatest, mean, standard deviation, and how many elements are NaN or
infinite, if any. Nothing in the file is run.

  --quick   leave out what has to read the tensors' elements
  --help    print this

Exit code: 0, 1 if the file cannot be read, 2 for wrong usage.
]]

local core = require "luminary.core"
local aligned_columns = require "luminary.base.aligned_columns"
local flags = require "luminary.cli.command_options"
local formats = require "luminary.file_formats"
local repeats = require "luminary.file_formats.element_limits"
local bytes_text = require "luminary.base.bytes_text"
local checkpoint_files = require "luminary.checkpoint.files"
local lists = require "luminary.base.lists"
local printable_name = require "luminary.base.printable_name"

local function print(text) _G.print(core.printable(text)) end

local inspect = {}

local AT_ONCE = 2 ^ 22 -- elements in one step
local DEEPEST = 100

--- Returns the minimum, maximum, mean and standard deviation of the finite elements, and the number of others.
function inspect.statistics(t)
  local flat, others = t:reshape(-1), 0
  local n, mean, squares, least, most = 0, 0, 0, math.huge, -math.huge
  for from = 1, flat:numel(), AT_ONCE do
    local x = flat:narrow(1, from, math.min(AT_ONCE, flat:numel() - from + 1)):double()
    local finite = x:isfinite()
    if not finite:all():item() then
      local all = x:numel()
      x = x:masked_select(finite)
      others = others + all - x:numel()
    end
    local count = x:numel()
    if count > 0 then
      local here = x:mean():item()
      local away = here - mean
      squares = squares + (x - here):pow(2):sum():item() + away ^ 2 * n * count / (n + count)
      mean, n = mean + away * count / (n + count), n + count
      least, most = math.min(least, x:min():item()), math.max(most, x:max():item())
    end
  end
  if n == 0 then return nil, nil, nil, nil, others end
  return least, most, mean, n > 1 and math.sqrt(squares / (n - 1)) or 0, others
end

-- Calls tell(path, text) for values other than tensors, in order; returns the tensors, each {path, value}.
local function walk_values(value, tell)
  local tensors, seen = {}, {}
  local function look(v, path, depth)
    if core.is_tensor(v) then
      tensors[#tensors + 1] = {path, v}
    elseif type(v) ~= "table" then
      tell(path, type(v) == "string" and "'" .. printable_name(v, 200) .. "'" or tostring(v))
    elseif seen[v] then
      tell(path, "see " .. seen[v])
    elseif #v > 8 and not core.is_tensor(v[1]) and type(v[1]) ~= "table" then
      tell(path, ("a list of %d, from %s on"):format(#v, printable_name(tostring(v[1]), 200)))
    elseif depth > DEEPEST then
      tell(path, "tables within tables, too deep to be shown")
    else
      seen[v] = path == "" and "the whole" or path
      for key, inner in lists.sorted_pairs(v) do
        look(inner, (path == "" and "" or path .. ".") .. printable_name(tostring(key), 200), depth + 1)
      end
    end
  end
  look(value, "", 1)
  return tensors
end

local function number(v) return v and ("%.4g"):format(v) or "" end

-- Returns the row of a tensor. take: see element_limits.lua. stored: its form in the file, if that differs.
local function row_of(name, t, quick, take, stored)
  local item = require("luminary.file_formats.source").item_bytes[t.dtype]
  local row = {name == "" and "(the tensor)" or name, stored and stored.kind or t.dtype,
    "[" .. table.concat(t.shape, ", ") .. "]", bytes_text(stored and stored.bytes or t:numel() * item)}
  if quick then return row end
  if not take(t) then
    row[5] = "repeats too much of the file to be read"
    return row
  end
  local least, most, mean, deviation, others = inspect.statistics(t)
  lists.append(row, {number(least), number(most), number(mean), number(deviation)})
  if others > 0 then row[#row + 1] = ("%d NaN or infinite"):format(others) end
  return row
end

-- Prints the contents of a file, and of the shards that it names, whose tensors are parts of others.
local function show(path, quick, is_shard)
  require "luminary" -- defines tensors' methods
  local file = formats.load(path, {mmap = true, skip_unreadable = true})
  local _, size = core.file_kind(file.path)
  print(("%s: %s, %s"):format(path, file.kind, bytes_text(file.lacking.bytes or size)))
  local printed = 0
  local function print_value(place, text)
    if is_shard and place:find "%.shards%." then return end
    printed = printed + 1
    print((place == "" and "" or place .. " = ") .. text)
  end
  local tensors = walk_values(file.value, print_value)
  walk_values({metadata = file.metadata}, print_value)
  local rows = {quick and {"name", "dtype", "shape", "size"}
    or {"name", "dtype", "shape", "size", "least", "greatest", "mean", "deviation"}}
  local trains, trained, weights = file.lacking.trains, 0, 0
  local stored = file.lacking.stored or {}
  local elements, take = 0, repeats(file)
  for i, each in ipairs(tensors) do
    rows[i + 1] = row_of(each[1], each[2], quick, take, stored[each[2]])
    elements = elements + each[2]:numel()
    if trains then table.insert(rows[i + 1], 5, trains[each[1]] and "yes" or "") end
    if trains and trains[each[1]] then trained, weights = trained + 1, weights + each[2]:numel() end
  end
  if trains then table.insert(rows[1], 5, "trains") end
  if #tensors > 0 then print(table.concat(aligned_columns(rows, 4), "\n")) end
  for _, each in ipairs(file.lacking) do print("not read: " .. each) end
  if file.lacking.advice then print(file.lacking.advice) end
  if printed + #tensors + #file.lacking == 0 then
    print "nothing is in it; lm.save(path, {name = tensor}) writes tensors by name"
  end
  print(("%d tensor%s, %.0f elements%s"):format(#tensors, #tensors == 1 and "" or "s", elements,
    trains and ("; %d of them train, with %.0f elements"):format(trained, weights) or ""))
  for _, shard in ipairs(checkpoint_files.shards_of(path, file.metadata)) do show(shard, quick, true) end
end

--- Runs the command on the arguments from `first` on; returns the exit status.
function inspect.main(args, first)
  local files = {}
  local options, code = flags.read("inspect", USAGE, args, first, {}, flags.one_file, files)
  if not options then return code end
  local ok, why = pcall(show, files[1], options.quick)
  if ok then return 0 end
  io.stderr:write("luminary inspect: ", (tostring(why):gsub("^[^:]*:%d+: ", ""):gsub("^load: ", "")), "\n")
  return 1
end

return inspect
