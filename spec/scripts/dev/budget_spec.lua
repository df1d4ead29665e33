-- scripts/dev/budget: lines above a budget, or a budget that rises unsaid, fail.
local temp = require "spec.support.temp"

describe("scripts/dev/budget #lua", function()
  local folder = temp.during(before_each, after_each)
  before_each(function()
    assert(os.execute(([[cd %s && mkdir -p scripts/dev src/base src/op/nn kernels lua/luminary/nn torch7/lua &&
      printf '1\n2\n3\n' | tee src/base/a.c src/op/nn/b.c kernels/c.cu lua/luminary/init.lua lua/luminary/nn/d.lua
      src/base/README.md torch7/lua/e.lua >/dev/null]]):gsub("%s*\n%s*", " "):format(folder)) == 0)
    temp.write(folder .. "/scripts/dev/budget", temp.read "scripts/dev/budget")
  end)

  local function budget(option)
    return temp.run(folder, ("luajit %s/scripts/dev/budget %s"):format(folder, option or ""))
  end
  local function set(text) temp.write(folder .. "/scripts/dev/budget.txt", text) end
  local FITS = "15 src kernels lua\n3 torch7/lua\n"

  it("passes within the budgets; pages of help do not count", function()
    set "17 src kernels lua\n3 torch7/lua\n"
    local ok, text = budget()
    assert(ok, text)
    assert.matches("\nsrc/op/ +3\n", text)
    assert.matches("\nsrc kernels lua +15 of 17\n", text)
    assert.not_matches("above", text)
  end)

  it("fails above one, or without one", function()
    for from, to in pairs { ["15 src"] = "14 src", ["3 torch7/lua\n"] = "" } do
      set((FITS:gsub(from, to)))
      local ok, text = budget()
      assert.is_false(ok)
      assert.matches(": %d lines above the budget\n", text)
    end
  end)

  it("--set lowers them to the present lines, and never raises one", function()
    set "17 src kernels lua\n2 torch7/lua\n"
    budget "--set"
    assert.equal((FITS:gsub("3 torch7", "2 torch7")), temp.read(folder .. "/scripts/dev/budget.txt"))
  end)

  it("fails where a commit raised one without saying by how much", function()
    local function git(arguments)
      assert(temp.run(folder, ("git -C %s -c user.name=a -c user.email=a@b.c %s"):format(folder, arguments)))
    end
    git "init -q"
    set "15 src kernels lua\n3 torch7/lua\n"
    git "add -A"
    git "commit -qm first"
    set "20 src kernels lua\n3 torch7/lua\n"
    git "commit -qam raised"
    local ok, text = budget()
    assert.is_false(ok)
    assert.matches("raised the budget by 5, and states 0\n", text, 1, true)
    git "commit -q --amend -m raised -m 'budget: +5'"
    assert(budget())
  end)
end)
