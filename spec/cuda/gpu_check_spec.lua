-- scripts/dev/gpu_check over the stand-in for CUDA: that its checks themselves run, each kind of them once.
local ffi = require "ffi"
local core = require "luminary.core"
local temp = require "spec.support.temp"
if core.device_count("cuda") == 0 then return end
ffi.cdef "long lm_fake_call_count(const char *name);"
if not pcall(function() return ffi.C.lm_fake_call_count end) then return end

describe("gpu_check #unsanitized", function() -- gpu_check runs specs, which sanitizers see by themselves
  local folder
  setup(function() folder = temp.folder() end)
  teardown(function() temp.remove(folder) end)

  -- Returns whether gpu_check succeeded, what it printed, and what its first stage wrote. Checks get the time that they
  -- take here beside other specs.
  local function run(arguments, environment)
    if not arguments:find("--seconds", 1, true) then arguments = arguments .. " --seconds 1500" end
    local ok, text = temp.run(folder, ("%s luajit scripts/dev/gpu_check %s --out %s"):format(environment or "",
      arguments, folder))
    return ok, text, temp.read(("%s/gpu_check_%s.txt"):format(folder, arguments:sub(1, 1)))
  end

  local long = os.getenv "LM_TEST_LONG" == "1"
  for _, case in ipairs {
    { "1", { "facts", "smoke", "smoke, asynchronous", "ceilings", "devices", "doctor" }, 5 },
    { "2 --only \"optimizers' steps\"", { "optimizers' steps" } },
    { "2 --only unscaling", { "unscaling of gradients" } },
    { "2 --only transforms", { "transforms and linear algebra" } },
    { "2 --only 'the same bits'", { "the same bits twice", "the same bits, graphed" }, long = true },
    { "3 --only plans", { "plans for attention" }, long = true },
    { "3 --only dropout", { "dropout in attention" }, long = true },
    { "3 --only 'recurrent layers'", { "recurrent layers" } },
    { "3 --only first", { "first calls" } },
    { "4", { "ceilings", "network gpt2_bf16", "network lenet", "decoding", "each op, 64 MiB of float32" }, 3 },
    { "5 --only networks", { "networks" }, 1 },
    { "5 --only products", { "products" } },
    { "6", { "kernels, without ncu" }, 1 },
    { "8 --only captures", { "graphs and captures, round 1" } },
    { "8 --only 'between processes'", { "tensors between processes" } },
    { "8 --only alignment", { "alignment" }, long = true },
    { "9", { "NCCL of one rank", "what a call of NCCL costs its thread" }, 3 },
  } do
    it("passes: " .. case[1], function()
      if case.long and not long then return pending "scripts/test --long runs it" end
      local ok, text, report = run(case[1])
      assert(ok, report)
      assert.matches(("%%d+ passed, 0 failed, 0 partial, %d left out\n$"):format(case[3] or 0), text)
      for _, name in ipairs(case[2]) do
        local line = ("ok        %s %s, "):format(case[1]:sub(1, 1), name)
        assert.matches(line, text, 1, true)
        assert.matches("==== " .. line, report, 1, true)
      end
    end)
  end

  it("shows what was measured, and tells of no search for plans after the first step", function()
    local ok, text, report = run "4 --only 'network resnet50'"
    assert(ok, report)
    assert.matches("resnet50_bf16: first step [%d.]+ ms with %d+ searches for plans, 0 in steps 2 to 5", text)
    assert.matches("resnet50_bf16 +eager .* images/s.*\n +resnet50_bf16 +graphed .* images/s", text)
    ok, text, report = run "3 --only first"
    assert(ok, report)
    assert.matches("convolution .* first call +[%d.]+ ms, +[1-9]%d* searches; second", text)
    for attention in text:gmatch "attention of [^\n]*" do
      assert.matches("[1-9]%d* searches; .*third +[%d.]+ ms, +0 searches", attention)
    end
  end)

  it("says what only a card can answer, and what it does not know", function()
    local ok, text = run "7"
    assert(ok, text)
    assert.matches("left out  7 synccheck, each op: only a card can answer\n", text, 1, true)
    assert.matches("\n0 passed, 0 failed, 0 partial, 9 left out\n$", text)
    local code
    ok, text, code = temp.run(folder, "luajit scripts/dev/gpu_check 4 --only racecheck,nonsense --out " .. folder)
    assert(not ok and code == 1, text)
    assert.matches("no check of these stages has 'racecheck,nonsense' in its name", text, 1, true)
    ok, text, code = temp.run(folder, "luajit scripts/dev/gpu_check 0")
    assert(not ok and code == 2, text)
    assert.matches("gpu_check: unrecognized argument '0'", text, 1, true)
  end)

  it("counts a check that fails", function()
    local ok, text = run("1 --only asynchronous", "LM_FAKE_CUDA_FAIL=cudaStreamSynchronize:1:700")
    assert(not ok)
    assert.matches("FAILED    1 smoke, asynchronous, ", text, 1, true)
    assert.matches("0 passed, 1 failed, 0 partial, 0 left out\n$", text)
  end)

  it("calls a check partial that ran out of time, unless what it had found is wrong", function()
    local ok, text, report = run "2 --only 'op table' --seconds 1" -- the op table takes minutes
    assert(ok, report)
    assert.matches("partial   2 op table, %d+ s: it ran into its limit\n", text)
    assert.matches("0 passed, 0 failed, 1 partial, 0 left out\n$", text)
    ok, text, report = run("2 --only 'op table' --seconds 3", "LM_FAKE_CUDA_FAIL=cudaLaunchKernel:5:700")
    assert(not ok, report)
    assert.matches("FAILED    2 op table, %d+ s", text)
  end)

  it("tries cases of alignment in one process, and after a fault the rest in a process each", function()
    local ok, _, report = run("8 --only alignment", "LM_FAKE_CUDA_FAIL=cudaLaunchKernel:340:700")
    assert(not ok)
    assert.matches("the device is lost; this case again and the rest in processes of their own\n", report, 1, true)
    assert.matches("\n1 cases of alignment failed: [%w ]+, which passes alone\n", report)
    assert.matches("conv2d bfloat16 bias 4 off\nresult ", report, 1, true)
  end)
end)
