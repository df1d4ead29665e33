-- scripts/dev/new: each kind is written to its files, and its spec fails until it is filled in.
local temp = require "spec.support.temp"

describe("scripts/dev/new #lua", function()
  local folder = temp.during(before_each, after_each)
  before_each(function()
    assert(temp.run(folder, ("cp -r --parents src/op/entries src/image spec/op scripts/dev/reference_pages.lua lua %s"
      .. "; cd %s/spec && mkdir -p cli distributed metrics models nn onnx optim vision"):format(folder, folder)))
  end)

  local function new(arguments) return temp.run(folder, ("scripts/dev/new %s --root %s"):format(arguments, folder)) end

  it("writes each place of a kind, at most four, and says what is left", function()
    for kind, name in pairs {
      op = "hypot2", optimizer = "Lion2", schedule = "HalfLR", layer = "Scale", metric = "Spread", loss = "CubeLoss",
      codec = "qoi", collective = "all_max", onnx = "Twice", family = "olmo", command = "gc",
    } do
      local ok, text = new(kind .. " " .. name)
      assert(ok, text)
      assert.matches("\nfails  luajit spec/run.lua %S+\nleft:\n", text)
      local n = 0
      for path in text:gmatch "wrote  (%S+)" do
        n = n + 1
        local written = temp.read(folder .. "/" .. path)
        assert(written:find(name, 1, true), path)
        for line in written:gmatch "[^\n]+" do assert(#line <= 120 or not line:find(name, 1, true), path) end
      end
      assert(n >= 2 and n <= 4, n)
    end
  end)

  it("makes what runs without a build, with a spec that fails", function()
    for kind, name in pairs { schedule = "HalfLR", layer = "Scale", metric = "Spread", loss = "CubeLoss",
      collective = "all_max", onnx = "Twice", family = "olmo", command = "gc" } do
      local _, text = new(kind .. " " .. name)
      local path = text:match "wrote  (spec/%S+)"
      local ok, said = temp.run(folder, ("env LUA_PATH='%s/lua/?.lua;%s/lua/?/init.lua;;' luajit spec/run.lua %s/%s")
        :format(folder, folder, folder, path))
      assert.is_false(ok)
      assert.matches("to be filled in", said, 1, true)
      assert.matches("0 successes / 1 failure / 0 errors", said, 1, true)
    end
  end)

  it("refuses kinds, names and places that are not there", function()
    for arguments, message in pairs {
      ["kernel x"] = "expected KIND NAME; KIND is one of codec, collective, command, family, layer, loss, ",
      ["op Hypot"] = "op is lower case, as hypot, got 'Hypot'; did you mean hypot?",
      ["optimizer lion2"] = "optimizer is a class, as Lion, got 'lion2'; did you mean Lion2?",
      ["layer"] = "expected KIND NAME",
      ["layer ReLU"] = "lua/luminary/nn/activation.lua has ReLU already",
      ["codec bmp"] = "src/image/bmp.c is there already",
      ["onnx Softsign"] = "lua/luminary/onnx/ops/elementwise.lua has Softsign already",
    } do
      local ok, text = new(arguments)
      assert.is_false(ok)
      assert.matches(message, text, 1, true)
    end
    new "layer Scale"
    local ok, text = new "layer Scale"
    assert.is_false(ok)
    assert.matches("spec/nn/scale_spec.lua is there already", text, 1, true)
  end)
end)
