-- scripts/dev/budget: a folder above its budget, or without one, fails.
local temp = require "spec.support.temp"

describe("scripts/dev/budget #lua", function()
  local folder
  before_each(function()
    folder = temp.folder()
    assert(os.execute(([[cd %s && mkdir -p scripts/dev src/base src/op/nn kernels lua/luminary/nn torch7/lua &&
      printf '1\n2\n3\n' | tee src/base/a.c src/op/nn/b.c kernels/c.cu lua/luminary/init.lua lua/luminary/nn/d.lua
      src/base/README.md torch7/lua/e.lua >/dev/null]]):gsub("%s*\n%s*", " "):format(folder)) == 0)
    temp.write(folder .. "/scripts/dev/budget", temp.read "scripts/dev/budget")
  end)
  after_each(function() temp.remove(folder) end)

  local function budget(option)
    return temp.run(folder, ("luajit %s/scripts/dev/budget %s"):format(folder, option or ""))
  end
  local function set(text) temp.write(folder .. "/scripts/dev/budget.txt", text) end
  local FITS = "kernels/ 3\nlua/luminary/ 3\nlua/luminary/nn/ 3\nsrc/base/ 3\nsrc/op/ 4\ntorch7/lua/ 3\n"

  it("passes where each folder is within its budget; pages of help do not count", function()
    set(FITS)
    local ok, text = budget()
    assert(ok, text)
    assert.matches("\nsrc/op/ +3 +4 +%+1\n", text)
    assert.matches("\nin all +18\n$", text)
    assert.not_matches("ABOVE", text)
  end)

  it("fails where one is above it, or has none", function()
    for from, to in pairs { ["src/base/ 3"] = "src/base/ 2", ["kernels/ 3\n"] = "" } do
      set((FITS:gsub(from, to)))
      local ok, text = budget()
      assert.is_false(ok)
      assert.matches(from:match "^%S+" .. " +3 +%d +%-%d  ABOVE ITS BUDGET\n", text)
      assert.matches("Raising a budget is a line of budget.txt in the commit", text, 1, true)
    end
  end)

  it("--set writes the present lines, which then fit", function()
    set ""
    assert.is_true((budget "--set"))
    assert.equal((FITS:gsub("op/ 4", "op/ 3")), temp.read(folder .. "/scripts/dev/budget.txt"))
  end)
end)
