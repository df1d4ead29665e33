-- scripts/dev/gpu_check over the stand-in for CUDA: that its checks themselves run, each kind of them once.
local ffi = require "ffi"
local core = require "luminary.core"
local temp = require "spec.support.temp"
if core.device_count("cuda") == 0 then return end
ffi.cdef "long lm_fake_call_count(const char *name);"
if not pcall(function() return ffi.C.lm_fake_call_count end) then return end

describe("gpu_check #unsanitized", function() -- what it runs are specs, which sanitizers see by themselves
  local folder
  setup(function() folder = temp.folder() end)
  teardown(function() temp.remove(folder) end)

  local function run(arguments)
    return temp.run(folder, ("luajit scripts/dev/gpu_check %s --out %s"):format(arguments, folder))
  end

  for _, case in ipairs {
    { "1 --only smoke", { "smoke", "smoke, asynchronous" } },
    { "2 --only \"optimizers' steps\"", { "optimizers' steps" } },
    { "2 --only unscaling", { "unscaling of gradients" } },
    { "2 --only transforms", { "transforms and linear algebra" } },
    { "2 --only recurrent", { "recurrent layers and attention" } },
    { "3 --only 'captures'", { "graphs and captures, round 1" } },
    { "3 --only 'between processes'", { "tensors between processes" } },
    { "3 --only ' x 1 off'", { "linear float32 x 1 off", "conv2d float32 x 1 off", "conv2d bfloat16 x 1 off" } },
    { "6 --only NCCL", { "NCCL of one rank", "what a call of NCCL costs its thread" } },
  } do
    it("passes: " .. case[1], function()
      local ok, text = run(case[1])
      local stage = case[1]:sub(1, 1)
      local report = temp.read(("%s/gpu_check_%s.txt"):format(folder, stage))
      assert(ok, report)
      assert.matches("%d passed, 0 failed, 0 skipped\n$", text)
      for _, name in ipairs(case[2]) do
        assert.matches(("ok %s%s %s, "):format((" "):rep(7), stage, name), text, 1, true)
        assert.matches(("%s %s, "):format(stage, name), report, 1, true)
      end
    end)
  end

  it("says what only a card can answer, and what it does not know", function()
    local ok, text = run "4 5"
    assert(ok, text)
    assert.matches("left out  4 memcheck: only a card can answer\n", text, 1, true)
    assert.matches("\n0 passed, 0 failed, 15 skipped\n$", text)
    local code
    ok, text, code = run "4 --only racecheck,nonsense"
    assert(not ok and code == 1, text)
    assert.matches("no check of these stages has 'racecheck,nonsense' in its name", text, 1, true)
    ok, text = run "7"
    assert(not ok)
    assert.matches("what is '7'?", text, 1, true)
  end)

  it("counts a check that fails", function()
    local ok, text = temp.run(folder, ("LM_FAKE_CUDA_FAIL=cudaStreamSynchronize:1:700 luajit scripts/dev/"
      .. "gpu_check 1 --only asynchronous --out %s"):format(folder))
    assert(not ok)
    assert.matches("FAILED    1 smoke, asynchronous, ", text, 1, true)
    assert.matches("0 passed, 1 failed, 0 skipped\n$", text)
  end)
end)
