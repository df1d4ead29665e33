-- Convolutions on the CPU by each of its ways, with each level of instructions, beside sums of shifted products in
-- float64.
local temp = require "spec.support.temp"

local LEVELS = require "spec.support.cpu_levels"
local needs = require "spec.support.needs"

-- Runs a script at a level. Returns its output, and how often the log names each way.
local function run(script, level, mode)
  local folder = temp.folder()
  local path = temp.write(folder .. "/script.lua", 'local lm = require "luminary"\n' .. script)
  local command = "LM_LOG=op LM_CPU_LEVEL=%d LM_CONV=%s luajit %s 2>log || cat log"
  local ok, text = temp.run(folder, ("cd %s && "):format(folder) .. command:format(level, mode or "auto", path))
  local log = temp.read(folder .. "/log")
  temp.remove(folder)
  assert(ok, text)
  local counts = {}
  for way in log:gmatch "([%w ]+): x %[" do
    way = way:match "%S.*"
    counts[way] = (counts[way] or 0) + 1
  end
  return text, counts, log
end

local CASES = [[
  -- n, c, k, h, w, kh, kw, stride, padding, dilation, groups
  local cases = {
    {2, 5, 7, 9, 8, 3, 3, 1, 1, 1, 1},          -- few channels, padded: rows of the kernel are runs
    {1, 3, 16, 13, 11, 7, 7, 2, 3, 1, 1},
    {2, 3, 20, 12, 12, 5, 5, 1, 0, 1, 1},       -- without padding
    {2, 3, 9, 12, 13, 3, 3, 1, 2, 2, 1},        -- dilated: no runs
    {2, 32, 48, 10, 9, 3, 3, 2, 1, 1, 1},       -- strides: grids of x
    {2, 8, 12, 11, 12, 3, 2, {2, 3}, {1, 0}, {2, 1}, 1},
    {3, 33, 65, 17, 19, 3, 3, 3, 2, 2, 1},
    {1, 2, 3, 50, 50, 2, 2, 7, 0, 1, 1},        -- pixels of x that no tap reaches
    {3, 16, 8, 7, 7, 1, 1, 1, 0, 1, 1},         -- products
    {2, 40, 24, 3, 5, 1, 1, 1, 0, 1, 1},
    {5, 7, 9, 4, 3, 4, 3, 1, 0, 1, 1},          -- kernels as large as the image
    {1, 33, 40, 3, 3, 3, 3, 2, 0, 1, 1},
    {3, 1, 5, 7, 1, 7, 1, 1, 0, 1, 1},
    {2, 9, 5, 1, 1, 1, 1, 3, 0, 2, 1},
    {2, 24, 40, 9, 8, 1, 1, 2, 0, 1, 1},
    {2, 24, 40, 9, 8, 1, 1, 1, 1, 1, 1},
    {1, 600, 20, 5, 5, 1, 1, 2, 0, 1, 1},       -- a run in several chunks
    {2, 700, 3, 4, 4, 3, 3, 2, 1, 1, 1},
    {1, 2, 3, 9, 9, 9, 9, 1, 4, 1, 1},          -- more taps than a chunk has runs
    {9, 4, 4, 30, 30, 3, 3, 1, 1, 1, 1},        -- sums of weights in parts
    {27, 8, 24, 6, 7, 3, 3, 1, 1, 1, 1},        -- small images side by side, and last columns of each width
    {26, 40, 50, 5, 5, 5, 5, 1, 2, 1, 1},
    {29, 48, 20, 4, 4, 3, 3, 2, 1, 1, 1},
    {13, 12, 100, 3, 4, 2, 3, 1, {1, 2}, 1, 1},
    {5, 18, 35, 9, 8, 3, 3, 1, 1, 1, 1},        -- few columns beyond vectors, which are summed along runs
    {2, 50, 20, 9, 7, 3, 3, 1, {0, 1}, 2, 1},
    {40, 17, 1, 9, 8, 3, 2, 1, 1, 1, 1},
    {2, 516, 68, 4, 5, 2, 2, 1, 0, 1, 1},
    {17, 3, 20, 9, 8, 5, 3, {2, 1}, {2, 1}, {1, 2}, 1}, -- channels that fill vectors badly, of many images
    {20, 33, 16, 9, 7, 3, 2, {1, 3}, {2, 4}, {2, 1}, 1},
    {16, 3, 16, 70, 70, 3, 3, 1, 1, 1, 1},      -- an image in two pieces
    {1, 64, 80, 6, 6, 3, 3, 2, 1, 1, 2},        -- groups that fill vectors, and that do not
    {9, 32, 32, 6, 6, 3, 3, 1, 1, 1, 8},
    {2, 12, 18, 6, 6, 3, 3, 1, 1, 1, 3},
    {2, 12, 12, 9, 17, 3, 3, 1, 1, 1, 3},       -- groups of 4, 2 and 8 channels, which may not fill a vector
    {1, 34, 34, 8, 9, 3, 3, 2, 1, 1, 17},
    {2, 40, 40, 15, 16, 5, 3, {1, 2}, {2, 1}, {2, 1}, 5},
    {3, 64, 64, 2, 1, 3, 3, 1, 1, 1, 8},
    {1, 56, 56, 11, 12, 7, 7, 1, 3, 1, 14},
    {2, 16, 16, 5, 6, 1, 1, 3, 0, 1, 4},
    {2, 6, 6, 8, 9, 3, 3, 2, 1, 1, 6},          -- depthwise
    {1, 200, 200, 7, 7, 5, 5, 1, 2, 1, 200},    -- few lines: threads share channels, the last of which fill no vector
    {1, 72, 72, 15, 16, 5, 5, 2, 2, 1, 72},
    {1, 40, 40, 5, 4, 7, 7, 1, 3, 1, 40},       -- a kernel larger than the images
    {1, 24, 24, 8, 16, 3, 3, 1, 2, 2, 24},
    {2, 37, 37, 9, 17, 3, 3, 1, 1, 1, 37},
    {2, 48, 48, 9, 17, 5, 5, 1, 2, 1, 48},
    {1, 40, 40, 15, 16, 7, 7, 1, 3, 1, 40},
    {2, 20, 20, 9, 11, 5, 3, {2, 3}, {2, 1}, {1, 2}, 20},
    {3, 33, 33, 2, 1, 3, 3, 1, 1, 1, 33},       -- a kernel that reaches beyond both edges
    {1, 18, 18, 14, 14, 3, 3, 4, 2, 2, 18},
    {2, 16, 16, 5, 6, 1, 1, 3, 0, 1, 16},
    {2, 16, 16, 12, 3, 2, 2, 1, 3, 1, 16},      -- padding wider than the kernel
    {2, 32, 48, 2, 4, 5, 5, 3, 2, 1, 1},        -- strides beyond the image: taps that reach no pixel
    {1, 17, 17, 3, 4, 3, 3, {4, 5}, {2, 0}, 1, 17},
  }
  local function pair(v) return type(v) == "table" and v or {v, v} end
  local function data(case, dtype, format)
    local n, c, k, h, w, kh, kw, stride, padding, dilation, groups = unpack(case)
    lm.manual_seed(c + k)
    local opt = {stride = stride, padding = padding, dilation = dilation, groups = groups}
    local x, weight = lm.randn {n, c, h, w}, lm.randn {k, c / groups, kh, kw}
    local bias = lm.randn {k}
    local y = lm.conv2d(x, weight, bias, opt)
    local g = lm.randn(y.shape)
    return x:to(dtype):contiguous {memory_format = format}, weight:to(dtype), bias:to(dtype), g:to(dtype), opt
  end
  local function passes(case, dtype, format)
    local x, weight, bias, g, opt = data(case, dtype, format)
    return {lm.conv2d(x, weight, bias, opt), lm.conv2d(x, weight, nil, opt), lm.conv2d_input(g, weight, x.shape, opt),
      lm.conv2d_weight(g, x, weight.shape, opt)}
  end
  local function name(case)
    local list = {}
    for i, v in ipairs(case) do list[i] = type(v) == "table" and table.concat(v, "x") or tostring(v) end
    return table.concat(list, " ")
  end
]]

