-- Luminary's side of scripts/bench/ops: answers each line "grads <tab> expression" with "forward S", and "both S" where
-- there are gradients: the least seconds of a call; "copy <tab> expression" with "copy S", of a copy that moves as many
-- bytes; or with "error WORDS".
local lm = require "luminary"
local lists = require "luminary.base.lists"
lm.set_num_threads(tonumber(arg[1]))
local rows = tonumber(arg[2]) -- nil: as ops_cases.lua has them
local cases = dofile(arg[0]:match("^(.*)/[^/]*$") .. "/ops_cases.lua")
local warm_calls, warm_time, least_time, least_calls = 12, 0.4, 0.02, 3

local compiled = cases.compile
local inputs = {lm = lm, F = lm.nn.functional, select = select}
for name in lists.sorted_pairs(cases.inputs) do inputs[name] = cases.input(lm, name, nil, rows) end
for name, expression in lists.sorted_pairs(cases.derived) do
  inputs[name] = compiled(expression:match("^[^|]*"), inputs)()
end

local function seconds_of(f)
  local start = lm.time()
  f()
  return lm.time() - start
end
-- Returns the seconds of f's quickest call, after calls that fetch the memory in which results will live.
local function min_seconds(f)
  local best, spent, calls = math.huge, 0, 0
  while calls < warm_calls and spent < warm_time do calls, spent = calls + 1, spent + seconds_of(f) end
  spent, calls = 0, 0
  while spent < least_time or calls < least_calls do
    local seconds = seconds_of(f)
    best, spent, calls = math.min(best, seconds), spent + seconds, calls + 1
  end
  return best
end

-- Returns a copy that reads half of the bytes of the inputs that the expression names and of its results, and writes
-- the other half; as the call's results do, the copy's come to lie in new memory.
local function copy_of(expression)
  local bytes, results = 0, {compiled(expression, inputs)()}
  for name in expression:gmatch "[%a_][%w_]*" do
    if inputs[name] and lm.is_tensor(inputs[name]) then results[#results + 1] = inputs[name] end
  end
  for _, t in ipairs(results) do
    if lm.is_tensor(t) then bytes = bytes + t:numel() * t.itemsize end
  end
  local from = lm.zeros({math.max(1, math.floor(bytes / 2))}, {dtype = "uint8"})
  return ("copy %.9f"):format(min_seconds(function() return from:clone() end))
end

local function measured(grads, expression)
  if grads == "copy" then return copy_of(expression) end
  local answer = ("forward %.9f"):format(min_seconds(compiled(expression, inputs)))
  if grads == "" then return answer end
  local leaves, env = {}, setmetatable({}, {__index = inputs})
  for name in grads:gmatch("%S+") do
    env[name] = inputs[name]:clone():requires_grad_()
    leaves[#leaves + 1] = env[name]
  end
  local f = compiled(expression, env)
  local ones = lm.ones_like(f())
  return ("%s both %.9f"):format(answer, min_seconds(function()
    f():backward(ones)
    for _, leaf in ipairs(leaves) do leaf.grad = nil end
  end))
end

for line in io.lines() do
  local ok, answer = pcall(measured, line:match("^(.-)\t(.*)$"))
  collectgarbage()
  io.write(ok and answer or "error " .. tostring(answer):gsub("%s+", " "), "\n")
  io.flush()
end
