-- `luminary run --plan`: what it prints, and what it refuses.
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)

local function run(arguments) return temp.run(folder, "luajit bin/luminary run " .. arguments) end

local function write(name, text) return temp.write(folder .. "/" .. name, text) end

-- Returns the sum of the numbers in "name 1.2, name 3.4".
local function sum_of(text)
  local sum = 0
  for number in text:gmatch " ([%d.]+)" do sum = sum + tonumber(number) end
  return sum
end

describe("luminary run --plan #lua", function()
  it("prints layouts with memory and time by parts that add up, the fastest first, and why", function()
    local ok, text = run "--plan llama3-70b --nodes 8 --gpus 8 --memory 80 --layouts 4"
    assert(ok, text)
    assert.matches("llama3-70b: 70553.7 M parameters, 80 blocks; 8 x 8 h100 of 80 GB; batches of 256 x 8192 tokens",
      text, 1, true)
    local rows, last = 0, 0
    for number, ms, gb, parts, times in text:gmatch
      "(%d+)%. [^\n]-: ([%d.]+) ms, ([%d.]+) GB\n[^\n]*\n      GB: ([^\n]*)\n      ms: ([^\n]-); hidden" do
      rows, ms, gb = rows + 1, tonumber(ms), tonumber(gb)
      assert.equal(rows, tonumber(number))
      assert.is_true(ms >= last and gb <= 0.94 * 80, text)
      assert.near(1, sum_of(parts) / gb, 0.005)
      assert.near(1, sum_of(times) / ms, 0.005)
      last = ms
    end
    assert.equal(4, rows)
    assert.matches("longest collective: all_gather and reduce_scatter of blocks (shard)", text, 1, true)
    assert.matches("Best: shard 64. ", text, 1, true)
    for _, dim in ipairs {"replicate", "tensor", "pipeline", "context"} do
      assert.matches("\n%- more " .. dim .. " %([^\n]+%) takes [%d.]+ ms more: [^\n]+, %+[%d.]+ ms%.", text)
    end
  end)

  it("counts the parameters of presets as published", function()
    for name, millions in pairs {
      gpt2 = 124.4, ["gpt2-medium"] = 354.8, ["gpt2-large"] = 774.0, ["gpt2-xl"] = 1557.6, ["gpt3-175b"] = 174604.3,
      ["llama-7b"] = 6738.4, ["llama-13b"] = 13015.9, ["llama-65b"] = 65285.7, ["llama2-70b"] = 68976.6,
      ["llama3-8b"] = 8030.3, ["llama3-405b"] = 405853.4,
    } do
      local ok, text = run("--plan " .. name .. " --nodes 64 --layouts 1")
      assert(ok, text)
      assert.matches(("%s: %.1f M parameters"):format(name, millions), text, 1, true)
    end
  end)

  it("reads a config.json, and a module from a Lua file", function()
    local json = write("config.json", [[{"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
      "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
      "max_position_embeddings": 32768, "rope_scaling": null, "torch_dtype": "bfloat16"}]])
    local ok, text = run("--layouts 1 --plan " .. json)
    assert(ok, text)
    assert.matches("7615.6 M parameters, 28 blocks", text, 1, true) -- Qwen2-7B has 7.62 B
    local own = write("model.lua", [[
      local nn = require "luminary".nn
      return nn.utils.init_empty_weights(function()
        local blocks = nn.ModuleList()
        for i = 1, 12 do blocks:append(nn.Sequential(nn.Linear(4096, 16384), nn.GELU(), nn.Linear(16384, 4096))) end
        return nn.Sequential(blocks, nn.Linear(4096, 10))
      end)]])
    ok, text = run("--batch 4096 --gpus 4 --plan " .. own)
    assert(ok, text)
    local millions = (12 * (2 * 4096 * 16384 + 4096 + 16384) + 40970) / 1e6
    assert.matches(("%.1f M parameters, 12 blocks"):format(millions), text, 1, true)
    assert.matches("no tensor: the plan does not know this model's attention", text, 1, true)
    assert.matches("; batches of 4096 samples, bfloat16, AdamW\nA sample is taken to be one vector for each nn.Linear; "
      .. "of sequences, pass --seq POSITIONS.\n", text, 1, true)
    local _, sequences = run("--batch 4096 --gpus 4 --layouts 1 --seq 512 --plan " .. own)
    assert.matches("; batches of 4096 x 512 tokens, bfloat16, AdamW\n%d+ meshes", sequences)
    local function ms(of) return tonumber(of:match "1%. [^\n]-: ([%d.]+) ms") end
    assert.is_true(ms(sequences) > 100 * ms(text), sequences)
  end)

  it("says what would fit if nothing does, and that does", function()
    local ok, text, code = run "--plan gpt3-175b --nodes 2"
    assert.is_false(ok)
    assert.equal(2, code)
    local over, memory, nodes = text:match
      "GB a card, ([%d.]+) GB too much.-%-%-memory (%d+) would do, or %-%-nodes (%d+)"
    assert.is_true(tonumber(over) > 1, text)
    for _, option in ipairs {"--nodes 2 --memory " .. memory, "--nodes " .. nodes} do
      ok, text = run("--plan gpt3-175b --layouts 1 " .. option)
      assert(ok, text)
    end
    assert.is_false((run("--plan gpt3-175b --nodes 2 --memory " .. memory - 2)))
    assert.is_false((run("--plan gpt3-175b --nodes " .. nodes / 2)))
  end)

  it("plans for other cards, networks, batches and dtypes", function()
    local function ms(arguments)
      local ok, text = run("--plan llama-7b --layouts 1 " .. arguments)
      assert(ok, text)
      return tonumber(text:match "1%. [^\n]-: ([%d.]+) ms")
    end
    local base = ms "--nodes 2"
    assert.is_true(ms "--nodes 2 --card a100" > 2 * base)
    assert.is_true(ms "--nodes 2 --network 10" > base)
    assert.near(2, ms "--nodes 2 --batch 128" / base, 0.25)
    assert.is_true(ms "--nodes 2 --dtype float32 --card h200" > base)
    assert.is_true(ms "--nodes 2 --seq 1024" < 0.6 * base)
    assert.is_true(ms "--gpus 1 --card cpu --memory 200" > 1000 * base)
  end)

  it("refuses what it cannot plan, in one line", function()
    for arguments, words in pairs {
      ["--plan gpt2x"] = "did you mean 'gpt2'?", ["--nodes 3 x.lua"] = "--nodes requires --plan MODEL",
      ["--plan gpt2 --card h10"] = "--card must be one of a100, cpu, h100, h200, got 'h10'",
      ["--plan gpt2 --nproc 4"] = "--nproc is not an option of --plan",
      ["--plan gpt2 x.lua"] = "--plan runs no script, got 'x.lua'", ["--plan /nope.json"] = "cannot open '/nope.json'",
      ["--plan /nope.lua"] = "cannot open /nope.lua", ["--plan gpt2 --seq 2000"] = "--seq must be at most 1024",
      ["--plan gpt2 --dtype int8"] = "--dtype must be bfloat16, float16 or float32, got 'int8'",
      ["--plan gpt2 --nodes 100000"] = "--nodes times --gpus must be at most 65536, got 800000",
      ["--plan gpt2 --memory 0"] = "--memory must be a number above 0", ["--plan"] = "--plan requires a value",
      ["--plan gpt2 --gpus 7 --batch 1 --memory 0.1"] = "no layout fits",
      ["--plan " .. write("bert.json", '{"model_type": "bert"}')] = "model_type must be one of gemma, gemma2, gpt2",
      ["--plan " .. write("text.json", '{"model_type": "llama", "num_hidden_layers": "12"}')] =
        "num_hidden_layers must be an integer of at least 1, got '12'",
      ["--plan " .. write("broken.json", "[1")] = "is not a JSON object",
      ["--plan " .. write("heads.json", '{"model_type": "llama", "num_attention_heads": 7}')] =
        "hidden_size (4096) must be divisible by num_attention_heads (7)",
      ["--plan " .. write("raises.lua", 'error "oops"')] = "raises.lua:1: oops",
      ["--plan " .. write("five.lua", "return 5")] = "must return a module, made in nn.utils.init_empty_weights",
      ["--plan " .. write("like.lua", "return {parameters = function() return 3 end}")] = "must return a module,",
      ["--plan " .. write("tokens.lua", [[local nn = require "luminary".nn
        return nn.Sequential(nn.Embedding(9, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))]])] =
        "--seq is required: the model has an nn.Embedding",
      ["--plan " .. write("line.lua", 'return require "luminary".nn.Linear(3, 4)')] = "the model has no list",
      ["--plan " .. write("image.lua",
        'local nn = require "luminary".nn return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3))')] =
        "weights have 1 or 2 dims, got 4",
    } do
      local ok, text, code = run(arguments)
      assert.is_false(ok, arguments)
      assert.equal(2, code)
      assert.matches(words, text, 1, true)
      assert.equal(2, select(2, text:gsub("\n", "\n")), text) -- the second says where options are
    end
  end)
end)
