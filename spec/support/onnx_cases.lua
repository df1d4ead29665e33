-- Runs a test case of an ONNX model, as scripts/dev/golden/onnx_cases.py writes it: PATH.onnx, and PATH.data.onnx with
-- the inputs and the expected outputs.
local lm = require "luminary"
local ffi = require "ffi"
local golden = require "spec.support.golden"
local map_tensors = require "luminary.base.map_tensors"
local temp = require "spec.support.temp"
local tensors = require "luminary.onnx.tensors"

local cases = {}

--- Returns the sorted names of the cases in a golden file, bytes_of(file), and write(folder, name), which writes the
--- two files of a case and returns the path of the model.
function cases.load(name)
  local files, names = golden.load(name), {}
  for file in pairs(files) do names[#names + 1] = file:match "^(.*)%.data%.onnx$" end
  table.sort(names)
  local function bytes_of(file)
    return ffi.string(ffi.cast("const char *", files[file]:data_ptr()), files[file]:numel())
  end
  return names, bytes_of, function(folder, case)
    temp.write(folder .. "/" .. case .. ".data.onnx", bytes_of(case .. ".data.onnx"))
    return temp.write(folder .. "/" .. case .. ".onnx", bytes_of(case .. ".onnx"))
  end
end

-- Returns the values of one side, "in" or "out", and their number.
local function side_of(data, entries, side)
  local values, n = {}, 0
  while entries[side .. "." .. n] do
    local kind = entries[side .. "." .. n]
    local count = kind:match "^sequence (%d+)$"
    if count then
      local list = {}
      for i = 1, count do list[i] = data[("%s.%d.%d"):format(side, n, i - 1)] end
      values[n + 1] = list
    elseif kind ~= "none" then
      values[n + 1] = data[side .. "." .. n] or error(kind .. " as an input or output", 0)
    end
    n = n + 1
  end
  return values, n
end

local function difference(got, expected, rtol, atol)
  if expected == nil then return got ~= nil and "got a value, expected none" or nil end
  if type(expected) == "table" then
    if type(got) ~= "table" or #got ~= #expected then return "expected a list of " .. #expected end
    for i = 1, #expected do
      if type(expected[i]) == "string" then
        if got[i] ~= expected[i] then
          return ("values: got '%s', expected '%s'"):format(tostring(got[i]), expected[i])
        end
      else
        local why = difference(got[i], expected[i], rtol, atol)
        if why then return why end
      end
    end
    if expected.shape and table.concat(expected.shape, " ") ~= table.concat(got.shape, " ") then
      return "shape of strings"
    end
    return nil
  end
  if not lm.is_tensor(got) then return "expected a tensor, got " .. type(got) end
  if got.dtype ~= expected.dtype then return ("dtype: got %s, expected %s"):format(got.dtype, expected.dtype) end
  if tostring(got.shape) ~= tostring(expected.shape) then
    return ("shape: got %s, expected %s"):format(tostring(got.shape), tostring(expected.shape))
  end
  if got.dtype == "bfloat16" then rtol = math.max(rtol, 2 ^ -6) end
  local a, b = got:double(), expected:double()
  if got.dtype == "int64" then a, b = got, expected end
  local near
  if a.dtype == "int64" then
    near = a:eq(b)
  else
    near = lm.isclose(a, b, rtol, atol, true)
  end
  if near:all():item() then return nil end
  local x, y = a:masked_select(near:logical_not()), b:masked_select(near:logical_not())
  return ("values: %d of %d differ, got %s, expected %s"):format(x:numel(), a:numel(), tostring(x:select(1, 1):item()),
    tostring(y:select(1, 1):item()))
end

-- Returns a value with its tensors on a device, also those in a list; nil: as they are.
local function moved(value, device)
  if not device or type(value) == "table" and value.shape then return value end
  return map_tensors(value, function(t) return t:to(device) end)
end

--- Runs a case three times, on a device unless nil; returns its kind, and the reason if it fails.
function cases.run(path, device)
  local message = tensors.read(path .. ".data.onnx")
  local entries, data = {}, {}
  for _, entry in ipairs(message.metadata_props) do entries[entry.key] = entry.value end
  local ok, why = pcall(function()
    local read = tensors.reader(path)
    for _, tensor in ipairs(message.graph.initializer or {}) do
      data[tensor.name] = read(tensor, function(...) error("unsupported: " .. string.format(...), 0) end)
    end
    local inputs, n = side_of(data, entries, "in")
    local expected, m = side_of(data, entries, "out")
    local net = lm.onnx.load(path .. ".onnx", {device = device})
    local has_tensor = false
    for i = 1, n do
      inputs[i] = moved(inputs[i], device)
      has_tensor = has_tensor or lm.is_tensor(inputs[i])
    end
    for _ = 1, 3 do -- the second and third call run recordings of the graph or of its parts, or what these stored
      local got = {lm.no_grad(function() return net(unpack(inputs, 1, n)) end)}
      for i = 1, m do
        if device and has_tensor and lm.is_tensor(got[i]) and got[i].device ~= device then
          error(("output %d is on %s"):format(i, got[i].device), 0)
        end
        local result = moved(got[i], device and "cpu")
        local problem = difference(result, expected[i], tonumber(entries.rtol), tonumber(entries.atol))
        if problem then error(("output %d: %s"):format(i, problem), 0) end
      end
    end
  end)
  return entries.kind, not ok and (tostring(why):gsub("^[^\n]-:%d+: ", "")) or nil
end

return cases
