-- The forms of error messages that C's functions use (src/base/message.h), through calls that fail.
local lm = require "luminary"
local load_idx = require("luminary.file_formats.idx").load
local temp = require "spec.support.temp"
local form = dofile "spec/support/message.lua"
local message = require "spec.support.error_of"

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
    ["of a shape that does not broadcast"] = {
      form.broadcast("copy_", "src", "[3, 2]", "[2, 3]"), x.copy_, x, lm.ones(3, 2),
    },
    ["of too many arguments"] = { form.too_many("numel", 0, "argument", 1), x.numel, x, 1 },
    ["of elements that share memory"] = {
      form.overlap("fill_", "a tensor", "[2, 3]"), function() lm.ones(3):expand(2, 3):fill_(1) end,
    },
    ["of dims that are repeated"] = { "permute: dim 1 is repeated", x.permute, x, { 1, 1 } },
    ["of an empty dim"] = { "amax: dim 1 of [0, 2] must not be empty", lm.amax, lm.ones(0, 2), 1 },
    ["of an option given twice"] = {
      "sum: dim is given twice, by position and by name", lm.sum, x, 1, { dim = 1 },
    },
    ["of options that exclude each other"] = {
      "searchsorted: side = 'left' and right = true are mutually exclusive", lm.searchsorted, lm.ones(3), lm.ones(3),
      { right = true, side = "left" },
    },
    ["of a file"] = { form.file("open", "/nowhere/x", "No such file or directory"), lm.vision.read_file, "/nowhere/x" },
    ["of memory"] = { "cannot allocate 8.0 PiB on cpu: out of memory; ", lm.empty, 2 ^ 30, 2 ^ 20, 2 },
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
    local shown = folder .. "/a??[31m.bin" -- an escape sequence would reach the terminal
    local function says(expected, f, ...) assert.matches(expected .. "$", message(f, ...)) end
    local function written(text) temp.write(path, text) end
    says(form.pattern(form.file("open", shown, "No such file or directory")), lm.load, path)
    says(form.pattern(form.file("open", folder, "it is a folder, not a regular file")), load_idx, folder)
    says(form.pattern(form.file("write", folder .. "/no/x", "No such file or directory")), lm.save, folder .. "/no/x",
      {x})
    written(("\8" .. ("\0"):rep(7)) .. "[1,2,3,]")
    says(form.pattern(form.malformed(shown, "safetensors header", 8, "it must start with {")), lm.load, path)
    written "\1\2\8\1\0\0\0\0"
    says(form.pattern(form.malformed(shown, "IDX header", 0, "it must start with 00 00, got 01 02")), load_idx,
      path)
    written "PK\5\6"
    says(form.pattern(form.malformed(shown, "zip archive", nil, "it has no directory at its end; is it truncated?")),
      lm.load, path)
    written "GGUF\3\0\0\0\1"
    says(form.pattern(form.truncated(shown, 8, 8, 9)), lm.load, path)
    temp.remove(folder)
  end)

  it("of a file with a long path keeps both ends of it, and the reason", function()
    local why = message(load_idx, "/first/" .. ("x"):rep(3000) .. "/last")
    assert.matches("cannot open '/first/xx.*/last': ", why)
    assert.is_true(#why < 1000)
  end)

  it("shows a value in C as in Lua", function()
    local options = require "luminary.base.options"
    local values = {
      3, -0.5, 1e300, 0 / 0, 1 / 0, true, false, "text", "", {}, { 1, 2 }, { 1, dim = 2 }, print, function() end,
      coroutine.create(print), io.stdout, lm.nn.Linear(2, 2), lm.nn.Linear, lm.nn,
      lm.optim.SGD({ lm.ones(1) }, { lr = 1 }), lm.data.TensorDataset(lm.ones(2)),
    }
    for _, value in ipairs(values) do
      local why = message(lm.nn.functional.relu, value)
      assert.matches("relu: x must be a tensor, got " .. options.describe(value), why, 1, true)
    end
    local zeros, scalar = lm.zeros(2, 0), lm.ones({})
    for _, value in ipairs { x, zeros, scalar } do
      local why = message(lm.ones, { 2 }, { requires_grad = value })
      assert.matches("ones: requires_grad must be true or false, got " .. options.describe(value), why, 1, true)
    end
    assert.matches("relu: x must be a tensor, got nil", message(lm.relu, nil), 1, true)
  end)

  it("names the op that was called, not those it is made of", function()
    local A, double = lm.ones(3, 3), lm.ones(3, 3):double()
    for want, f in pairs {
      ["solve: dtype mismatch: A is float32, B is float64"] = function()
        local r = lm.linalg.solve(A, double)
        return r
      end,
      ["matmul: dtype mismatch: x is float32, other is float64"] = function()
        local r = A:matmul(double)
        return r
      end,
      ["svdvals: A must be finite"] = function()
        local r = lm.linalg.svdvals(A / 0)
        return r
      end,
      ["clamp: shapes [2, 3] and [2] must broadcast"] = function()
        local r = x:clamp(lm.ones(2))
        return r
      end,
      ["kl_div: shapes [2, 3] and [2] must"] = function()
        local r = lm.nn.functional.kl_div(x, lm.ones(2))
        return r
      end,
      ["median: dim 5 is out of range"] = function()
        local r = x:median(5)
        return r
      end,
      ["addmv: addmm: beta must be from -128 to 127"] = function()
        local i = lm.ones(2):char()
        local r = i:addmv(lm.ones(2, 2):char(), i, { beta = 300 })
        return r
      end,
    } do
      local why = message(f):gsub("^.-:%d+: ", "")
      assert.equal(want, why:sub(1, #want))
    end
  end)

  it("of a reason that is long keeps its remedy", function()
    local why = message(x.view, x, 5, 5)
    assert.matches(form.must_be("view", "size", "6 elements as x of shape [2, 3]", "[5, 5]"), why, 1, true)
  end)
end)
