-- examples/train_gpt.lua as a user runs it: the same numbers in every layout, and from one layout to another.
local temp = require "spec.support.temp"

local SHAPE = "--dtype float64 --layers 4 --width 32 --length 32 --steps 8"

-- Returns what a run of n ranks writes, at most 100 s.
local function train(n, options)
  local launcher = n > 1 and ("luajit bin/luminary run --nproc %d"):format(n) or "luajit"
  local pipe = io.popen(("timeout 100 %s examples/train_gpt.lua %s %s CONTRIBUTING.md 2>&1 </dev/null"):format(launcher,
    SHAPE, options))
  local text = pipe:read "*a"
  pipe:close()
  return text
end

-- Returns the last losses of training and validation that a run printed.
local function losses(text)
  local loss, valid = text:match "step 8  loss ([%d.]+)", text:match "step 8  validation loss ([%d.]+)"
  assert(loss and valid, text)
  return {loss, valid}
end

describe("train_gpt.lua #lua #full", function()
  for model, layouts in pairs {
    gpt2 = {{8, "--context 2 --pipeline 2 --tensor 2 --microbatches 2"}, {4, "--tensor 2 --sequence --zero 2"},
      {4, "--replicate 2 --pipeline 2 --stages 2 --microbatches 4 --zero 1"}},
    llama = {{4, "--pipeline 2 --context 2 --offload"}},
  } do
    it("has the losses of one process in every layout of " .. model .. " #unsanitized", function()
      local alone = losses(train(1, "--model " .. model))
      for _, layout in ipairs(layouts) do
        assert.same(alone, losses(train(layout[1], layout[2] .. " --model " .. model)))
      end
    end)
  end

  it("resumes in another layout, and exports the weights #unsanitized", function()
    local folder = temp.folder()
    finally(function() temp.remove(folder) end)
    local alone = losses(train(1, ""))
    train(2, "--pipeline 2 --max-steps 4 --dir " .. folder)
    local text = train(2, ("--tensor 2 --dir %s --export %s/gpt.safetensors"):format(folder, folder))
    assert.matches("resuming after step 4", text, 1, true)
    assert.same(alone, losses(text))
    local lm = require "luminary"
    local net = lm.models.gpt2 {vocab_size = 256, n_positions = 32, n_embd = 32, n_layer = 4, n_head = 4}
    net:load_state_dict(lm.load(folder .. "/gpt.safetensors"))
  end)

  it("refuses layouts that do not fit", function()
    for options, message in pairs {
      ["--tensor 2"] = "1 ranks are not divisible by replicate x context x pipeline x tensor = 2",
      ["--stages 2"] = "--stages needs --pipeline",
      ["--width 33"] = "--model: gpt2: n_embd (33) must be divisible by n_head (4)",
      ["--model llama --width 33"] = "--model: llama: ",
      ["--length 4000000"] = "tokens for training are too few for --batch-size and --length",
    } do
      assert.matches(message, train(1, options), 1, true)
    end
    assert.matches("8 stages are more than --layers 4", train(2, "--pipeline 2 --stages 4"), 1, true)
    for options, message in pairs {
      ["--export /proc/none/x"] = "train_gpt.lua: --export: cannot ", ["--export /tmp"] = "--export: /tmp is a folder",
      ["/tmp"] = "train_gpt.lua: /tmp: ", ["/tmp/none/x"] = "train_gpt.lua: /tmp/none/x: No such file",
    } do
      assert.matches(message, train(1, "--max-steps 0 " .. options), 1, true)
    end
    local folder = temp.folder()
    finally(function() temp.remove(folder) end)
    assert.matches("^%d+ parameters on [^\n]*\n$", train(1, "--max-steps 0 --dir " .. folder))
  end)
end)
