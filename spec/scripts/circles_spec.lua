-- scripts/dev/check_circles finds files that call one another in a circle.
local temp = require "spec.support.temp"

describe("check_circles", function()
  local folder
  before_each(function()
    folder = temp.folder()
    assert(temp.execute("mkdir -p " .. folder .. "/src/room") == 0)
  end)
  after_each(function() temp.remove(folder) end)

  local function file(name, text) temp.write(folder .. "/src/room/" .. name, text) end
  local function check() return temp.run(folder, "scripts/dev/check_circles " .. folder .. "/src") end

  it("fails on a circle, and names its calls", function()
    file("above.c", "lm_status lm_above(int n) {\n  return lm_between(n);\n}\n")
    file("between.c", "#include <a.h>\nint lm_between(int n,\n               int m) {\n  return lm_below(n);\n}\n")
    file("below.c", "int *lm_below(int n) {\n  return n > 0 ? lm_above(n - 1) : 0;\n}\n")
    local ok, text = check()
    assert.is_false(ok)
    assert.matches("3 files of .*/src/room call one another", text)
    assert.matches("room/below.c calls lm_above of room/above.c", text, 1, true)
  end)

  it("passes where calls lead one way, whatever comments and static functions are named", function()
    file("above.c", "static int lm_own(int n) { return n; }\nint lm_above(int n) {\n  return lm_below(lm_own(n));\n}\n")
    file("below.c", "/* for lm_above */\nstatic int lm_own(int n) { return -n; }\n"
      .. "int lm_below(int n) { return lm_own(n); }\n")
    local ok, text = check()
    assert(ok, text)
    assert.equal("", text)
  end)
end)
