-- Tests for which cards a build compiles kernels (src/backend/cuda/architectures.cmake), as nvidia-smi names them.
local temp = require "spec.support.temp"
if os.getenv "LM_SPEC_DEVICE" then return end -- another device changes nothing here

describe("architectures of a build #unsanitized", function() -- nothing of ours runs
  local folder = temp.during(setup, teardown)

  local function program(name, text)
    temp.write(folder .. "/" .. name, "#!/bin/sh\n" .. text .. "\n")
    temp.execute(("chmod +x %s/%s"):format(folder, name))
  end

  local function chosen(cards, known)
    program("nvidia-smi", cards)
    program("nvcc", known or "printf 'compute_75\\ncompute_90\\ncompute_103\\n'")
    temp.write(folder .. "/script.cmake", [[
      include(src/backend/cuda/architectures.cmake)
      lm_architectures_here(here)
      message(STATUS "chosen: '${here}'")]])
    local ok, text = temp.run(folder, ("PATH=%s:$PATH cmake -DCMAKE_CUDA_COMPILER=%s/nvcc -P %s/script.cmake"):format(
      folder, folder, folder))
    assert(ok, text)
    return text:match "chosen: '([^']*)'", text
  end

  it("are those of the cards that the compiler knows, each once", function()
    assert.equal("90-real", (chosen "printf '9.0\\n9.0\\n'"))
    assert.equal("75-real;103-real", (chosen "printf '7.5\\n10.3\\n7.5\\n'"))
    local archs, text = chosen "printf '6.1\\n9.0\\n'"
    assert.equal("90-real", archs)
    assert.matches("left out: code for compute capability 6.1, which", text, 1, true)
    assert.equal("", (chosen "printf '6.1\\n12.9\\n'"))
  end)

  it("are none where nvidia-smi fails or knows none, and all where the compiler does not tell", function()
    assert.equal("", (chosen "echo 9.0; exit 9"))
    assert.equal("", (chosen "echo '[N/A]'"))
    assert.equal("61-real;90-real", (chosen("printf '6.1\\n9.0\\n'", "exit 1")))
  end)
end)
