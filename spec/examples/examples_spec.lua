-- Every program of examples/ learns: its --selftest says so. Those without one are libraries of the others, except
-- first_ddp.lua, which has no options, and train_gpt.lua, which has a spec of its own. Those that take longest learn
-- with LM_TEST_LONG=1; spec/compile_steps_spec.lua runs their steps in any case.
local lm = require "luminary"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"

describe("examples #unsanitized #full", function()
  local folder = temp.during(setup, teardown)

  local programs, libraries = {}, {}
  for path in io.popen "ls examples/*.lua | grep -v -e first_ddp -e train_gpt":lines() do
    local list = temp.read(path):find("--selftest", 1, true) and programs or libraries
    list[#list + 1] = path
  end

  it("are there", function()
    assert.same({
      "examples/cartpole.lua", "examples/pictures.lua", "examples/ppo_learner.lua", "examples/random_model.lua",
      "examples/sentences.lua",
    }, libraries)
    assert.is_true(#programs >= 9)
  end)

  local takes_long = {}
  for _, name in ipairs {"bert_classify", "dcgan", "ddpm", "detector"} do
    takes_long["examples/" .. name .. ".lua"] = " #long"
  end
  for _, path in ipairs(programs) do
    it(path .. " learns" .. (takes_long[path] or ""), function()
      local ok, output = temp.run(folder, "timeout 120 luajit " .. path .. " --selftest")
      assert(ok, output)
    end)
  end

  it("work where they were copied to, alone or with what they say is missing", function()
    for _, path in ipairs(programs) do
      local parts = {}
      for part in temp.read(path):gmatch 'files%.beside "(.-)"' do parts[#parts + 1] = part end
      temp.execute(("rm -rf %s/alone; mkdir %s/alone; cp %s %s/alone"):format(folder, folder, path, folder))
      local copy = folder .. "/alone/" .. path:match "[^/]*$"
      local ok, output = temp.run(folder, "luajit " .. copy .. " --help")
      assert(ok, output)
      assert.matches("^usage: ", output)
      if #parts > 0 then
        local _, text, code = temp.run(folder, "luajit " .. copy .. " --selftest --epochs 0")
        if text:find "has to lie beside it" then
          assert.equal(2, code)
          assert.matches("^[%w_]+%.lua: " .. parts[1] .. " has to lie beside it: it is a part of this program, in the "
            .. "same folder of Luminary's sources\n$", text)
        end
      end
    end
  end)

  it("say in a line what is wrong with a folder or a file", function()
    temp.execute("mkdir -p " .. folder .. "/empty")
    temp.write(folder .. "/empty/config.json", '{"model_type": "gpt2"}')
    for command, pattern in pairs {
      ["chat.lua --lessons DIR/none"] = "^chat.lua: %-%-lessons: .*none: No such file or directory\n",
      ["chat.lua --lessons DIR/config.json"] = "^chat.lua: %-%-lessons: .*config.json' has no message and answer\n",
      ["chat.lua --save /dev/null/x"] = "^chat.lua: %-%-save: .*Not a directory\n",
      ["bert_classify.lua --weights DIR --classify x"] = "^bert_classify.lua: %-%-weights: Tokenizer: .*neither",
      ["bert_classify.lua --data DIR"] = "^bert_classify.lua: %-%-data: '.*' is a folder",
      ["bert_classify.lua --save /dev/null/x"] = "^bert_classify.lua: %-%-save: ",
      ["gpt.lua --heads 3"] = "^gpt.lua: %-%-heads: %-%-width %(128%) must be divisible by %-%-heads %(3%)\n",
      ["gpt.lua --prompt 'the é'"] = "^gpt.lua: %-%-prompt: the character 'é' is not in the vocabulary\n",
      ["gpt.lua --prompt ''"] = "^gpt.lua: %-%-prompt must not be empty\n",
      ["gpt.lua --dropout 2"] = "^gpt.lua: %-%-dropout: ",
      ["gpt.lua --resume DIR"] = "^gpt.lua: %-%-resume: ",
      ["char_lstm.lua --dropout 2"] = "^char_lstm.lua: %-%-dropout: ",
      ["char_lstm.lua --text DIR"] = "^char_lstm.lua: %-%-text: '.*' is a folder",
    } do
      local _, text, code = temp.run(folder, "luajit examples/" .. command:gsub("DIR", folder .. "/empty"))
      assert.matches(pattern, text)
      assert.equal(2, code, command)
      assert.matches("^[^\n]*\n[^\n]*%-%-help lists the options\n$", text)
    end
  end)

  it("chat.lua saves a model that luminary chat talks with", function()
    temp.write(folder .. "/lessons", "hi\nHi! Who?\nme\nAh.\n")
    local ok, text = temp.run(folder, ("echo hi | luajit examples/chat.lua --lessons %s/lessons --steps 80 "
      .. "--save %s/talks"):format(folder, folder))
    assert(ok, text)
    assert.matches("> Hi! Who?\n", text, 1, true)
    ok, text = temp.run(folder, ("printf 'hi\\nme\\n' | bin/luminary chat --temperature 0 %s/talks"):format(folder))
    assert(ok, text)
    assert.equal("Hi! Who?\nAh.\n", text)
  end)

  it("train by several ranks as by one, and continue from a checkpoint in the same bytes", function()
    local function train(launcher, name, epochs)
      local ok, text = temp.run(folder, ("env OMP_NUM_THREADS=1 luajit %s examples/first_ddp.lua %s/%s.st %d"):format(
        launcher, folder, name, epochs))
      assert(ok, text)
      local losses = {}
      for epoch, loss in text:gmatch "epoch (%d+)  loss ([%d.]+)" do losses[tonumber(epoch)] = tonumber(loss) end
      return losses, text
    end
    local two = ranks.luminary .. " run --nproc 2"
    local alone, together = train("", "alone", 4), train(two, "whole", 4)
    for epoch = 1, 4 do assert.near(alone[epoch], together[epoch], 1e-4) end
    assert(together[4] < 0.5 * together[1], together[4])
    train(two, "part", 2)
    local rest, text = train(two, "part", 4)
    assert.matches("continuing after epoch 2\n", text)
    assert.same({[3] = together[3], [4] = together[4]}, rest)
    assert(temp.read(folder .. "/part.st") == temp.read(folder .. "/whole.st"), "the checkpoints differ")
    assert.equal(4, lm.load(folder .. "/part.st").epoch)
  end)

  it("resume from a checkpoint with its model, and warn of another text", function()
    local a = temp.write(folder .. "/a.txt", ("the cat sat on the mat. "):rep(40))
    local b = temp.write(folder .. "/b.txt", ("on the mat sat the cat. "):rep(40))
    local function run(options)
      local ok, text, code = temp.run(folder, "luajit examples/gpt.lua --width 8 --heads 2 --length 8 --sample 3 "
        .. options)
      return text, ok and 0 or code
    end
    local small, checkpoint = "--layers 1 --batch-size 2 ", folder .. "/gpt.safetensors"
    local text, code = run(small .. "--steps 1 --checkpoint " .. checkpoint .. " --text " .. a)
    assert.equal(0, code, text)
    local on = "--batch-size 2 --steps 2 --resume " .. checkpoint
    text, code = run(on .. " --text " .. a)
    assert.equal(0, code, text)
    assert.is_nil(text:find("warning", 1, true), text)
    text, code = run(on .. " --layers 1 --text " .. b)
    assert.equal(0, code, text)
    assert.matches("^gpt.lua: warning: the text is not the one of the checkpoint\n", text)
    for option, what in pairs { ["--layers 3"] = "1", ["--lr 0.1"] = "0.001", ["--weight-decay 0.2"] = "0.1" } do
      text, code = run(on .. " --text " .. a .. " " .. option)
      assert.equal(2, code)
      assert.matches("^gpt.lua: " .. option:match "%S+":gsub("%-", "%%-") .. ": the checkpoint's is " .. what .. "\n",
        text)
    end
    lm.save(folder .. "/other.safetensors", { a = lm.ones(2) })
    text, code = run("--resume " .. folder .. "/other.safetensors")
    assert.equal(2, code)
    assert.matches("^gpt.lua: %-%-resume: .* is no checkpoint of this program\n", text)
  end)

  it("draw a learning curve", function()
    local text = temp.write(folder .. "/curve.txt", ("the cat sat on the mat. "):rep(40))
    local tiny = "luajit examples/gpt.lua --layers 1 --width 8 --heads 2 --length 8 --batch-size 2 --sample 0 "
    local options = ("--steps 4 --eval-every 2 --curve %s/curve.svg --text %s"):format(folder, text)
    local ok, output = temp.run(folder, tiny .. options)
    assert(ok, output)
    local svg = temp.read(folder .. "/curve.svg")
    assert.matches("<svg .*</svg>\n", svg)
    local points = {}
    for i, color in ipairs { " 63, 111, 216", "232, 113,  10" } do -- after the line of the key
      local curve = svg:match(("stroke='rgb%%(%s%%)'%%s+d='M[^M]*M([^']*)'"):format(color))
      points[i] = select(2, curve:gsub("%S+,%S+", ""))
    end
    assert.same({ 4, 2 }, points) -- a loss for each step, one at each evaluation
    assert.is_nil(svg:find "nan" or svg:find "inf")
    local _, refused, code = temp.run(folder, tiny .. "--steps 1 --curve /dev/null/x.svg --text " .. text)
    assert.equal(2, code)
    assert.matches("^gpt.lua: %-%-curve: ", refused)
  end)

  it("draw nothing at a temperature of 0", function()
    local path = temp.write(folder .. "/abc.txt", ("abc"):rep(200))
    local ok, text = temp.run(folder, "luajit examples/char_lstm.lua --hidden 16 --layers 1 --length 4 --batch-size 2 "
      .. "--steps 60 --lr 0.1 --sample 6 --temperature 0 --text " .. path)
    assert(ok, text)
    assert.matches("\nbcabca\n$", text)
  end)

  it("fail their selftest where they do not learn", function()
    local ok, output = temp.run(folder, "timeout 60 luajit examples/char_lstm.lua --selftest --steps 1")
    assert.is_false(ok)
    assert.matches("it did not learn", output)
  end)
end)
