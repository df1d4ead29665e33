-- LuaJIT's compiled code keeps closures that it calls alive, and what they capture. Loading runs often enough here to
-- be compiled; afterwards nothing of what was loaded is left.
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)

local BEFORE = [[
local lm = require "luminary"
local path = arg[0]:match "^(.*/)" .. "x."
local watched = setmetatable({}, {__mode = "k"})
local function watch(...) for _, v in ipairs {...} do watched[v] = true end end
local function tensors(n)
  local t = {}
  for i = 1, n do t["w" .. i] = lm.ones {10} end
  return t
end
local function load_often(name)
  for _ = 1, 3 do
    local loaded = lm.load(path .. name)
    watch(loaded)
    for _, t in pairs(loaded) do watch(t) end
  end
end
]]
local AFTER = [[
work()
for _ = 1, 4 do collectgarbage() end
local left = 0
for _ in pairs(watched) do left = left + 1 end
print("left " .. left)
]]

local works = {
  safetensors = [[lm.save(path .. "safetensors", tensors(300)) load_often "safetensors"]],
  pt = [[lm.save(path .. "pt", tensors(300)) load_often "pt"]],
  npz = [[lm.save(path .. "npz", tensors(100)) load_often "npz"]],
}

describe("after", function()
  for name, work in pairs(works) do
    it("loading " .. name .. " nothing of it is kept", function()
      temp.write(folder .. "/" .. name .. ".lua", BEFORE .. "local function work()\n" .. work .. "\nend\n" .. AFTER)
      local _, text = temp.run(folder, ("timeout -k 2 60 luajit %s/%s.lua"):format(folder, name))
      assert.equal("left 0\n", text)
    end)
  end
end)
