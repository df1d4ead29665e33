-- The fake CUDA runtime that the CUDA specs run on: a program built by nvcc checks it (support/cuda/self_check.cu).
local temp = require "spec.support.temp"

if os.getenv "LM_SPEC_DEVICE" then return end -- the same again

describe("the fake CUDA runtime", function()
  local folder, program, library
  setup(function()
    folder = temp.folder()
    local core = assert(package.searchpath("luminary.core", package.cpath))
    library = core:gsub("core%.so$", "fake_cuda.so")
    local nvcc = (os.getenv("CUDA_HOME") or "/usr/local/cuda") .. "/bin/nvcc"
    if not temp.exists(nvcc) or not temp.exists(library) then return end
    program = folder .. "/self_check"
    -- The tools are no concern of a sanitizer's.
    local build = "unset LD_PRELOAD; %s -std=c++17 -cudart shared -arch=sm_80 -Werror all-warnings " ..
      "-Xcompiler -Wall,-Wextra,-Werror -Ikernels spec/support/cuda/self_check.cu -o %s -ldl"
    local ok, text = temp.run(folder, build:format(nvcc, program))
    assert(ok, text)
  end)
  teardown(function() temp.remove(folder) end)

  local function check(name, settings)
    -- The shell that waits for it says of which signal it died: in the output, not on the terminal.
    local run = "unset LM_FAKE_CUDA_EAGER; LD_PRELOAD=\"$LD_PRELOAD %s\" ASAN_OPTIONS=detect_leaks=0 %s %s %s || exit 1"
    return temp.run(folder, run:format(library, settings or "", program, name))
  end

  for _, name in ipairs { "barriers", "shuffles", "lazy", "capture", "faults", "failing" } do
    it("passes its own check of " .. name, function()
      if not program then return pending("it needs nvcc and a build with CUDA") end
      for _, settings in ipairs { "", "LM_FAKE_CUDA_REVERSE=1" } do
        local ok, text = check(name, settings)
        assert(ok, text)
        assert.truthy(text:find("ok\n$"))
      end
    end)
  end

  it("has as many devices as are visible, each with memory of its own", function()
    if not program then return pending("it needs nvcc and a build with CUDA") end
    local ok, text = check("devices", "LM_FAKE_CUDA_DEVICES=3 CUDA_VISIBLE_DEVICES=2,0")
    assert(ok, text)
  end)

  it("ends a program that touches device memory on the host", function()
    if not program then return pending("it needs nvcc and a build with CUDA") end
    local ok, text = check "touch"
    assert.falsy(ok)
    assert.truthy(text:find("host code touched 0x%x+, memory of device 0"), text)
  end)

  it("says what went wrong, where", function()
    if not program then return pending("it needs nvcc and a build with CUDA") end
    local ok, text = check "faults"
    assert(ok, text)
    assert.truthy(text:find("check_divergent%(int%*%).-40 in __syncthreads %(first: 0%), 24 returned"), text)
    assert.truthy(text:find("check_absent_lane%(int%*%).-whose lane 5 has returned"), text)
    assert.truthy(text:find("check_behind_shared%(%).-behind its 124 bytes"), text)
  end)
end)
