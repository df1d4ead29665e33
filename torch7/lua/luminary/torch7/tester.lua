--- Runs tests and reports failed checks (torch.Tester):
---
---   local tester = torch.Tester()
---   tester:add {adds = function() tester:eq(1 + 1, 2) end}
---   tester:run()                                     -- raises an error if one has failed
---
--- Classes extend it: fields and methods that begin with _ are Torch7's.
local debug = require "debug"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local storage = require "luminary.torch7.storage"
local tensor = require "luminary.torch7.tensor"
local lists = require "luminary.base.lists"
local fail = options.fail

local Tester = class.new "torch.Tester"

function Tester:__init()
  self.tests, self.disabledTests, self.errors = {}, {}, {}
  self.assertionPass, self.assertionFail, self.testError, self._currentTestName = {}, {}, {}, ""
  self._assertTensorEqIgnoresDims = true -- affects assertTensorEq alone
end

-- Returns the numbers of a storage or of sizes as a list, and other values unchanged.
local function listed(v) return (storage.is(v) or tensor.is_sizes(v)) and v:totable() or v end

-- Returns true if tensors of the same type have the same sizes, or number of elements, and differences up to tolerance.
local function same_tensors(a, b, tolerance, any_sizes)
  if a:type() ~= b:type() or a:nElement() ~= b:nElement() then return false end
  if not (any_sizes or a:isSameSizeAs(b)) then return false end
  return a:nElement() == 0 or a:equal(b) or (a:double() - b:double():viewAs(a:double())):abs():max() <= tolerance
end
-- Returns true if two values are equal, numbers and elements of tensors within a tolerance.
local function same(a, b, tolerance)
  if storage.is(a) and storage.is(b) and class.typename(a) ~= class.typename(b) then return false end
  a, b = listed(a), listed(b)
  if type(a) == "number" and type(b) == "number" then return a == b or math.abs(a - b) <= tolerance end
  if tensor.is(a) and tensor.is(b) then return same_tensors(a, b, tolerance) end
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for k, v in pairs(a) do if b[k] == nil or not same(v, b[k], tolerance) then return false end end
  for k in pairs(b) do if a[k] == nil then return false end end
  return true
end

-- Returns the tolerance and the message among a check's last arguments, which come in any order.
local function read_last(default, ...)
  local tolerance, message = nil, nil
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    if type(v) == "number" and not tolerance and default and v >= 0 then tolerance = v
    elseif type(v) == "string" and not message then message = v
    elseif v ~= nil then
      fail("torch.Tester: expected %sa message, got %s", default and "a tolerance of at least 0 and " or "",
        options.describe(v))
    end
  end
  return tolerance or default, message and message ~= "" and message .. "\n" or ""
end

function Tester:_success()
  self.assertionPass[self._currentTestName] = (self.assertionPass[self._currentTestName] or 0) + 1
  return true
end
function Tester:_failure(message)
  if self.rethrow then error(message, 2) end
  self.assertionFail[self._currentTestName] = (self.assertionFail[self._currentTestName] or 0) + 1
  local own, level, at = debug.getinfo(1, "S").source, 2 -- the script's line
  repeat at, level = debug.getinfo(level, "Sl"), level + 1 until not at or at.source ~= own and at.currentline > 0
  local where = at and ("%s:%d"):format(at.short_src, at.currentline) or "?"
  table.insert(self.errors, ("%s\n  %s: %s"):format(self._currentTestName, where, message))
  return false
end
function Tester:_assert_sub(condition, message)
  if condition then return self:_success() end
  return self:_failure(message)
end

local function described(v) return tensor.is(v) and v:type() or tostring(v) end
-- Defines checks of values, the first `count` arguments, and of a message or, with a default tolerance, both in any
-- order. holds(a, b, tolerance, self) returns true or false, and what else the report says.
local function check(name, count, default, holds)
  Tester[name] = function(self, a, b, ...)
    local tolerance, message = read_last(default, select(count, b, ...))
    local ok, more = holds(a, b, tolerance, self)
    local values = count == 1 and described(a) or described(a) .. " and " .. described(b)
    return self:_assert_sub(ok, ("%s%s violation: %s%s"):format(message, name:gsub("^assert", ""):upper(), values,
      more and ": " .. tostring(more) or tolerance and (", tolerance=%g"):format(tolerance) or ""))
  end
end
local function table_of(v) return options.arg("torch.Tester", "value", v, "table") end
for name, row in pairs {
  GeneralEq = {0, same}, TableEq = {0, function(a, b, tolerance) return same(table_of(a), table_of(b), tolerance) end},
  TensorEq = {0, function(a, b, tolerance, self)
    return same_tensors(a, b, tolerance, tensor.raw(a) and tensor.raw(b) and self._assertTensorEqIgnoresDims)
  end}, almosteq = {1e-16, same}, eq = {nil, function(a, b) return a == b end},
} do
  check("assert" .. name, 2, row[1], row[2])
  if name ~= "almosteq" then
    check("assert" .. name:gsub("[eE]q$", {eq = "ne", Eq = "Ne"}), 2, row[1], function(...) return not row[2](...) end)
  end
