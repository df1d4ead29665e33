-- Groups of steps as one kernel (src/plan/group.c), which is written and compiled at run time: over the fake runtime as
-- host code; the same texts by NVRTC, where there is one.
local temp = require "spec.support.temp"
local scripts = require "spec.support.cuda_scripts"

local folder
local function texts() return folder .. "/texts" end

local preamble = [[
local bounds = {float16 = 2e-3, bfloat16 = 1.6e-2, float32 = 2e-6, float64 = 1e-14}
-- Returns results and gradients of f(unpack(args)).
local function values(f, args)
  for _, a in ipairs(args) do a.grad = nil end
  lm.manual_seed(7)
  local list = {f(unpack(args))}
  for i, t in ipairs(list) do list[i] = t:detach():clone() end
  for _, a in ipairs(args) do list[#list + 1] = a.grad end
  return list
end
local function bound(t) return bounds[tostring(t.dtype)] or 0 end
-- Compares a compiled function with the function; returns the launches of groups and of other kernels.
local function compare(name, f, args, widest)
  local want = values(f, args)
  local step, state = lm.compile(f, {warmup = 1000})
  local groups, kernels
  for call = 1, 3 do
    groups, kernels = calls "cuLaunchKernel", calls "cudaLaunchKernel"
    local got = values(step, args)
    groups, kernels = calls "cuLaunchKernel" - groups, calls "cudaLaunchKernel" - kernels
    for i, t in ipairs(want) do
      assert(got[i].dtype == t.dtype, name)
      local scale = math.max(1, t:double():abs():max():item())
      local off = (got[i]:double() - t:double()):abs():max():item() / scale
      if not (off <= math.max(bound(t), widest or 0)) then
        error(("%s: call %d, result %d is off by %g"):format(name, call, i, off))
      end
    end
  end
  return groups, kernels, state
end
]]

describe("groups of steps on CUDA #fake", function()
  setup(function()
    folder = temp.folder()
    os.execute("mkdir -p " .. texts())
  end)
  teardown(function() temp.remove(folder) end)

  local function script(name, text, environment)
    it(name, function()
      scripts.tests(function(_, f) f() end, pending, preamble)(name, text, ("LM_KERNEL_CACHE=%s/cache "):format(folder)
        .. "LM_FAKE_NVRTC_TEXTS=" .. texts() .. " " .. (environment or ""))
    end)
  end

  -- Each case in one dtype at least; in all with LM_TEST_LONG, as the host's compiler takes most of a second a kernel.
  for first, dtype in pairs {[0] = "bfloat16", "float32", "float16", "float64"} do
    local every = 4
    if os.getenv "LM_TEST_LONG" then every, first = 1, 0 end
    script("have the values of the steps one by one, in " .. dtype, ([[
      for i, case in ipairs(require "spec.support.cuda.group_cases" "%s") do
        if i %% %d == %d then
          lm.manual_seed(1)
          local groups = compare(case.name, case.f, case.make(), bounds["%s"])
          assert(groups > 0, case.name .. ": no group")
        end
      end
    ]]):format(dtype, every, first, dtype))
  end

  script("take integers, masks and mixed dtypes", [[
    local x, y = lm.arange(0, 64, {device = "cuda"}), lm.arange(1, 65, {device = "cuda"})
    assert(compare("integers", function(a, b) return (a * 3 + b):gt(70), a * b - 4 end, {x, y}) == 1)
    local h, r = lm.randn({6, 32}, {device = "cuda"}):to "bfloat16", lm.randn({6, 32}, {device = "cuda"})
    assert(compare("mixed", function(a, b) return ((a + b):to "bfloat16" * 2):float() + b end, {h, r}, 1.6e-2) == 1)
    local masks = function(a, b) return lm.where(a:gt(b), a * 2, b + 1) * 3, a:isnan():logical_not() end
    assert(compare("masks", masks, {h, r}, 1.6e-2) == 1)
  ]])

  script("store what is needed alone, and take in steps that are apart", [[
    local x, w = lm.randn({64, 64}, {device = "cuda"}), lm.randn({64, 64}, {device = "cuda"})
    local f = function(a, b)
      local h = a * 2
      local product = a:matmul(b)
      local k = (h + 1):tanh() -- joins h, though a product is between them
      return (product + k):exp()
    end
    local groups, kernels = compare("apart", f, {x, w})
    assert(groups == 1 and kernels == 0, groups .. " " .. kernels)
  ]])

  script("convert many weights by one kernel", [[
    local nets = {}
    for i = 1, 4 do nets[i] = lm.nn.Linear(8 * i, 8 * i + 8):cuda() end
    local x = lm.randn({3, 8}, {device = "cuda"})
    local parameters = {}
    for _, net in ipairs(nets) do for _, p in ipairs(net:parameters()) do parameters[#parameters + 1] = p end end
    local function f(input)
      lm.autocast("cuda", function()
        for _, net in ipairs(nets) do input = net(input) end
      end, {dtype = "bfloat16"})
      input:float():sum():backward()
      return input:detach()
    end
    local function run(step)
      for _, p in ipairs(parameters) do p.grad = nil end
      local list = {step(x):clone()}
      for _, p in ipairs(parameters) do list[#list + 1] = p.grad end
      return list
    end
    local want, step = run(f), lm.compile(f, {warmup = 1000})
    local before
    for _ = 1, 3 do
      before = calls "cudaLaunchKernel" + calls "cuLaunchKernel"
      local got = run(step)
      before = calls "cudaLaunchKernel" + calls "cuLaunchKernel" - before
      for i, t in ipairs(want) do
        local off = (t - got[i]):double():abs():max():item()
        assert(off <= 2e-2 * math.max(1, t:double():abs():max():item()), i .. ": " .. off)
      end
    end
    assert(before <= 14, before)
  ]])
  script("convert weights of any dense layout by one kernel, and let groups read halves", [[
    for _, format in ipairs {"channels_last", "contiguous"} do
      local list = {}
      for i = 1, 4 do list[i] = lm.randn({8, i, 3, 3}, {device = "cuda"}):contiguous {memory_format = format} end
      local function f(...)
        local low = {...}
        for i, t in ipairs(low) do low[i] = t:to "float16" end
        return unpack(low)
      end
      local groups, kernels = compare(format, f, list)
      assert(groups == 0 and kernels == 1, groups .. " " .. kernels)
    end
    local x, w = lm.randn({6, 40}, {device = "cuda"}):half(), lm.randn({40, 40}, {device = "cuda"}):half()
    local groups, kernels = compare("read", function(a, b) return (a:mm(b):float() * 2):softmax(-1) end, {x, w})
    assert(groups == 1 and kernels == 0, groups .. " " .. kernels)
  ]])

  script("take in casts that are added up", [[
    local x, y = lm.randn({6, 40}, {device = "cuda"}):half(), lm.randn({40, 40}, {device = "cuda"}):half()
    local function f(a, b)
      local p, q = a:mm(b):float(), a:mm(b:t()):float()
      p:add_(q):mul_(2)
      return p, a:mm(b):float() - a:tanh():mm(b):float()
    end
    local groups, kernels = compare("added", f, {x, y}, 4e-3)
    assert(groups == 2 and kernels == 1, groups .. " " .. kernels) -- tanh is alone
  ]])

  script("add up the sums of rows of several groups by one kernel, when one of them is read", [[
    local x, r = lm.randn({9, 64}, {device = "cuda"}):half(), lm.randn({9, 64}, {device = "cuda"}):half()
    local args = {lm.randn({9, 64}, {device = "cuda"}):half(), lm.randn({64, 64}, {device = "cuda"}):half()}
    for i = 3, 6 do args[i] = lm.randn({64}, {device = "cuda"}) end
    for _, t in ipairs(args) do t:requires_grad_() end
    local function norms(a, b, w1, b1, w2, b2)
      local h = lm.nn.functional.layer_norm(a:float() * 2, {64}, w1, b1):half():mm(b)
      lm.nn.functional.layer_norm(h:float() * 2, {64}, w2, b2):half():backward(r)
      return h
    end
    local groups, kernels = compare("norms", norms, args, 1e-2)
    assert(groups == 4 and kernels == 1, groups .. " " .. kernels)
    local function read(a, b)
      local h = (a * b):abs()
      local sums = h:sum(1)
      return h, sums:view(1, 64):mm(b:t()), (h + 1):sum(1)
    end
    groups, kernels = compare("read", read, {x, r}, 1e-2)
    assert(groups == 1 and kernels == 1, groups .. " " .. kernels)
  ]])

  script("keep compiled kernels in files, of which broken ones do no harm", [[
    local x = lm.randn({4, 32}, {device = "cuda"})
    local f = function(a) return ((a * 5):tanh() + 1):exp() end
    compare("first", f, {x})
    local compiled = calls "nvrtcCompileProgram"
    assert(compiled > 0)
    local list = io.popen("ls $LM_KERNEL_CACHE")
    for name in list:lines() do
      local path = os.getenv "LM_KERNEL_CACHE" .. "/" .. name
      local file = io.open(path, "rb")
      local bytes = file:read "*a"
      file:close()
      file = io.open(path, "wb")
      file:write(bytes:sub(1, #bytes / 2), ("x"):rep(#bytes / 2))
      file:close()
    end
  ]])
  script("compile what a file does not have, and read what it has", [[
    local x = lm.randn({4, 32}, {device = "cuda"})
    local f = function(a) return ((a * 5):tanh() + 1):exp() end
    compare("broken file", f, {x})
    assert(calls "nvrtcCompileProgram" == 1)
  ]])
  script("read it in a later process", [[
    local x = lm.randn({4, 32}, {device = "cuda"})
    local f = function(a) return ((a * 5):tanh() + 1):exp() end
    assert(compare("file", f, {x}) == 1)
    assert(calls "nvrtcCompileProgram" == 0)
  ]])

  script("run step by step without NVRTC, and say so", [[
    local x = lm.randn({4, 32}, {device = "cuda"})
    local groups, _, state = compare("without", function(a) return ((a * 7):tanh() + 1):exp() end, {x})
    assert(groups == 0)
    assert(state.reason:find("nvrtc", 1, true), state.reason)
  ]], "LM_CUDA_WITHOUT=nvrtc")

  script("run step by step where the driver does not load what NVRTC made, and say so", [[
    local x = lm.randn({4, 32}, {device = "cuda"})
    fake.lm_fake_fail("cuModuleLoadData", 1, 218)
    local groups, _, state = compare("refused", function(a) return ((a * 11):tanh() + 1):sqrt() end, {x}) -- in no file
    assert(groups == 0)
    assert(state.reason:find("cuModuleLoadData: error 218", 1, true), state.reason)
  ]])

  script("keep the bits of eager ops where they shall", [[
    local x = lm.randn({4, 32}, {device = "cuda"})
    local f = function(a) return ((a * 9):tanh() + 1):exp() end
    local step = lm.compile(f, {warmup = 1000, exact = true})
    for _ = 1, 3 do assert(lm.equal(step(x), f(x))) end
    assert(calls "cuLaunchKernel" == 0)
  ]])

  it("are texts that NVRTC compiles for sm_80, sm_90 and as PTX, without local memory #unsanitized", function()
    local library
    for _, path in ipairs {"/usr/local/cuda/lib64/libnvrtc.so", "/usr/lib/x86_64-linux-gnu/libnvrtc.so"} do
      library = library or temp.exists(path) and path
    end
    if not library then return pending "there is no NVRTC" end
    local list = io.popen("ls " .. texts())
    local names = list:read "*a"
    list:close()
    if names == "" then return pending "no texts were written" end
    local path = temp.write(folder .. "/compile.lua", [[
      local ffi = require "ffi"
      ffi.cdef "int nvrtcCreateProgram(void **, const char *, const char *, int, const char **, const char **);"
      ffi.cdef "int nvrtcCompileProgram(void *, int, const char **); int nvrtcDestroyProgram(void **);"
      ffi.cdef "int nvrtcGetProgramLogSize(void *, size_t *); int nvrtcGetProgramLog(void *, char *);"
      local nvrtc = ffi.load(arg[1])
      for i = 2, #arg do
        local text = io.open(arg[i]):read "*a"
        for _, target in ipairs {"sm_80", "sm_90", "compute_80"} do
          local program, size = ffi.new "void *[1]", ffi.new "size_t[1]"
          local options = ffi.new("const char *[5]", {"-arch=" .. target, "-std=c++17", "-default-device", "-w",
            "--ptxas-options=-v"})
          assert(nvrtc.nvrtcCreateProgram(program, text, "group.cu", 0, nil, nil) == 0)
          local code = nvrtc.nvrtcCompileProgram(program[0], 5, options)
          nvrtc.nvrtcGetProgramLogSize(program[0], size)
          local log = ffi.new("char[?]", size[0] + 1)
          nvrtc.nvrtcGetProgramLog(program[0], log)
          log = ffi.string(log)
          assert(code == 0, arg[i] .. ": " .. log)
          for frame, stores in log:gmatch "(%d+) bytes stack frame, (%d+) bytes spill stores" do
            local most = text:find("(lm_stored_F64 *)", 1, true) and 16 or 0 -- a call of double's functions saves some
            assert(tonumber(frame) <= most and tonumber(stores) <= most, arg[i] .. " for " .. target .. ": " .. log)
          end
          nvrtc.nvrtcDestroyProgram(program)
        end
      end
    ]])
    local paths = names:gsub("[^\n]+", function(name) return texts() .. "/" .. name end):gsub("\n", " ")
    local ok, output = temp.run(folder, ("env -u LD_PRELOAD luajit %s %s %s"):format(path, library, paths))
    assert.is_true(ok, output)
  end)
end)
