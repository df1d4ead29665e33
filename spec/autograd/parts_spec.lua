-- Gradients of parts of a tensor: each is added to its part of the sum.
local lm = require "luminary"
local temp = require "spec.support.temp"

local parts = {
  function(t) return t:select(2, 1) end,
  function(t) return t:select(2, -1) end,
  function(t) return t:narrow(1, 2, 3) end,
  function(t) return t:narrow(3, 1, 4) end,
  function(t) return t:slice(3, 2, 5, 2) end,
  function(t) return t:slice(1, 4, 3) end, -- nothing
  function(t) return t:transpose(1, 3):select(1, 2) end,
  function(t) return t[{ {}, 2, { 2, 4 } }] end,
}

local function by_parts(x, take) return take(x) end

-- Computes take(x) by a product with a matrix of 0 and 1.
local function by_product(x, take)
  local places = take(lm.arange(1, x:numel() + 1):view(4, 3, 6))
  return lm.one_hot(places:reshape(-1):long(), x:numel()):double():matmul(x:reshape(-1)):view(places.shape)
end

local function loss(x, way)
  local sum = x:sum() * 0
  for k, take in ipairs(parts) do sum = sum + (way(x, take) * k):sin():sum() end
  return sum
end

local function grad_of(y, x, opts) return lm.grad(y, { x }, opts)[1] end

describe("gradients of parts", function()
  local inputs = {
    ["of a leaf"] = function(x) return x end,
    ["of what was computed"] = function(x) return x * 2 end,
    ["of a view"] = function(x) return x:transpose(1, 3):transpose(1, 3) end,
    ["of what is expanded"] = function(x) return x:narrow(2, 1, 1):expand(4, 3, 6) end,
  }
  for name, from in pairs(inputs) do
    it("are those of products with matrices, " .. name, function()
      local x = lm.randn({ 4, 3, 6 }, { dtype = "float64" }):requires_grad_()
      local function gradient(way)
        x.grad = nil
        loss(from(x), way):backward()
        return x.grad
      end
      local got, want = gradient(by_parts), gradient(by_product)
      assert.is_true((got - want):abs():max():item() < 1e-12)
      local once = grad_of(loss(from(x), by_parts), x)
      assert.is_true((once - want):abs():max():item() < 1e-12)
      local first = grad_of(loss(from(x), by_parts), x, { create_graph = true })
      local first_wanted = grad_of(loss(from(x), by_product), x, { create_graph = true })
      local second, wanted = grad_of(first:square():sum(), x), grad_of(first_wanted:square():sum(), x)
      assert.is_true((second - wanted):abs():max():item() < 1e-10)
    end)
  end

  it("leave alone what somebody else holds", function()
    local x = lm.ones(3):requires_grad_()
    local y, kept = x * 1, nil
    y:register_hook(function(g) kept = g:clone() end)
    local given = lm.full({ 3 }, 5)
    local a, b = y:narrow(1, 1, 2), y:select(1, 3)
    lm.autograd.backward({ y, a, b }, { given, lm.ones(2), lm.ones({}) })
    assert.same({ 5, 5, 5 }, given:totable())
    assert.same({ 6, 6, 6 }, kept:totable())
    assert.same({ 6, 6, 6 }, x.grad:totable())
    y = x * 1
    y[1]:backward { retain_graph = true }
    local before = x.grad
    y[2]:backward()
    assert.equal(before, x.grad)
    assert.same({ 7, 7, 6 }, x.grad:totable())
  end)

  local function counts(lines)
    local folder = temp.folder()
    local path = temp.write(folder .. "/script.lua", "local lm = require 'luminary'\n"
      .. "local x = lm.randn(4, 6):requires_grad_()\n" .. lines)
    local _, text = temp.run(folder, "LM_LOG=op luajit " .. path)
    temp.remove(folder)
    local _, wholes = text:gsub("slice_backward", "")
    local _, cats = text:gsub("%f[%w_]cat%f[^%w_]", "")
    return wholes, cats
  end

  it("make one tensor of the whole, not one for each part", function()
    assert.same({ 1, 0 }, { counts [[
      local a, b, c = unpack((x * 1):chunk(3, 2))
      local loss = (a * b):sum()
      loss:backward()
    ]] })
  end)

  it("are one cat where they make up the whole", function()
    assert.same({ 0, 1 }, { counts [[
      local a, b, c = unpack((x * 1):chunk(3, 2))
      local loss = (a * b * c):sum()
      loss:backward()
    ]] })
    assert.same({ 0, 1 }, { counts [[
      local a, b, c = unpack((x * 1):view(4, 3, 2):unbind(2))
      local loss = (a * b * c):sum()
      loss:backward()
    ]] })
  end)

  it("are those of products where they make up the whole, with hooks and other gradients of it", function()
    local x = lm.arange(1, 25):view(4, 6):double():requires_grad_()
    local kept = {}
    for _, from in ipairs { function() return x end, function() return x * 1 end } do
      for _, take in ipairs {
        function(t) return t:chunk(3, 2) end, function(t) return t:split({ 1, 0, 5 }, 2) end,
        function(t) return t:unbind() end, function(t) return t:unbind(-1) end,
      } do
        x.grad = nil
        local y = from()
        local total, list = y:sum(), take(y)
        for k, part in ipairs(list) do
          part:register_hook(function(g) kept[k] = g:clone() return g * 2 end)
          total = total + (part * k):sum()
        end
        total:backward()
        local want = lm.zeros_like(x)
        for k, part in ipairs(take(want)) do part:fill_(1 + 2 * k) end
        assert.same(want:totable(), x.grad:totable())
        for k, part in ipairs(list) do assert.equal(k * part:numel(), kept[k]:sum():item()) end
      end
    end
  end)
end)
