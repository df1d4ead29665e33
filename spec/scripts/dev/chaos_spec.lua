-- Short forms of scripts/dev/chaos/ranks, hogwild and mp; LM_TEST_LONG=1 runs all of them. A trial that fails
-- prints its seed.
local lm = require "luminary"
local temp = require "spec.support.temp"
local long = lm.getenv "LM_TEST_LONG" ~= nil
local untimed = require("spec.support.time").judged and "" or "--untimed"

describe("ranks that go wrong at a random moment #full", function()
  local function chaos(trials, options, program)
    local command = "timeout %d luajit scripts/dev/chaos/%s --trials %d %s %s 2>&1"
    local pipe = io.popen(command:format(trials * 60, program or "ranks", trials, untimed, options))
    local text = pipe:read("*a")
    pipe:close()
    assert(text:find(("%d of %d trials held"):format(trials, trials), 1, true), text)
  end

  it("are named by all others, in time, and leave nothing behind #unsanitized", function()
    chaos(long and 200 or 5, "")
  end)

  it("... with their places in the mesh of a sharded network #unsanitized", function()
    chaos(long and 100 or 2, "--layout fully_shard")
  end)

  it("... and of networks whose layers, sequences or blocks are divided #unsanitized", function()
    for _, layout in ipairs { "tensor", "context", "pipeline", "mixed" } do
      chaos(long and 100 or 1, "--layout " .. layout)
    end
  end)

  it("... and so does who has a queue, lock, pool or pipe in common with one that is killed #unsanitized", function()
    local trials = long and 200 or 4
    local command = "timeout %d luajit scripts/dev/chaos/mp --trials %d 2>&1"
    local pipe = io.popen(command:format(trials * 60, trials))
    local text = pipe:read("*a")
    pipe:close()
    assert(text:find(("%d of %d trials held"):format(trials, trials), 1, true), text)
  end)

  if lm.dist.is_mpi_available() and os.execute "mpirun --version >/dev/null 2>&1" == 0 then
    it("... under mpirun as well #unsanitized", function() chaos(long and 100 or 2, "--backend mpi") end)
  end

  local core = assert(package.searchpath("luminary.core", package.cpath))
  if lm.dist.is_nccl_available() and temp.exists((core:gsub("core%.so$", "fake_cuda.so"))) then
    it("... over the stand-in for NCCL as well #unsanitized", function()
      chaos(long and 100 or 2, "--backend nccl")
      for _, layout in ipairs(long and { "fully_shard", "tensor" } or {}) do
        chaos(40, "--backend nccl --layout " .. layout)
      end
    end)
  end

  it("... and those of a Hogwild run, or go on #unsanitized", function() chaos(long and 100 or 2, "", "hogwild") end)
end)
