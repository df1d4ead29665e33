-- Training steps through lm.compile, those of README, docs/ and examples/ too, have the bits of the steps as they are.
-- LM_TEST_LONG=1: 50 calls of each, not 5, and each model in all dtypes, not in two.
local lists = require "luminary.base.lists"
local equal = require "spec.support.steps.equal"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"

local long = os.getenv "LM_TEST_LONG" ~= nil
local turns = {{"bfloat16", "float64"}, {"autocast", "float32"}}

describe("lm.compile trains as the step does:", function()
  for _, file in ipairs {"networks", "training", "calls"} do
    for i, case in ipairs(require("spec.support.steps." .. file)) do
      local name, make, kinds = unpack(case)
      local is_model = name:find "^models" ~= nil
      if is_model and not long then kinds = kinds or turns[i % 2 + 1] end
      it(name .. (is_model and " #unsanitized #full" or ""), function()
        for k, kind in ipairs(kinds or equal.kinds) do
          local ok, text = pcall(equal.compare, make, {kind = kind, pace = k == 1 and file ~= "networks" and 3 or 1})
          assert(ok, ("%s: %s"):format(kind, tostring(text)))
        end
      end)
    end
  end

  for _, kind in ipairs {"float32", "bfloat16"} do
    it("every op, forward and backward, in " .. kind, function()
      for _, case in ipairs(require "spec.support.steps.ops") do
        local ok, text = pcall(equal.compare, case[2], {kind = kind, pace = 3})
        assert(ok, ("%s: %s"):format(case[1], tostring(text)))
      end
    end)
  end

  it("on 2 ranks, by DistributedDataParallel and fully_shard #unsanitized", function()
    local got = ranks.run {file = "spec/support/steps/equal_rank.lua"}
    assert(got.ok, got.text)
  end)

  local folder = temp.during(setup, teardown)
  it("on two threads at once", function()
    local ok, text = temp.run(folder, "timeout 300 luajit spec/support/steps/equal_threads.lua")
    assert(ok, text)
  end)

  for _, path in ipairs(lists.sorted_keys(require "spec.support.steps.programs")) do
    it(path .. " #unsanitized #full", function()
      local needs_data = temp.read(path):find "data%.FashionMNIST"
      if needs_data and not temp.exists "/usr/share/datasets/fashion-mnist" and not os.getenv "LUMINARY_DATA" then
        return pending "needs Fashion-MNIST"
      end
      local ok, text = temp.run(folder, ("timeout 300 luajit spec/support/steps/equal_program.lua %s %d"):format(path,
        equal.calls))
      assert(ok, text)
    end)
  end
end)
