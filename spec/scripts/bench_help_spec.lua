-- Every program of scripts/bench explains its options, also where PyTorch is not installed.
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)

local programs, pipe = {"luajit scripts/bench/loader.lua", "luajit scripts/bench/recompute.lua"},
  io.popen "find scripts/bench -maxdepth 1 -type f -perm -u+x | sort"
for path in pipe:lines() do programs[#programs + 1] = path end
pipe:close()

local kinds = {text = true, count = true, flag = true} -- kinds of options

describe("a program of scripts/bench", function()
  it("explains its options by --help #unsanitized", function()
    assert(#programs >= 12, #programs)
    for _, program in ipairs(programs) do
      local ok, text = temp.run(folder, "timeout 60 " .. program .. " --help")
      assert(ok and not text:find "[Tt]raceback", program .. "\n" .. text)
      assert(text:find(program:match "[^/]+$", 1, true), program .. "\n" .. text)
      local source = temp.read(program:match "%S+$")
      for option, kind in source:gmatch '([%l-]+)"?%]? = {"(%l+)"' do
        if kinds[kind] then
          assert(text:find("\n  --" .. option .. " ", 1, true), ("%s: --%s\n%s"):format(program, option, text))
        end
      end
    end
  end)

  it("refuses what it does not know in one line, without a traceback", function()
    for _, case in ipairs {
      {"ops", "--peer PYTHON is required"},
      {"ops --rounds 1.5", "--rounds must be an integer of at least 1, got '1.5'"},
      {"compute --leest", "unrecognized argument '--leest'; did you mean '--least'?"},
      {"compute nonsense", "unknown name 'nonsense'"}, {"compute --peer false add4", "--peer: false is not a Python"},
      {"ops --peer ./nobody softmax", "--peer: ./nobody is not a Python that has torch"},
      {"compute photo_epoch", "photo_epoch requires --images DIR"}, {"convolutions 1_2", "'1_2' is no shape"},
      {"language", "--peer PYTHON is required"}, {"all add4", "--peer PYTHON with --out DIR or --check FILE"},
    } do
      local ok, text = temp.run(folder, "timeout 60 scripts/bench/" .. case[1])
      assert(not ok and text:find(case[2], 1, true) and not text:find "traceback", case[1] .. "\n" .. text)
    end
  end)
end)

describe("a bench beside PyTorch", function()
  local averages = dofile "scripts/bench/averages.lua"

  it("drops times of whole time slices, unless they are what a run takes", function()
    assert.same({0.0011, 0.0012}, averages.undisturbed {0.0011, 0.008003, 0.0012, 0.01199})
    assert.same({}, averages.undisturbed {0.004001, 0.00799})
    assert.same({0.9, 0.904, 0.9037}, averages.undisturbed {0.9, 0.904, 0.9037})
    assert.same({}, averages.undisturbed {})
  end)

  it("says which runs it drops, and what limits each library #unsanitized", function()
    local why = require("spec.support.needs").cpu_level(1)
    if why then return pending(why) end
    -- A peer whose every second answer is of two time slices.
    temp.write(folder .. "/python", [[#!/bin/sh
      [ "$1" != -c ] || exit 0
      while read name; do echo "eager 0.001"; read name; echo "eager 0.008"; done]])
    local run = "chmod +x %s/python; LM_CPU_LEVEL=1 timeout 60 scripts/bench/compute --peer %s/python --rounds 4 "
      .. "--threads 1 --json %s/rows add4"
    local ok, text = temp.run(folder, run:format(folder, folder, folder))
    assert(ok, text)
    for _, name in ipairs {"ATEN_CPU_CAPABILITY=avx2", "ONEDNN_MAX_CPU_ISA=AVX2", "MKL_ENABLE_INSTRUCTIONS=AVX2",
      "OPENBLAS_CORETYPE=Haswell", "torch.compile"} do
      assert(text:find(name, 1, true), text)
    end
    local thrown, all = text:match "add4: (%d+) of PyTorch's (%d+) runs are thrown away: times of multiples of 4 ms"
    assert.equal(tonumber(all), 2 * tonumber(thrown), text)
    local row = require("luminary.core").json_decode(temp.read(folder .. "/rows"))
    assert.same({0.001, tonumber(thrown)}, {row.pytorch, row.thrown})
  end)
end)
