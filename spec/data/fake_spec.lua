-- FakeData.
local lm = require "luminary"
local sets = require "spec.support.sets"
local data = lm.data
local says = sets.says
teardown(sets.remove)

describe("FakeData", function()
  it("makes the same noise again, as bytes for a transform and else from 0 to 1", function()
    local seen
    local set = data.FakeData {size = 20, image_size = {3, 9, 7}, num_classes = 4}
    assert.equal(20, #set)
    local labels = {}
    for i = 1, 20 do
      local image, label = set:get(i)
      assert.same({3, 9, 7}, {unpack(image.shape)})
      assert.equal("float32", image.dtype)
      assert(image:min():item() >= 0 and image:max():item() <= 1)
      labels[label] = true
      assert.is_true(image:equal((set:get(i))))
    end
    assert.same({true, true, true, true}, labels)
    assert.is_false((set:get(1)):equal((set:get(2))))
    local moved = data.FakeData {
      size = 1, image_size = {3, 9, 7}, num_classes = 4, base = 0, random_offset = 3,
      transform = function(x) seen = x return x:float() end, target_transform = function(y) return 10 * y end,
    }
    local image, label = moved:get(1)
    local other, number = set:get(4)
    assert.equal("uint8", seen.dtype)
    assert.is_true((image / 255):allclose(other))
    assert.equal(10 * (number - 1), label)
    lm.manual_seed(1)
    local wanted = lm.rand(3)
    lm.manual_seed(1)
    set:get(7)
    assert.is_true(lm.rand(3):equal(wanted)) -- the script's own numbers are left alone
    says("image_size must be {channels, height, width}, got a table", data.FakeData, {image_size = {224, 224}})
    says("image_size must be {channels, height, width}, got a table", data.FakeData, {image_size = {3, 0, 224}})
  end)
end)
