--- Steps of one op each, of every op: forward and backward of the cases of spec/op/op_cases.lua in turn.
local lm = require "luminary"
local core = require "luminary.core"
local golden = require "spec.support.golden"
local lists = require "luminary.base.lists"

local list = {}

local function is_tensor_spec(v) return type(v) == "table" and v.tensor ~= nil end

-- Returns true if gradients of the argument `name` are asked for.
local function has_gradient(row, name)
  for _, each in ipairs(row.grad or {}) do
    if each == name then return true end
  end
  return row.grad == nil
end

-- Returns the arguments of case k by name. cast(x) returns a copy of a tensor.
local function arguments_of(row, file, k, cast)
  local args = {}
  for name, value in pairs(row[k]) do
    local key = ("%d.float32.in.%s"):format(k, name)
    args[name] = value
    if is_tensor_spec(value) then
      args[name] = cast(file[key])
    elseif type(value) == "table" and is_tensor_spec(value[1]) then
      args[name] = {}
      for j = 1, #value do args[name][j] = cast(file[key .. "." .. j]) end
    end
  end
  return args
end

local UNSET = {empty = true, empty_like = true}

for _, row in ipairs(dofile "spec/op/op_cases.lua") do
  setmetatable(row, {}) -- equal.lua looks into plain tables alone
  list[#list + 1] = {row.name, function(c)
    c.fails, c.calls = c.dtype ~= "float32", #row -- a dtype that an op lacks fails alike
    local file, seen = setmetatable(golden.load(row.name), {}), lm.zeros(1)
    local one = lm.ones({}, {dtype = c.dtype, requires_grad = true})
    local function cast(x) return (x.dtype == "float32" and x:to(c.dtype) or x):clone() end
    local function inputs(k) return arguments_of(row, file, (k - 1) % #row + 1, cast) end
    local function step(args)
      seen:add_(1)
      one.grad = nil
      local options, trains, first = {}, false, row.positional:match "%S+"
      local function weighed(name, v)
        if type(v) == "table" and not core.is_tensor(v) then
          local parts = {}
          for j, each in ipairs(v) do parts[j] = weighed(name, each) end
          return #parts > 0 and parts or v
        end
        local has = core.is_tensor(v) and v.dtype == c.dtype and has_gradient(row, name)
        trains = trains or has
        return has and v * one or v
      end
      for name, v in lists.sorted_pairs(args) do options[name] = weighed(name, v) end
      local x = options[first]
      options[first] = nil
      if row.name:sub(-1) == "_" then x = x * 1 end -- the op writes to it
      local results, loss = {core.ops[row.name](x, next(options) and options or nil)}, nil
      if UNSET[row.name] then results[1]:fill_(1) end
      for _, y in ipairs(results) do
        if trains and core.is_tensor(y) and y.dtype == c.dtype then
          local part = y:square():mul(2):tanh():sum()
          loss = loss and loss + part or part
        end
      end
      if loss then (loss * one):backward() end
      return results, loss
    end
    return step, inputs, nil, {seen, one}
  end}
end

return list
