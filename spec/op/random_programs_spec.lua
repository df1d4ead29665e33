-- Random programs of ops in float16, bfloat16 and float32 (scripts/dev/random_programs.lua, which draws more of them).
local lm = require "luminary"
local programs = require "scripts.dev.random_programs"

describe("random programs", function()
  local threads = lm.get_num_threads()
  after_each(function() lm.set_num_threads(threads) end)

  it("agree with float64, and their bits depend on neither threads nor recording", function()
    for seed = 1, os.getenv "LM_TEST_LONG" == "1" and 5000 or 400 do
      local wrong = programs.wrong(seed)
      if wrong then error(wrong, 0) end
    end
  end)
end)
