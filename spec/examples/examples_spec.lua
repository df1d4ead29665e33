-- Every program of examples/ learns: its --selftest says so. Those without one are libraries of the others.
local temp = require "spec.support.temp"

describe("examples #speed", function()
  local folder
  setup(function() folder = temp.folder() end)
  teardown(function() temp.remove(folder) end)

  local programs, libraries = {}, {}
  for path in io.popen "ls examples/*.lua":lines() do
    local list = temp.read(path):find("--selftest", 1, true) and programs or libraries
    list[#list + 1] = path
  end

  it("are there", function()
    assert.same({ "examples/cartpole.lua", "examples/pictures.lua", "examples/sentences.lua" }, libraries)
    assert.is_true(#programs >= 9)
  end)

  for _, path in ipairs(programs) do
    it(path .. " learns", function()
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
      ["chat.lua --model DIR"] = "^chat.lua: %-%-model: Tokenizer: .* has neither tokenizer.json",
      ["chat.lua --model nowhere"] = "^chat.lua: %-%-model: 'nowhere' is no folder",
      ["bert_classify.lua --weights DIR --classify x"] = "^bert_classify.lua: %-%-weights: Tokenizer: .*neither",
      ["bert_classify.lua --data DIR"] = "^bert_classify.lua: %-%-data: '.*' is a folder",
      ["bert_classify.lua --save /dev/null/x"] = "^bert_classify.lua: %-%-save: ",
      ["char_lstm.lua --text DIR"] = "^char_lstm.lua: %-%-text: '.*' is a folder",
    } do
      local _, text, code = temp.run(folder, "luajit examples/" .. command:gsub("DIR", folder .. "/empty"))
      assert.matches(pattern, text)
      assert.equal(2, code, command)
      assert.matches("^[^\n]*\n[^\n]*%-%-help lists the options\n$", text)
    end
    temp.write(folder .. "/empty/tokenizer.json",
      '{"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0}}}')
    local _, text = temp.run(folder, "luajit examples/chat.lua --model " .. folder .. "/empty")
    assert.matches("^chat.lua: %-%-model: llama: .*/config.json is of a 'gpt2', not a 'llama'\n", text)
  end)

  it("fail their selftest where they do not learn", function()
    local ok, output = temp.run(folder, "timeout 60 luajit examples/char_lstm.lua --selftest --steps 1")
    assert.is_false(ok)
    assert.matches("it did not learn", output)
  end)
end)