end
function Tester:eq(...) return self:assertGeneralEq(...) end
function Tester:ne(...) return self:assertGeneralNe(...) end
check("assertlt", 2, nil, function(a, b) return a < b end)
check("assertgt", 2, nil, function(a, b) return a > b end)
check("assertle", 2, nil, function(a, b) return a <= b end)
check("assertge", 2, nil, function(a, b) return a >= b end)
check("assert", 1, nil, function(condition) return condition and true or false end)
check("assertNoError", 1, nil, pcall)
-- Define checks that f raises an error: any, one that fits, one with this text or matching this pattern.
local function raises(fits)
  return function(f, wanted)
    local ok, err = pcall(f)
    return not ok and fits(err, wanted), err
  end
end
check("assertError", 1, nil, raises(function() return true end))
check("assertErrorObj", 2, nil, raises(function(err, is_wanted) return is_wanted(err) end))
check("assertErrorMsg", 2, nil, raises(function(err, text) return err == text end))
check("assertErrorPattern", 2, nil, raises(function(err, pattern) return tostring(err):find(pattern) ~= nil end))

--- tester:add(f [, name]), tester:add {name = f, …}: Adds tests; _setUp and _tearDown run around each, with its name.
function Tester:add(tests, name)
  if type(tests) == "function" then tests = {[name or "unknown"] = tests} end
  options.arg("torch.Tester.add", "tests", tests, "table")
  for key, f in pairs(tests.__isTestSuite and tests.__tests or tests) do
    key = tostring(key)
    if type(f) ~= "function" then fail("torch.Tester.add: '%s' must be a function", key) end
    local of = (key == "_setUp" or key == "_tearDown") and self or self.tests
    if rawget(of, key) then fail("torch.Tester.add: there is a test '%s' already", key) end
    of[key] = f
  end
  return self
end

--- Leaves out tests by name.
function Tester:disable(names)
  for _, name in ipairs(type(names) == "table" and names or {names}) do
    if not self.tests[name] then fail("torch.Tester: no test '%s'", tostring(name)) end
    self.disabledTests[name] = true
  end
  return self
end

-- Define settings: whether the first failed test ends the run; whether its error is raised again; whether failures are
-- counted only.
for name, field in pairs {setEarlyAbort = "earlyAbort", setRethrowErrors = "rethrow", setSummaryOnly = "summaryOnly"} do
  Tester[name] = function(self, on)
    self[field] = on ~= false
    return self
  end
end

-- Returns the tests whose names match one of these patterns; all without them.
function Tester:_getTests(names)
  if names == nil then return self.tests end
  local found = {}
  if type(names) == "string" then names = {names} end
  for _, pattern in ipairs(options.arg("torch.Tester", "names", names, "table")) do
    local any = false
    for name, f in pairs(self.tests) do if name:match(pattern) then found[name], any = f, true end end
    if not any then fail("torch.Tester: no test '%s'", pattern) end
  end
  return found
end

-- Runs tests in the order of their names.
function Tester:_run(tests)
  for _, name in ipairs(lists.sorted_keys(tests)) do
    self._currentTestName = name
    local before = #self.errors
    if not self.disabledTests[name] then
      if self._setUp then self._setUp(name) end
      local ok, err = xpcall(tests[name], debug.traceback)
      if not ok and self.rethrow then error(err, 0) end
      if not ok then table.insert(self.errors, ("%s\n%s"):format(name, tostring(err))) end
      if self._tearDown then self._tearDown(name) end
      self.testError[name] = ok and 0 or 1
    end
    if self.earlyAbort and #self.errors > before then break end
  end
end

--- tester:run([name or names]): Runs all tests, or those whose names match; prints a report, and raises an error if one
--- has failed.
function Tester:run(names)
  local tests, failed = self:_getTests(names), {}
  self.errors, self.countasserts = {}, 0
  for name in pairs(tests) do self.assertionPass[name], self.assertionFail[name], self.testError[name] = 0, 0, 0 end
  self:_run(tests)
  for _, name in ipairs(lists.sorted_keys(tests)) do
    self.countasserts = self.countasserts + self.assertionPass[name] + self.assertionFail[name]
    if self.assertionFail[name] + self.testError[name] > 0 then failed[#failed + 1] = name end
  end
  for _, text in ipairs(self.summaryOnly and {} or self.errors) do io.write(text, "\n") end
  io.write(("Completed %d asserts in %d tests with %d failed\n"):format(self.countasserts,
    #lists.sorted_keys(tests), #failed))
  if #failed > 0 then fail("torch.Tester: failed: %s", table.concat(failed, ", ")) end
  return 0
end

--- torch.TestSuite(): Creates a table of tests in which a second test of the same name is an error.
local function suite()
  local tests = {}
  return setmetatable({__tests = tests, __isTestSuite = true}, {__index = tests, __newindex = function(_, name, f)
    if type(f) ~= "function" then fail("torch.TestSuite: '%s' must be a function", tostring(name)) end
    if tests[name] then fail("torch.TestSuite: Test %s is already defined.", tostring(name)) end
    tests[name] = f
  end})
end

return suite
