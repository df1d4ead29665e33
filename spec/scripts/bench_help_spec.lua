-- Every program of scripts/bench explains its options, also where PyTorch is not installed.
local temp = require "spec.support.temp"

local folder
setup(function() folder = temp.folder() end)
teardown(function() temp.remove(folder) end)

local programs, pipe = {"luajit scripts/bench/loader.lua", "luajit scripts/bench/recompute.lua"},
  io.popen "find scripts/bench -maxdepth 1 -type f -perm -u+x | sort"
for path in pipe:lines() do programs[#programs + 1] = path end
pipe:close()

local kinds = {text = true, count = true, flag = true} -- of options

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
