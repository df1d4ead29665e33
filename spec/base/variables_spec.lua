-- The environment variables that are luminary's own: one table, from which they are read and
-- documented; spec/docs/status_spec.lua compares their page.
local temp = require "spec.support.temp"
local variables = require "luminary.environment_variables"

describe("luminary's environment variables", function()
  local folder = temp.during(before_each, after_each)

  it("are all in the table that the code reads by", function()
    local files = io.popen("find src lua bin -name '*.[ch]' -o -name '*.cc' -o -name '*.lua'")
    local strange, n = {}, 0
    for path in files:lines() do
      n = n + 1
      local text = temp.read(path)
      for _, pattern in ipairs {
        'env%s*%(?%s*"(LM_[%u_]+)"', 'env%s*%(?%s*"(LUMINARY_[%u_]+)"', 'variable%s*%(?%s*"(LM_[%u_]+)"',
      } do
        for name in text:gmatch(pattern) do
          if not variables[name] then strange[#strange + 1] = path .. ": " .. name end
        end
      end
      if path:find "%.[ch]c?$" then
        for name in text:gmatch 'getenv%("(LM_[%u_]+)"' do
          strange[#strange + 1] = path .. " reads by itself: " .. name
        end
      end
    end
    files:close()
    assert(n > 300, n)
    assert.equal("", table.concat(strange, "\n"))
  end)

  it("are what luminary help environment prints", function()
    local ok, text = temp.run(folder, "luminary help environment")
    assert(ok, text)
    assert.equal(variables.text(), text)
    for _, variable in ipairs(variables) do assert(text:find(variable.name, 1, true), variable.name) end
  end)

  -- A sanitized build has the kernels of one level, and does not ask which are requested.
  for setting, told in pairs {
    ["LM_SHM=off"] = false, -- nobody asks for it here
    ["LM_CPU_LEVEL=9"] = "luminary: LM_CPU_LEVEL is '9', which is none of 0, 1, 2: it is as if it were not set\n",
    ["LM_CONV=fast"] = "luminary: LM_CONV is 'fast', which is none of auto, direct, winograd, onednn: it is as if it "
      .. "were not set\n",
    ["LM_CONV='auto, direct'"] = "luminary: LM_CONV is 'auto, direct', which is none of auto, direct, winograd, "
      .. "onednn: it is as if it were not set\n",
    ["LM_CONV=direct"] = false,
    ["LM_CONV="] = false,
  } do
    it(setting .. (told and " is told of, once" or " says nothing"), function()
      local file = assert(io.open(folder .. "/script.lua", "w"))
      file:write "local lm = require 'luminary' local F = lm.nn.functional\n"
      file:write "for _ = 1, 3 do F.conv2d(lm.ones(1, 1, 3, 3), lm.ones(1, 1, 3, 3)) end"
      file:close()
      local ok, text = temp.run(folder, setting .. " luajit " .. folder .. "/script.lua")
      assert(ok, text)
      assert.equal(told or "", text)
    end)
  end
end)
