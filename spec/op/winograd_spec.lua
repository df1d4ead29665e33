-- 3 x 3 convolutions on the CPU by Winograd's algorithm, with each level of instructions.
local temp = require "spec.support.temp"

local LEVELS = require "spec.support.cpu_levels"

-- Runs a script at a level. Returns its output, and for each pass the number of convolutions by Winograd in the log.
local function run(script, level, mode)
  local folder = temp.folder()
  local path = temp.write(folder .. "/script.lua", 'local lm = require "luminary"\n' .. script)
  local command = "LM_LOG=op LM_CPU_LEVEL=%d LM_CONV=%s luajit %s 2>log || cat log"
  local ok, text = temp.run(folder, ("cd %s && "):format(folder) .. command:format(level, mode, path))
  local log = temp.read(folder .. "/log")
  temp.remove(folder)
  assert(ok, text)
  local counts = {[0] = 0, 0, 0}
  for pass in log:gmatch "Winograd: [^\n]*pass (%d)" do counts[tonumber(pass)] = counts[tonumber(pass)] + 1 end
  return text, counts
end

-- n, c, k, h, w, padding: channels that fill no panel, more than a panel's depth, images that no tile divides, single
-- tiles and single pixels; blocks of tiles with a remainder, parts of tiles with sums of their own.
local CASES = [[
  local cases = {
    {1, 16, 16, 4, 4, 1}, {1, 16, 32, 1, 1, 1}, {3, 16, 48, 9, 7, 1}, {2, 80, 96, 13, 6, 2}, {5, 64, 144, 8, 8, 0},
    {1, 48, 16, 3, 5, {0, 2}}, {2, 272, 32, 6, 5, 1}, {7, 128, 64, 15, 15, 1}, {20, 144, 160, 16, 15, 1},
    {40, 16, 32, 27, 28, 1},
  }
  local function passes(case, dtype)
    local n, c, k, h, w, padding = unpack(case)
    lm.manual_seed(c + k)
    local opt = {padding = padding}
    local x = lm.randn(n, c, h, w):to(dtype):contiguous {memory_format = "channels_last"}
    local weight, bias = (lm.randn(k, c, 3, 3) / (3 * c ^ 0.5)):to(dtype), lm.randn(k):to(dtype)
    local y = lm.conv2d(x, weight, bias, opt)
    local g = lm.randn(y.shape):to(dtype)
    return {y, lm.conv2d_input(g, weight, x.shape, opt), lm.conv2d_weight(g, x, weight.shape, opt)}
  end
]]

describe("Winograd's convolutions", function()
  for _, level in ipairs(LEVELS) do
    it("are those of float64 but for rounding, at level " .. level, function()
      local text, counts = run(CASES .. [[
        for _, case in ipairs(cases) do
          local got, expected = passes(case, "float32"), passes(case, "float64")
          for i = 1, 3 do
            local off = (got[i]:double() - expected[i]):square():mean():sqrt() / expected[i]:square():mean():sqrt()
            print(table.concat(case, " ", 1, 5) .. ", pass " .. i, off:item())
          end
        end
      ]], level, "winograd")
      assert.same({[0] = 10, 10, 10}, counts)
      local seen = 0
      for what, off in text:gmatch "([^\t\n]+)\t(%S+)" do
        assert(tonumber(off) < 4e-6, ("%s: off by %s of its root mean square"):format(what, off))
        seen = seen + 1
      end
      assert.equal(30, seen)
    end)

    it("have the same bits on any number of threads, at level " .. level, function()
      local text = run(CASES .. [[
        local function on(threads, case)
          lm.set_num_threads(threads)
          return passes(case, "float32")
        end
        for _, case in ipairs(cases) do
          local one = on(1, case)
          for threads = 2, 4 do
            for i, t in ipairs(on(threads, case)) do
              if not t:equal(one[i]) then print(table.concat(case, " ", 1, 5), "pass", i, "threads", threads) end
            end
          end
        end
      ]], level, "winograd")
      assert.equal("", text)
    end)

    it("serve the 3 x 3 layers of a ResNet, at level " .. level, function()
      local script = [[
        local conv = lm.nn.Conv2d(64, 64, 3, {padding = 1})
        conv(lm.randn(2, 64, 28, 28):requires_grad_()):sum():backward()
      ]]
      local _, counts = run(script, level, "auto")
      assert.same({[0] = 1, 1, 1}, counts)
      _, counts = run(script, level, "direct")
      assert.same({[0] = 0, 0, 0}, counts)
    end)
  end

  it("leave few numbers, and an empty batch, to others", function()
    local text, counts = run([[
      local conv = lm.nn.Conv2d(16, 32, 3, {padding = 1})
      conv(lm.randn(1, 16, 4, 4):requires_grad_()):sum():backward()
      conv:zero_grad()
      local x = lm.randn(0, 16, 8, 8):requires_grad_()
      local y = conv(x)
      y:sum():backward()
      print(y.shape[1], x.grad.shape[1], conv.weight.grad:abs():sum():item(), conv.bias.grad:abs():sum():item())
    ]], 2, "auto")
    assert.equal("0\t0\t0\t0\n", text)
    assert.same({[0] = 0, 0, 0}, counts)
  end)
end)
