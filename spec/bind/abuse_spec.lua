-- Every public function called with every wrong type, count, dtype and device: Lua errors, no crash.
local lm = require "luminary"
local core = require "luminary.core"

-- Functions whose business is the process itself.
local left_out = { setenv = true, _fail_alloc_from = true, set_num_threads = true, set_default_device = true,
  set_default_dtype = true, set_grad_enabled = true, own_files = true }

local function values()
  local x = lm.rand { 2, 3 }
  local dropped = lm.rand { 2 }
  dropped:free()
  return {
    tensor = x,
    { nil, "nothing" }, { true, "true" }, { 0, "0" }, { -1, "-1" }, { 1.5, "1.5" }, { 1e300, "1e300" },
    { 0 / 0, "nan" }, { 2 ^ 53, "2^53" }, { "", "''" }, { "text", "text" }, { ("x"):rep(5000), "long" }, { {}, "{}" },
    { { 1, 2 }, "{1, 2}" },
    { { dim = "x" }, "{dim = 'x'}" }, { { [1.5] = 1, [true] = 2 }, "odd keys" }, { { { { {} } } }, "nested" },
    { function() error("called") end, "function" }, { coroutine.create(function() end), "coroutine" },
    { io.stdout, "a file" }, { newproxy(true), "foreign userdata" }, { x, "float32" }, { dropped, "freed" },
    { lm.ones({ 2 }, { dtype = "int64" }), "int64" }, { lm.ones({ 2 }, { dtype = "bool" }), "bool" },
    { lm.ones({ 2 }, { dtype = "bfloat16" }), "bfloat16" }, { lm.ones({ 2 }, { device = "cpu:1" }), "cpu:1" },
    { lm.zeros { 0, 3 }, "empty" }, { lm.ones {}, "0-d" }, { x:t(), "transposed" },
    { lm.ones({ 1 }):expand { 3 }, "expanded" }, { lm.rand({ 2 }, { requires_grad = true }), "leaf" },
  }
end

-- Returns the k-th of a list, the same in each run, so that a failure can be found again.
local function pick(list, k) return list[k % #list + 1][1] end

local function abuse(f, name, rounds)
  local list = values()
  pcall(f)
  for _, v in ipairs(list) do pcall(f, v[1]) end
  for k = 1, rounds do
    local a, b, c, d = pick(list, k * 7 + 1), pick(list, k * 11 + 3), pick(list, k * 13 + 5), pick(list, k * 17)
    local ok, err = pcall(f, a, b)
    assert(ok or err ~= nil, name)
    pcall(f, a, b, c)
    pcall(f, a, b, c, d)
    pcall(f, list.tensor, a, b)
    pcall(f, list.tensor, { dim = a, keepdim = b })
  end
  pcall(f, unpack({}, 1, 200))
end

teardown(function() os.remove "text" end) -- made by the functions that write a file of that name

describe("wrong arguments", function()
  local rounds = os.getenv("LM_TEST_LONG") and 400 or 30
  local function sweep(what, holder)
    it("to " .. what .. " are errors", function()
      for name, f in pairs(holder) do
        if type(f) == "function" and not left_out[name] then abuse(f, name, rounds) end
      end
      assert.equal(6, (lm.ones { 2, 3 }):sum():item()) -- the library still works
    end)
  end
  sweep("ops", core.ops)
  sweep("methods", core.methods)
  sweep("the core's functions", core)
  sweep("lm's functions", lm)

  it("to metamethods are errors", function()
    local x = lm.rand { 2, 3 }
    for _, v in ipairs(values()) do
      pcall(function() return x + v[1] end)
      pcall(function() return v[1] * x end)
      pcall(function() return x[v[1]] end)
      pcall(function() x[v[1]] = v[1] end)
      pcall(function() x[1] = v[1] end)
      pcall(function() return x ^ v[1] end)
      pcall(function() return x < v[1] end)
      pcall(function() return x .. v[1] end)
      pcall(function() return x(v[1]) end)
    end
    assert.error_matches(function() return x < x end, ":lt")
  end)

  it("in coroutines, with errors in the middle", function()
    local co = coroutine.wrap(function()
      for _ = 1, 3 do
        pcall(lm.no_grad, function() coroutine.yield() end)
        coroutine.yield(lm.is_grad_enabled())
      end
    end)
    for _ = 1, 4 do co() end
    assert.is_true(lm.is_grad_enabled())
  end)
end)

describe("messages with long texts of the script's", function()
  local x = lm.ones { 2 }
  local tries = {
    ["a field"] = function(w) return x[w] end, ["a field to set"] = function(w) x[w] = 1 end,
    ["an option"] = function(w) lm.sum(x, { [w] = 1 }) end,
    ["an option of none"] = function(w) lm.neg(x, { [w] = 1 }) end,
    ["tensor's option"] = function(w) lm.tensor({ 1 }, { [w] = true }) end,
    ["a layer's option"] = function(w) lm.nn.Linear(1, 1, { [w] = 1 }) end,
    ["a dtype"] = function(w) lm.zeros({ 2 }, { dtype = w }) end, ["to"] = function(w) x:to(w) end,
    ["a device"] = function(w) lm.zeros({ 2 }, { device = w }) end,
    ["a device's number"] = function(w) lm.zeros({ 2 }, { device = "cpu:" .. w }) end,
    ["nearly a device"] = function(w) lm.zeros({ 2 }, { device = "cpux:" .. w }) end,
    ["a choice"] = function(w) lm.nn.functional.mse_loss(x, x, { reduction = w }) end,
    ["a layer's choice"] = function(w) lm.nn.MSELoss { reduction = w } end,
    ["an argument"] = function(w) lm.add(x, w) end, ["a layer's argument"] = function(w) lm.nn.Linear(w, 1) end,
    ["an option that is positional"] = function(w) lm.sum(x, 1, w) end, ["an index"] = function(w) return x[{ w }] end,
    ["a variable"] = function(w) lm.setenv("=" .. w, "1") end, ["a name"] = function(w) return lm.nn[w] end,
    ["a key"] = function(w) require("luminary.base.json_encode") { 1, [w] = 2 } end,
    ["a state's key"] = function(w) lm.nn.Linear(1, 1):load_state_dict { [w] = x } end,
    ["backends"] = function(w) lm.dist.init_process_group { backend = "cpu:" .. w, world_size = 2, rank = 0 } end,
    ["a method"] = function(w) lm.dist.init_process_group { init_method = w, world_size = 2, rank = 0 } end,
  }

  it("are short, and cut between characters", function()
    for what, try in pairs(tries) do
      for _, c in ipairs { "é", "漢", "😀" } do
        for pad = 0, 3 do
          local ok, message = pcall(try, ("a"):rep(pad) .. c:rep(600))
          assert(not ok, what)
          local left = message:gsub(c, ""):gsub("…", "")
          assert(not left:find "[\128-\255]" and #message < 1200, ("%s: %d bytes: %s"):format(what, #message, message))
          assert(message:find("...", 1, true), what)
        end
      end
    end
  end)
end)
