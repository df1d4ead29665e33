-- Each argument that LM_FUNCTION or LM_METHOD declares in src/bind: a wrong value, none, and one argument too many are
-- errors that name it. The declarations are read from the sources.
local lm = require "luminary"
local core = require "luminary.core"
local temp = require "spec.support.temp"

local folder = temp.folder()
teardown(function() temp.remove(folder) end)
assert(io.open(folder .. "/x", "w")):close()

local tape = core.record_ops(function() end, {})
-- A value of each kind; `false` for kinds whose objects need other processes, a GPU or a save that runs.
local values = {
  any = 0, flag = 0, number = 1, int = 1, count = 1, boolean = true, text = "1", string = "1", bytes = "1", table = {},
  tensor = lm.ones(1), shaped = lm.ones(1), dtype = "float32", device = "cpu", device_kind = "cpu",
  memory_stats = "cpu", where = "cpu", stream = "cpu", deadline = 0, queue = core.mp_queue(0),
  any_handle = core.mp_queue(0), connection = core.mp_pipe(), lock = core.mp_lock(), semaphore = core.mp_semaphore(1),
  file = core.file_open(folder .. "/x"), file_stream = core.stream_open(folder .. "/x"),
  growing = core.growing_file_open(folder .. "/y", false),
  recorded = tape, event = core.event_new("cpu"), plan = false, worker = false, world = false, reducer = false,
  graph = false, write = false, work = false, tokenizer = false,
}
-- Kinds whose errors name the argument; those of others name the object, or a part of it.
local named = { number = 1, int = 1, boolean = 1, text = 1, string = 1, table = 1, tensor = 1, shaped = 1, dtype = 1,
  device = 1, device_kind = 1, memory_stats = 1 }

-- Returns {name, holder, list of {kind, name, has_default}} of each function.
local function declarations()
  local found, pipe = {}, io.popen "grep -lrE 'LM_(FUNCTION|METHOD)' src/bind --include=*.c"
  for path in pipe:lines() do
    local file = assert(io.open(path))
    local text = file:read "*a"
    file:close()
    for name, tuples in text:gmatch "\n#define (%u+) (%([^\n]*)" do
      text = text:gsub("%f[%w]" .. name .. "%f[%W]", tuples)
    end
    for macro, list in text:gmatch "\nLM_([FM][%u_]+)(%b()) {" do
      local d = {name = list:match "[%w_]+", holder = macro == "METHOD" and core.methods or core}
      for kind, name, default in list:sub(2, -2):gmatch "%(([%w_]+),%s+([%w_]+)(,?)[^()]*%(?[^()]*%)?[^()]*%)" do
        d[#d + 1] = {kind, name, default ~= ""}
      end
      if #d > 0 then found[#found + 1] = d end
    end
  end
  pipe:close()
  return found
end

describe("declared arguments", function()
  local list = declarations()

  it("are many, each of a kind that this file knows", function()
    assert.is_true(#list > 100, #list)
    for _, d in ipairs(list) do
      for _, a in ipairs(d) do assert(values[a[1]] ~= nil, d.name .. ": " .. a[1]) end
    end
  end)

  for _, d in ipairs(list) do
    it("of " .. d.name .. " are checked, and so is their number", function()
      local f, given = assert(d.holder[d.name]), {}
      local self = d.holder == core.methods and 1 or 0
      for i, a in ipairs(d) do
        local kind, name, has_default = unpack(a)
        if kind ~= "any" and kind ~= "flag" then
          local what = (named[kind] and name or "") .. ".* "
          given[i] = print
          assert.error_matches(function() f(unpack(given, 1, i)) end, what .. "got a function")
          given[i] = nil
          if not has_default and kind ~= "where" and kind ~= "work" then -- nil is a `where`, too
            assert.error_matches(function() f(unpack(given, 1, i - 1)) end, what .. "is missing")
          end
        end
        given[i] = values[kind]
        if given[i] == false then return end
      end
      given[#d + 1] = 1
      assert.error_matches(function() f(unpack(given, 1, #d + 1)) end, #d == self and "takes no arguments, got 1"
        or ("takes at most %d arguments?, got %d"):format(#d - self, #d + 1 - self))
    end)
  end
end)