-- The three passes by products of shifted images, tap by tap, in float64.
local REFERENCE = [[
  local function reference(case)
    local x, weight, bias, g, opt = data(case, "float64", "contiguous")
    local n, c, k, h, w, kh, kw = unpack(case)
    local s, p, d, groups = pair(opt.stride), pair(opt.padding), pair(opt.dilation), opt.groups
    local oh, ow = g.shape[3], g.shape[4]
    local wide = lm.zeros({n, c, h + 2 * p[1] + s[1], w + 2 * p[2] + s[2]}, {dtype = "float64"})
    wide:narrow(3, p[1] + 1, h):narrow(4, p[2] + 1, w):copy_(x)
    local dx, dw = lm.zeros_like(wide), lm.zeros_like(weight)
    local y = lm.zeros_like(g)
    local function seen(t, i, j) -- the pixels under a tap, for each place
      return t:narrow(3, (i - 1) * d[1] + 1, (oh - 1) * s[1] + 1):narrow(4, (j - 1) * d[2] + 1, (ow - 1) * s[2] + 1)
        [{{}, {}, {1, -1, s[1]}, {1, -1, s[2]}}]
    end
    local cg, kg = c / groups, k / groups
    for q = 0, groups - 1 do
      local gq = g:narrow(2, q * kg + 1, kg):permute(2, 1, 3, 4):reshape(kg, -1)
      for i = 1, kh do
        for j = 1, kw do
          local wq = weight:narrow(1, q * kg + 1, kg):select(4, j):select(3, i)
          local xq = seen(wide, i, j):narrow(2, q * cg + 1, cg):permute(2, 1, 3, 4):reshape(cg, -1)
          y:narrow(2, q * kg + 1, kg):add_(wq:mm(xq):view(kg, n, oh, ow):permute(2, 1, 3, 4))
          seen(dx, i, j):narrow(2, q * cg + 1, cg):add_(wq:t():mm(gq):view(cg, n, oh, ow):permute(2, 1, 3, 4))
          dw:narrow(1, q * kg + 1, kg):select(4, j):select(3, i):copy_(gq:mm(xq:t()))
        end
      end
    end
    return {y + bias:view(1, -1, 1, 1), y, dx:narrow(3, p[1] + 1, h):narrow(4, p[2] + 1, w), dw}
  end
]]

