-- Every optimizer, with every option, against PyTorch's trajectories (gen_trajectories.py), on the CPU or
-- the device that LM_SPEC_DEVICE names; and PyTorch's state_dict read in the middle of them.
local lm = require "luminary"
local golden = require "spec.support.golden"
local optim = lm.optim
local entries = require "luminary.optim.sgd_adam_rules"
local whole = require "luminary.optim.lamb_muon_adafactor"
local cases = dofile "spec/golden/trajectories.lua"
for i, case in ipairs(cases) do
  case[4] = {}
  for _, fields in ipairs { cases[i - case[2] + 1].group, case[3] } do
    for key, value in pairs(fields) do case[4][key] = value end
  end
end
local device = os.getenv("LM_SPEC_DEVICE") or "cpu"

local stored
setup(function() stored = golden.load("_trajectories") end)
teardown(function() stored = nil end)

-- Problems as in the generator.
local START, STEPS = { -1.2, 0.8, 0.3, -0.4, 1.5, -0.7 }, 50
local problems = {
  function(p) -- bowl
    local curvature = lm.tensor({ 0.125, 0.25, 0.5, 1, 2, 4 }, { dtype = p.dtype, device = p.device })
    return curvature * (p - 1)
  end,
  function(p) -- valley
    local pairs_of = p:view(3, 2)
    local x, y = pairs_of:select(2, 1), pairs_of:select(2, 2)
    local d = y - x * x
    return lm.stack({ (x - 1) - 2 * x * d, d }, 2):flatten()
  end,
  function(p, k) -- noise
    local g = {}
    for i = 0, 5 do g[i + 1] = ((7 * k + 5 * i) % 11 - 5) / 8 * 2 ^ (1 - i) end
    return lm.tensor(g, { dtype = p.dtype, device = p.device })
  end,
}

local function parameter(dtype, case)
  local p = lm.tensor(START, { dtype = dtype }):to(device)
  return p:reshape(case.shape or { 6 }):detach():requires_grad_()
end

-- Returns what the generator saved of the state, by PyTorch's names.
local function state_of(name, n)
  local state = {}
  for key, value in pairs(stored) do
    local field = key:match(("^%s%%.%d%%.state%%.(.*)$"):format(name, n))
    if field then state[field] = value end
  end
  return state
end

-- Steps first to last; check(row, p) after those of which there is a row.
local function go(opt, p, options, problem, first, last, check)
  for k = first, last do
    local g = problem(p:detach():flatten(), k):reshape(p.shape)
    p.grad = options.maximize and -g or g
    opt:step()
    for row, seen in ipairs(cases.seen) do
      if seen == k then check(row, p:detach():flatten()) end
    end
  end
end

-- Returns bounds; Muon rounds matrices to bfloat16, where a last bit may fall to the other side.
local function tolerance_of(name)
  if name ~= "Muon" then return { float32 = { 1e-6, 1e-6 }, float64 = { 1e-12, 1e-12 } } end
  if device ~= "cpu" then return { float32 = { 1e-3, 1e-3 }, float64 = { 1e-3, 1e-3 } } end
  return { float32 = { 1e-5, 1e-5 }, float64 = { 1e-12, 1e-12 } }
end

-- Widens a bound to the distance of PyTorch's float32 from its float64: some steps lead away from one another (the
-- second problem of an optimizer that maximizes).
local function within(bound, want, exact)
  return { bound[1], math.max(bound[2], (want:double() - exact):abs():max():item()) }
end

