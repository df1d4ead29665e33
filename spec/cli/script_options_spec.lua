-- Tests how scripts read their command lines: what the usage text says of the options, and what rows add.
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)

-- Runs a script with a usage text and rows; it prints the options that the line names, in order of the names given.
local function run(usage, rows, names, line)
  temp.write(folder .. "/script.lua", ([==[
    local options, given, refuse, files = require "luminary.cli.script_options"([[
%s]], %s)
    for name in ("%s"):gmatch "%%S+" do print(name, options[name], given[name]) end
    local save = files.saver("save", options.save)
  ]==]):format(usage, rows, names))
  local ok, text, code = temp.run(folder, ("luajit %s/script.lua %s"):format(folder, line or ""))
  return text, ok, code
end

local usage = [[
usage: luajit script.lua [options]

  -e, --epochs N      passes over the data           (10)
  --lr X              learning rate                  (1e-3)
  --max-steps N       stop after this many steps     (no limit)
  --save-every N      write a checkpoint             (never)
  --clip X            of the gradients               (the optimizer's own)
  --log-file, --log FILE  where lines go; a long text
                      that continues                 (out.log)
  --data ROOT         a folder                       ($DATA)
  --seed N            of the weights                 (1)
  --model NAME        mlp or lenet                   (MLP)
  --amp NAME          mixed precision
  --save FILE         a checkpoint
  --wide X of one space
  --quiet             prints nothing                 (really)
  -x                  a flag
  --help              print this

A paragraph of words --lr X (5).
]]
local rows = [[{model = {"choice", of = {lenet = 1, mlp = 2}}, amp = {"choice", of = "off, O1 and O2"},
  quiet = {"flag", excludes = "lr"}}]]

describe("options of scripts", function()
  it("have kinds, defaults and aliases from the usage text #lua", function()
    local names = "epochs lr max-steps save-every clip log data seed model amp wide quiet x"
    assert.equal("epochs 10 nil lr 0.001 nil max-steps inf nil save-every inf nil clip nil nil log out.log nil "
      .. "data nil nil seed 1 nil model mlp nil amp nil nil wide nil nil quiet false nil x false nil",
      (run(usage, rows, names):gsub("%s+", " "):gsub(" $", "")))
    assert.equal("epochs 3 true lr 2 true log b true seed 0 true model lenet true amp O2 true wide 0.5 true "
      .. "x true true", (run(usage, rows, "epochs lr log seed model amp wide x",
        "-e 3 --lr=2 --log-file b --seed 0 --model LeNet --amp o2 --wide 0.5 -x"):gsub("%s+", " "):gsub(" $", "")))
  end)

  it("have numbers as defaults of ports", function()
    local o = {}
    require("luminary.cli.command_options").complete(o, "  --port P   port to listen at  (8080)\n")
    assert.same({"port", 8080}, o.port)
  end)

  it("are refused in a line that says why #lua", function()
    for line, message in pairs {
      ["--epochs 0"] = "--epochs must be an integer of at least 1, got '0'",
      ["--lr -1"] = "--lr must be a number of at least 0, got '-1'",
      ["--seed -1"] = "--seed must be an integer of at least 0, got '-1'", ["--quiet=1"] = "--quiet takes no value",
      ["--model gpt"] = "--model: 'gpt' is none of lenet, mlp\n",
      ["--amp x"] = "--amp: 'x' is none of off, O1 and O2\n",
      ["--lr 1 --quiet"] = "--quiet and --lr: one of the two", ["--epoch 1"] = "did you mean '--epochs'?",
      ["--save /tmp"] = "--save: /tmp is a folder", ["--save x.pt"] = "--save: checkpoint: path must not end in .pt",
    } do
      local text, ok, code = run(usage, rows, "lr", line)
      assert.is_false(ok)
      assert.equal(2, code)
      assert.matches(message, text, 1, true)
    end
  end)

  it("have the kind and default of a row where there is one #lua", function()
    local given = [[{epochs = {"natural"}, lr = {"number", 7}, quiet = {"text"}, hidden = {"count", 4}}]]
    assert.equal("epochs 0 true lr 7 nil quiet a true hidden 4 nil",
      (run(usage, given, "epochs lr quiet hidden", "--epochs 0 --quiet a"):gsub("%s+", " "):gsub(" $", "")))
  end)

  it("print the text for --help #lua", function() assert.equal(usage, (run(usage, rows, "lr", "--help"))) end)
end)