describe("convolutions", function()
  for _, level in ipairs(LEVELS) do
    it("are sums of products, at level " .. level, function()
      local text = run(CASES .. REFERENCE .. [[
        for _, case in ipairs(cases) do
          local expected = reference(case)
          lm.full({300000}, 0 / 0) -- fills memory with NaN, which must not matter
          for dtype, bound in pairs {float32 = 2e-6, float64 = 4e-15} do
            for _, format in ipairs {"channels_last", dtype == "float32" and "contiguous"} do
              for i, t in ipairs(passes(case, dtype, format)) do
                local off = (t:double() - expected[i]):abs():max() / expected[i]:abs():max()
                if not (off:item() < bound) then print(name(case), dtype, format, "result " .. i, off:item()) end
              end
            end
          end
        end
      ]], level, "direct")
      assert.equal("", text)
    end)

    it("have the same bits on any number of threads #unsanitized, at level " .. level, function()
      local text = run(CASES .. [[
        cases[#cases + 1] = {16, 24, 40, 24, 24, 3, 3, 2, 1, 1, 1}
        cases[#cases + 1] = {16, 64, 64, 24, 24, 3, 3, 1, 1, 1, 64}
        cases[#cases + 1] = {16, 64, 64, 24, 24, 3, 3, 1, 1, 1, 16}
        cases[#cases + 1] = {16, 48, 64, 24, 24, 1, 1, 1, 0, 1, 1}
        local function on(threads, case, dtype)
          lm.set_num_threads(threads)
          return passes(case, dtype, "channels_last")
        end
        for _, case in ipairs(cases) do
          for _, dtype in ipairs {"float32", "float64", "bfloat16"} do
            local one = on(1, case, dtype)
            for threads = 2, 5, 3 do
              for i, t in ipairs(on(threads, case, dtype)) do
                if not t:equal(one[i]) then print(name(case), dtype, "result " .. i, "threads", threads) end
              end
            end
          end
        end
      ]], level)
      assert.equal("", text)
    end)
  end

  it("have sound gradients of bfloat16 weights whose taps are apart", function()
    local text = run([[
      for _, padding in ipairs {0, 1, 2, 3} do
        for _, dilation in ipairs {2, 3} do
          lm.manual_seed(1)
          local opt = {padding = padding, dilation = dilation}
          local x, w = lm.randn(2, 20, 33, 33):bfloat16(), lm.randn(40, 20, 3, 3):bfloat16()
          local g = lm.randn(lm.conv2d(x, w, nil, opt).shape):bfloat16()
          lm.full({300000}, 0 / 0)
          local exact = lm.conv2d_weight(g:double(), x:double(), w.shape, opt)
          local off = (lm.conv2d_weight(g, x, w.shape, opt):double() - exact):abs():max() / exact:abs():max()
          if not (off:item() < 0.01) then print(padding, dilation, off:item()) end
        end
      end
    ]], 2)
    assert.equal("", text)
  end)

  it("have sound gradients of bfloat16 weights, cut by images and by channels", function()
    local text = run([[
      -- n, c, k, h, kernel, stride: the first is cut by images, the others by channels, of which 100 are no multiple
      local cases = {{16, 8, 16, 30, 3, 1}, {4, 64, 128, 6, 3, 1}, {4, 48, 100, 7, 3, 2}, {2, 96, 320, 5, 1, 1}}
      for _, case in ipairs(cases) do
        local n, c, k, h, kernel, stride = unpack(case)
        local opt = {padding = kernel == 3 and 1 or 0, stride = stride}
        local x, shape = lm.randn(n, c, h, h):bfloat16(), {k, c, kernel, kernel}
        local g = lm.randn(lm.conv2d(x, lm.zeros(shape):bfloat16(), nil, opt).shape):bfloat16()
        lm.full({300000}, 0 / 0)
        local exact = lm.conv2d_weight(g:double(), x:double(), shape, opt)
        local off = (lm.conv2d_weight(g, x, shape, opt):double() - exact):abs():max() / exact:abs():max()
        if not (off:item() < 0.005) then print(n, c, k, off:item()) end
      end
    ]], 2)
    assert.equal("", text)
  end)

  it("are computed by what suits them", function()
    local _, counts, log = run([[
      local function all(c, k, size, opt)
        local conv = lm.nn.Conv2d(c, k, size, opt)
        conv.bias = nil
        conv(lm.randn(2, c, 14, 14):requires_grad_()):sum():backward()
      end
      all(64, 64, 3, {padding = 1, bias = false})
      all(64, 64, 3, {padding = 1, stride = 2, bias = false})
      all(64, 64, 1, {bias = false})
      all(64, 64, 3, {padding = 1, groups = 64, bias = false})
      all(64, 64, 3, {padding = 1, groups = 2, bias = false})
      all(64, 64, 3, {padding = 1, groups = 16, bias = false})
      all(64, 64, 3, {padding = 1, groups = 4, bias = false})
    ]], 2)
    assert.equal(3, counts.Winograd)
    local lacking = needs.onednn()
    assert.equal(3 + 3 + (lacking and 3 or 0), counts.direct) -- with a stride, two groups
    assert.equal(3, counts["matrix product"])
    assert.equal(3 + 3, counts.depthwise) -- four channels a group
    assert.equal(not lacking, log:find "oneDNN" ~= nil)
    _, counts = run([[
      for _, n in ipairs {15, 16} do
        local g = lm.randn(n, 40, 10, 10)
        for _, c in ipairs {3, 64} do lm.conv2d_input(g, lm.randn(40, c, 5, 5), {n, c, 14, 14}) end
      end
    ]], 2)
    assert.equal(1, counts.scattered) -- used for many images whose channels fill no vector
    assert.equal(3, counts.direct)
  end)

  it("do without oneDNN where data may not become code", function()
    local script = [[
      local ffi, refused = require "ffi", REFUSED
      ffi.cdef "int prctl(int, ...);"
      local PR_SET_MDWE = 65
      if refused and ffi.C.prctl(PR_SET_MDWE, ffi.new("long", 1), 0L, 0L, 0L) ~= 0 then return print "none" end
      for _, dtype in ipairs {"float32", "bfloat16", "float16"} do
        for _, groups in ipairs {1, 2} do
          lm.manual_seed(1)
          local x = lm.randn(2, 4, 9, 9):to(dtype):requires_grad_()
          local y = lm.nn.Conv2d(4, 6, 3, {groups = groups}):to(dtype)(x)
          y:float():square():sum():backward()
          print(("%.3f %.1f"):format(y:float():abs():sum():item() / 100, x.grad:float():abs():sum():item() / 100))
        end
      end
    ]]
    script = script:gsub("0L", "ffi.new('long')")
    local mode = "auto LUA_INIT='jit.off()'" -- LuaJIT writes code, too
    local refused, _, log = run((script:gsub("REFUSED", "true")), 2, mode)
    if refused == "none\n" then return pending "this kernel has no PR_SET_MDWE" end
    assert.is_falsy(log:find "oneDNN")
    local allowed = run((script:gsub("REFUSED", "false")), 2, mode)
    local expected = {}
    for number in allowed:gmatch "%S+" do expected[#expected + 1] = tonumber(number) end
    assert.equal(12, #expected)
    for number in refused:gmatch "%S+" do
      local want = table.remove(expected, 1)
      assert.near(want, tonumber(number), 0.01 * want)
    end
  end)
end)