describe("fifty steps give PyTorch's parameters:", function()
  for _, case in ipairs(cases) do
    local name, n, options = unpack(case)
    local tolerance = tolerance_of(name)
    it(("%s %d, and its states"):format(name, n), function()
      local p = parameter("float64", case)
      local opt = optim[name]({ p }, options)
      go(opt, p, options, problems[2], 1, cases.saved, function() end)
      for field, want in pairs(state_of(name, n)) do
        local got = opt.state[p][field]
        if type(got) == "number" then got = lm.tensor(got, { dtype = "float64" }) end
        golden.same(got:cpu(), want:double(), tolerance.float64, field)
      end
    end)

    it(("%s %d"):format(name, n), function()
      for dtype, bound in pairs(tolerance) do
        local want = stored[("%s.%d.%s"):format(name, n, dtype)]
        local exact = stored[("%s.%d.float64"):format(name, n)]
        for which, problem in ipairs(problems) do
          local p = parameter(dtype, case)
          go(optim[name]({ p }, options), p, options, problem, 1, STEPS, function(row, got)
            local at_row = within(bound, want[which][row], exact[which][row])
            golden.same(got:cpu(), want[which][row], at_row,
              ("%s, problem %d, step %d"):format(dtype, which, cases.seen[row]))
          end)
        end
      end
    end)
  end
end)

describe("a state_dict of PyTorch's", function()
  -- Returns a dict as it comes from Python: parameters from 0, numbers as 0-d tensors, its own options too.
  local function dict_of(name, n, group)
    local state = state_of(name, n)
    local own = { params = { 0 } }
    for key, value in pairs(group) do own[key] = value end
    return { state = { [0] = next(state) and state or nil }, param_groups = { own } }
  end

  for _, case in ipairs(cases) do
    local name, n, options, group = unpack(case)
    it(("is gone on from: %s %d"):format(name, n), function()
      local want = stored[("%s.%d.float64"):format(name, n)][2]
      local saved
      for row, seen in ipairs(cases.seen) do
        if seen == cases.saved then saved = want[row] end
      end
      local p = saved:to(device):clone():reshape(case.shape or { 6 }):requires_grad_()
      local opt, dict = optim[name]({ p }, { lr = 7 }), dict_of(name, n, group)
      opt:load_state_dict(dict)
      go(opt, p, options, problems[2], cases.saved + 1, STEPS, function(row, got)
        golden.same(got:cpu(), want[row], tolerance_of(name).float64, "step " .. cases.seen[row])
      end)
      -- The names are the same there and here.
      local mine = opt:state_dict()
      for field in pairs(dict.state[0] or {}) do assert.truthy(mine.state[1][field], field) end
      for field in pairs(mine.state[1]) do
        assert(field == "step" or dict.state[0] and dict.state[0][field], field)
      end
      for field in pairs(mine.param_groups[1]) do assert(field == "params" or group[field] ~= nil, field) end
    end)
  end
end)

describe("golden trajectories", function()
  it("are there for every optimizer, and with each of its options", function()
    local function text(v)
      if type(v) ~= "table" then return tostring(v) end
      local parts = {}
      for i, part in ipairs(v) do parts[i] = tostring(part) end
      return table.concat(parts, ", ")
    end
    local all = { unpack(entries) }
    for name, class in pairs(whole) do
      local rows = {}
      for key, row in pairs(class.spec) do rows[#rows + 1] = { key, row[2] } end
      all[#all + 1] = { name = name, options = rows }
    end
    for _, entry in ipairs(all) do
      local tried, count = {}, 0
      for _, case in ipairs(cases) do
        if case[1] == entry.name then
          count = count + 1
          for key, value in pairs(case[3]) do tried[key] = tried[key] or {}; tried[key][text(value)] = true end
        end
      end
      assert(count > 0, entry.name .. ": there is no trajectory")
      for _, row in ipairs(entry.options) do
        local others = tried[row[1]] or {}
        others[text(row[2])] = nil
        assert(row.fixed or next(others), ("%s: no trajectory with another %s"):format(entry.name, row[1]))
      end
    end
  end)

  it("have PyTorch's defaults", function()
    for _, case in ipairs(cases) do
      local name, n, options, group = unpack(case)
      local opt = optim[name]({ parameter("float64", case) }, options)
      for key, value in pairs(opt.param_groups[1]) do
        if key ~= "params" then assert.same(group[key], value, ("%s %d: %s"):format(name, n, key)) end
      end
    end
  end)
end)
