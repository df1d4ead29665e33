-- scripts/dev/gpu_check over the stand-in for CUDA: that its checks themselves run, each kind of them once.
local ffi = require "ffi"
local core = require "luminary.core"
local temp = require "spec.support.temp"
if core.device_count("cuda") == 0 then return end
ffi.cdef "long lm_fake_call_count(const char *name);"
if not pcall(function() return ffi.C.lm_fake_call_count end) then return end

describe("gpu_check #unsanitized #full", function() -- gpu_check runs specs, which sanitizers see by themselves
  local folder = temp.during(setup, teardown)

  -- Returns whether gpu_check succeeded, what it printed, and what its first stage wrote. Checks get the time that they
  -- take here beside other specs.
  local function run(arguments, environment)
    if not arguments:find("--seconds", 1, true) then arguments = arguments .. " --seconds 1500" end
    local ok, text = temp.run(folder, ("%s luajit scripts/dev/gpu_check %s --out %s"):format(environment or "",
      arguments, folder))
    return ok, text, temp.read(("%s/gpu_check_%s.txt"):format(folder, arguments:match "^%d+"))
  end

  local long = os.getenv "LM_TEST_LONG" == "1"
  for _, case in ipairs {
    { "1", { "facts", "smoke", "smoke, asynchronous", "ceilings", "devices", "doctor" }, 5 },
    { "2 --only \"optimizers' steps\"", { "optimizers' steps" } },
    { "2 --only unscaling", { "unscaling of gradients" } },
    { "2 --only groups", { "groups of ops" } },
    { "2 --only products", { "products that compute more" } },
    { "2 --only compiled", { "compiled steps" }, long = true },
    { "2 --only transforms", { "transforms and linear algebra" }, long = true },
    { "2 --only 'the same bits'", { "the same bits twice", "the same bits, graphed" }, long = true },
    { "3 --only plans", { "plans for attention" }, long = true },
    { "3 --only dropout", { "dropout in attention" }, long = true },
    { "3 --only 'recurrent layers'", { "recurrent layers" }, long = true },
    { "3 --only first", { "first calls" }, long = true },
    { "4", { "ceilings", "network gpt2_bf16", "network lenet", "decoding", "each op, 64 MiB of float32" }, 3,
      long = true },
    { "5 --only networks", { "networks" }, 1, long = true },
    { "5 --only products", { "products" }, long = true },
    { "6", { "kernels, without ncu" }, 1 },
    { "8 --only captures", { "graphs and captures, round 1" } },
    { "8 --only 'between processes'", { "tensors between processes" } },
    { "8 --only alignment", { "alignment" }, long = true },
    { "9", { "NCCL of one rank", "what a call of NCCL costs its thread" }, 3 },
    { "10", { "gpt2_bf16", "resnet18", "token_bf16", "resnet50_bf16", "lstm_bf16", "lenet", "gpt2_bf16 by events" },
      long = true },
    { "10 --only token", { "token_bf16" } },
  } do
    it("passes: " .. case[1], function()
      if case.long and not long then return pending "scripts/test --long runs it" end
      local ok, text, report = run(case[1])
      assert(ok, report)
      assert.matches(("%%d+ passed, 0 failed, 0 partial, %d left out\n$"):format(case[3] or 0), text)
      for _, name in ipairs(case[2]) do
        local line = ("ok        %s %s, "):format(case[1]:match "^%d+", name)
        assert.matches(line, text, 1, true)
        assert.matches("==== " .. line, report, 1, true)
      end
    end)
  end

  it("shows what was measured, and tells of no search for plans after the first step #long", function()
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

  it("shows each kernel of a step, eager and captured, beside its bound #long", function()
    if not io.open "/usr/local/cuda/include/cupti.h" then return pending "CUPTI's headers are not here" end
    local ok, text, report = run "10 --only lenet"
    assert(ok, report)
    assert.matches("\n +lenet, 1 images a step\n +eager +[%d.]+ us a step, +[%d.]+ us in kernels", text)
    local rows, slowest, shares = {}, math.huge, 0
    for calls, eager, captured, bound, share, name in report:gmatch
      "\n +(%d+) +([%d.-]+) +([%d.-]+) +([%d.-]+) +[%d.-]+ +([%d.]+) %%  ([^\n]+)" do
      assert(tonumber(captured) <= slowest, name) -- slowest first
      slowest, shares = tonumber(captured), shares + share
      assert(tonumber(eager) or name:find "lm_row_add<long>" or name == "cudaMemcpy", name) -- a graph's own
      rows[name] = { calls = tonumber(calls), bound = tonumber(bound) }
    end
    assert(math.abs(shares - 100) < 2, shares)
    -- As count_step counts them: three of each activation, the optimizer once, ten products.
    assert.equal(3, rows["lm_pointwise_flat<lm_row_relu<float>, float, float, float>"].calls)
    assert.equal(1, rows["lm_optim_kernel<lm_sgd_element, float, 1u>"].calls)
    local products = 0
    for name, row in pairs(rows) do
      if name:find "^product .*GFLOP$" then
        products = products + row.calls
        assert(row.bound, name)
      end
    end
    assert.equal(11, products)
  end)

  it("shows the ops of a step by events where CUPTI is missing", function()
    local ok, text, report = run "10 --only events"
    assert(ok, report)
    assert.matches("1 passed, 0 failed", text)
    assert.matches("gpt2_bf16: without CUPTI; by events instead, op by op, eager\n", report, 1, true)
    assert.matches("\nAdamW", report)
  end)

  it("says that there is no device", function()
    local found, text, code = temp.run(folder, "LD_PRELOAD= luajit scripts/dev/gpu_check 10 --out " .. folder)
    if found or not text:find "no CUDA device" then return pending "a card is here" end
    assert.equal(1, code)
    assert.matches("gpu_check: there is no CUDA device here; run it on a machine with one", text, 1, true)
  end)

  it("says what only a card can answer, and what it does not know", function()
    local ok, text = run "7"
    assert(ok, text)
    assert.matches("left out  7 synccheck, each op: only a card can answer\n", text, 1, true)
    assert.matches("\n0 passed, 0 failed, 0 partial, 13 left out\n$", text)
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
