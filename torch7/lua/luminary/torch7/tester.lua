--- Runs tests and reports failed checks (torch.Tester):
---
---   local tester = torch.Tester()
---   tester:add {adds = function() tester:eq(1 + 1, 2) end}
---   tester:run()                                     -- raises an error if one has failed
local debug = require "debug"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local storage = require "luminary.torch7.storage"
local tensor = require "luminary.torch7.tensor"
local fail = options.fail

local Tester = class.new "torch.Tester"

function Tester:__init()
  self.tests, self.names, self.disabled, self.checks, self.failures = {}, {}, {}, 0, {}
end

-- Returns the numbers of a storage or of sizes as a list, and other values unchanged.
local function listed(v) return (storage.is(v) or tensor.is_sizes(v)) and v:totable() or v end

-- Returns true if two values are equal, numbers and elements of tensors within a tolerance.
local function same(a, b, tolerance)
  a, b = listed(a), listed(b)
  if type(a) == "number" and type(b) == "number" then
    return a == b or a ~= a and b ~= b or math.abs(a - b) <= tolerance
  elseif tensor.is(a) and tensor.is(b) then
    if a:type() ~= b:type() or not a:isSameSizeAs(b) then return false end
    return a:nElement() == 0 or a:equal(b) or (a:double() - b:double()):abs():max() <= tolerance
  elseif type(a) == "table" and type(b) == "table" then
    for k, v in pairs(a) do if b[k] == nil or not same(v, b[k], tolerance) then return false end end
    for k in pairs(b) do if a[k] == nil then return false end end
    return true
  end
  return a == b
end

local function note(self, ok, what, message)
  self.checks = self.checks + 1
  if not ok then
    local where = debug.getinfo(2, "Sl") -- the test's line: checks tail-call note
    table.insert(self.failures, ("%s:%d: %s%s"):format(where.short_src, where.currentline, what,
      message and "; " .. tostring(message) or ""))
  end
  return ok
end

function Tester:assert(condition, message) return note(self, condition and true or false, "is not true", message) end

local function described(v) return tensor.is(v) and v:type() or tostring(v) end

-- Defines a check with the arguments (a, b [, tolerance] [, message]).
local function compared(name, alike)
  Tester[name] = function(self, a, b, tolerance, message)
    if type(tolerance) ~= "number" then tolerance, message = 0, tolerance or message end
    return note(self, same(a, b, tolerance) == alike, ("%s and %s are %s"):format(described(a), described(b),
      alike and "not the same" or "the same"), message)
  end
end
for name, alike in pairs {
  eq = true, asserteq = true, assertGeneralEq = true, assertTensorEq = true, assertTableEq = true,
  assertalmosteq = true, ne = false, assertne = false, assertGeneralNe = false, assertTensorNe = false,
  assertTableNe = false,
} do
  compared(name, alike)
end
for name, holds in pairs {
  assertlt = function(a, b) return a < b end, assertgt = function(a, b) return a > b end,
  assertle = function(a, b) return a <= b end, assertge = function(a, b) return a >= b end,
} do
  Tester[name] = function(self, a, b, message)
    return note(self, holds(a, b), ("%s beside %s"):format(tostring(a), tostring(b)), message)
  end
end

function Tester:assertError(f, message) return note(self, not pcall(f), "no error", message) end
function Tester:assertNoError(f, message)
  local ok, err = pcall(f)
  return note(self, ok, tostring(err), message)
end
-- Check that f raises an error with this text, matching this pattern, or which is_expected accepts.
for name, fits in pairs {
  Msg = function(err, text) return err == text end, Obj = function(err, is_expected) return is_expected(err) end,
  Pattern = function(err, pattern) return tostring(err):find(pattern) ~= nil end,
} do
  Tester["assertError" .. name] = function(self, f, wanted, message)
    local ok, err = pcall(f)
    return note(self, not ok and fits(err, wanted), ("the error is %s"):format(tostring(err)), message)
  end
end

--- tester:add(f [, name]), tester:add {name = f, …}: Adds tests; a table's _setUp and _tearDown run around each.
function Tester:add(tests, name)
  if type(tests) == "function" then tests = {[name or "test" .. #self.names + 1] = tests} end
  options.arg("torch.Tester.add", "tests", tests, "table")
  local mt = getmetatable(tests)
  tests = mt and mt.__tests or tests
  local names = {}
  for key, f in pairs(tests) do
    if type(f) ~= "function" then fail("torch.Tester.add: '%s' must be a function", tostring(key)) end
    names[#names + 1] = tostring(key)
    self.tests[tostring(key)] = f
  end
  table.sort(names)
  for _, key in ipairs(names) do
    if key ~= "_setUp" and key ~= "_tearDown" then table.insert(self.names, key) end
  end
  return self
end

--- Leaves out tests by name.
function Tester:disable(names)
  for _, name in ipairs(type(names) == "table" and names or {names}) do self.disabled[name] = true end
  return self
end

-- Define settings: whether the first failed test ends the run; whether its error is raised again; whether failures are
-- counted only.
for name, field in pairs {setEarlyAbort = "early", setRethrowErrors = "rethrow", setSummaryOnly = "brief"} do
  Tester[name] = function(self, on)
    self[field] = on ~= false
    return self
  end
end

--- tester:run([name or names]): Runs all tests, or these; prints a report, and raises an error if one has failed.
function Tester:run(names)
  local wanted = type(names) == "string" and {names} or names or self.names
  local failed, checks = {}, 0
  for _, name in ipairs(wanted) do
    local test = self.tests[name] or fail("torch.Tester: no test '%s'", name)
    self.checks, self.failures = 0, {}
    if not self.disabled[name] then
      for _, f in ipairs {self.tests._setUp or function() end, test, self.tests._tearDown or function() end} do
        local ok, err = xpcall(function() f(name) end, debug.traceback)
        if not ok then table.insert(self.failures, err) end
        if not ok and self.rethrow then error(err, 0) end
      end
    end
    checks = checks + self.checks
    if #self.failures > 0 then
      failed[#failed + 1] = name
      if not self.brief then io.write(("%s\n  %s\n"):format(name, table.concat(self.failures, "\n  "))) end
      if self.early then break end
    end
  end
  io.write(("Completed %d asserts in %d tests with %d failed\n"):format(checks, #wanted, #failed))
  if #failed > 0 then fail("torch.Tester: failed: %s", table.concat(failed, ", ")) end
end

--- torch.TestSuite(): Creates a table of tests in which a second test of the same name is an error.
local function suite()
  local tests = {}
  return setmetatable({}, {__index = tests, __newindex = function(_, name, f)
    if type(f) ~= "function" then fail("torch.TestSuite: '%s' must be a function", tostring(name)) end
    if tests[name] then fail("torch.TestSuite: test '%s' is defined twice", tostring(name)) end
    tests[name] = f
  end, __tests = tests})
end

return suite
