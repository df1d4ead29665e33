-- The forms of error messages that C's functions use (src/base/message.h), through calls that fail.
local lm = require "luminary"
local temp = require "spec.support.temp"
local form = dofile "spec/support/message.lua"

local function message(f, ...)
  local ok, why = pcall(f, ...)
  assert(not ok, "no error")
  return tostring(why)
end

describe("a message", function()
  local x = lm.ones(2, 3)
  local cases = {
    ["of a bound"] = { form.must_be("linspace", "steps", "at least 0", -1), lm.linspace, 0, 1, -1 },
    ["of a bound on a number"] = { form.must_be("bernoulli", "p", "from 0 to 1", 1.5), lm.bernoulli, x, 1.5 },
    ["of an index"] = { form.index("select", 4, 2, 3), x.select, x, 2, 4 },
    ["of an index of 0"] = { form.index("x[…]", 0, 1, 2), function() return x[0] end },
    ["of two dtypes"] = { form.dtypes("mm", "x", "float32", "other", "float64"), x.mm, x, lm.ones(3, 2):double() },
    ["of two shapes"] = { form.same_shape("linear_recurrence", "x", "decay", "[2, 3]", "[3]"), lm.linear_recurrence, x,
      lm.ones(3), 1 },
    ["of a dtype, with the remedy"] = { form.must_be("softmax", "x", "floating point", "int64")
      .. "; convert it with :float()", lm.softmax, x:long(), 1 },
  }
  for name, case in pairs(cases) do
    it(name .. " has its form and one line", function()
      local why = message(unpack(case, 2))
      assert.matches(case[1], why, 1, true)
      assert.is_nil(why:find "\n")
      assert.is_true(#why <= 200)
    end)
  end

  it("of a file names it, the byte and the reason", function()
    local folder = temp.folder()
    local path = folder .. "/a\n\27[31m.bin"
    local shown = folder .. "/a??[31m.bin" -- what a terminal would obey
    local function says(expected, f, ...) assert.matches(expected .. "$", message(f, ...)) end
    local function written(text) temp.write(path, text) end
    says(form.pattern(form.file("open", shown, "No such file or directory")), lm.load, path)
    says(form.pattern(form.file("open", folder, "it is a folder, not a regular file")), lm.core.read_idx, folder)
    says(form.pattern(form.file("write", folder .. "/no/x", "No such file or directory")), lm.save, folder .. "/no/x",
      {x})
    written(("\8" .. ("\0"):rep(7)) .. "[1,2,3,]")
    says(form.pattern(form.malformed(shown, "safetensors header", 8, "it must start with {")),
      lm.core.safetensors_open or lm.load, path)
    written "\1\2\8\1\0\0\0\0"
    says(form.pattern(form.malformed(shown, "IDX header", 0, "it must start with 00 00, got 01 02")), lm.core.read_idx,
      path)
    written "PK\5\6"
    says(form.pattern(form.malformed(shown, "zip archive", nil, "it has no directory at its end; is it truncated?")),
      lm.load, path)
    written "GGUF\3\0\0\0\1"
    says(form.pattern(form.truncated(shown, 8, 8, 9)), lm.load, path)
    temp.remove(folder)
  end)

  it("of a file with a long path keeps both ends of it, and the reason", function()
    local why = message(lm.core.read_idx, "/first/" .. ("x"):rep(3000) .. "/last")
    assert.matches("cannot open '/first/xx.*/last': ", why)
    assert.is_true(#why < 1000)
  end)

  it("of a reason that is long keeps its remedy", function()
    local why = message(x.view, x, 5, 5)
    assert.matches(form.must_be("view", "size", "6 elements as x of shape [2, 3]", "[5, 5]"), why, 1, true)
  end)
end)
