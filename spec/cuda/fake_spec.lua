-- The fake CUDA runtime that the CUDA specs run on: a program built by nvcc checks it (support/cuda/self_check.cu).
local temp = require "spec.support.temp"

if os.getenv "LM_SPEC_DEVICE" then return end -- another device changes nothing here

describe("the fake CUDA runtime", function()
  local program, library
  local folder = temp.during(setup, teardown)
  setup(function()
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

  local function check(name, settings)
    -- The shell that waits for it says of which signal it died: in the output, not on the terminal.
    local run = "unset LM_FAKE_CUDA_EAGER; LD_PRELOAD=\"$LD_PRELOAD %s\" ASAN_OPTIONS=detect_leaks=0 %s %s %s || exit 1"
    return temp.run(folder, run:format(library, settings or "", program, name))
  end

  for _, name in ipairs { "barriers", "shuffles", "matrices", "lazy", "capture", "faults", "failing" } do
    it("passes its own check of " .. name, function()
      if not program then return pending("it needs nvcc and a build with CUDA") end
      for _, settings in ipairs { "", "LM_FAKE_CUDA_REVERSE=1" } do
        local ok, text = check(name, settings)
        assert(ok, text)
        assert.truthy(text:find("ok\n$"))
      end
    end)
  end

  it("passes its own check of blocks and threads in an order of each launch's own", function()
    if not program then return pending("it needs nvcc and a build with CUDA") end
    for _, name in ipairs { "barriers", "shuffles", "matrices", "lazy" } do
      for seed = 1, 3 do assert(check(name, "LM_FAKE_CUDA_RANDOM=" .. seed)) end
    end
  end)

  it("runs blocks and threads in order, in reverse or in orders that differ, so that a kernel that depends on it shows",
  function()
    if not program then return pending("it needs nvcc and a build with CUDA") end
    local function lasts(settings)
      local ok, text = check("order", settings)
      assert(ok, text)
      local list = {}
      for block, thread in text:gmatch "block (%d+), thread (%d+)" do list[#list + 1] = block .. " " .. thread end
      return list
    end
    assert.same({ "49 39", "49 39", "49 39", "49 39" }, lasts "")
    assert.same({ "0 0", "0 0", "0 0", "0 0" }, lasts "LM_FAKE_CUDA_REVERSE=1")
    local first, second = lasts "LM_FAKE_CUDA_RANDOM=1", lasts "LM_FAKE_CUDA_RANDOM=2"
    assert.same(first, lasts "LM_FAKE_CUDA_RANDOM=1")
    assert.not_same(first, second)
    assert.is_false(first[1] == first[2] and first[2] == first[3])
  end)

  it("refuses blocks that a kernel's launch bounds or registers do not allow", function()
    if not program then return pending("it needs nvcc and a build with CUDA") end
    local table_path = temp.write(folder .. "/registers", "_Z9check_setPffl 255 0 0\n_Z9check_addPfPKf 10 40 0\n"
      .. "_Z13check_boundedPi 10 0 64\n")
    local ok, text = check("limits", "LM_FAKE_CUDA_REGISTERS=" .. table_path)
    assert(ok, text)
    assert.truthy(text:find("check_bounded%(int%*%) has blocks of at most 64 threads"), text)
    assert.truthy(text:find("check_set%(.-%) has blocks of at most 256 threads %(255 registers%)"), text)
  end)

  it("can have no code for the device, and can read pageable memory late", function()
    if not program then return pending("it needs nvcc and a build with CUDA") end
    assert(check("image", "LM_FAKE_CUDA_IMAGE=0"))
    assert(check("pageable", "LM_FAKE_CUDA_PAGEABLE=1"))
  end)

  it("refuses cuDNN's id 0 and unfinished parts, and cuFFT's plans without a work area", function()
    if not program then return pending("it needs nvcc and a build with CUDA") end
    assert(check "libraries")
  end)

  it("finds races between blocks, accesses that are not aligned and casts of floats that do not fit", function()
    if not program then return pending("it needs nvcc and a build with CUDA") end
    if (os.getenv "ASAN_OPTIONS") then return pending("the sanitizers have checks of their own") end
    local ok, text = check "checked"
    assert(ok, text)
    assert.truthy(text:find("check_same_place%(int%*%), block %(1, 0, 0%), thread %(0, 0, 0%): writes 0x%x+, which "
      .. "block 0 of the same launch touched"), text)
    assert.truthy(text:find("check_neighbor%(int%*%), block %(1, 0, 0%), thread %(0, 0, 0%): reads"), text)
    assert.truthy(text:find("self_check%.cu:%d+: 0x%x+ is no multiple of 16 bytes"), text)
    assert.truthy(text:find("self_check%.cu:%d+: a float becomes an integer that does not hold it"), text)
    local flags = assert(io.open "/proc/cpuinfo"):read "*a"
    assert.truthy(text:find("contracted: " .. (flags:find " fma " and 1 or 0)), text)
  end)

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
