-- scripts/dev/check_circles finds files that call one another in a circle.
local temp = require "spec.support.temp"

describe("check_circles", function()
  local folder = temp.during(before_each, after_each)
  before_each(function() assert(temp.execute("mkdir -p " .. folder .. "/src/room") == 0) end)

  local function file(name, text) temp.write(folder .. "/src/room/" .. name, text) end
  local function check() return temp.run(folder, "scripts/dev/check_circles " .. folder .. "/src") end

  it("fails on a circle, and names its calls", function()
    file("above.c", "lm_status lm_above(int n) {\n  return lm_between(n);\n}\n")
    file("between.c", "#include <a.h>\nint lm_between(int n,\n               int m) {\n  return lm_below(n);\n}\n")
    file("below.c", "int *lm_below(int n) {\n  return n > 0 ? lm_above(n - 1) : 0;\n}\n")
    local ok, text = check()
    assert.is_false(ok)
    assert.matches("3 files of .*/src call one another", text)
    assert.matches("room/below.c calls lm_above of room/above.c", text, 1, true)
  end)

  it("counts tables, macros of headers and other folders", function()
    file("above.c", "const lm_row lm_rows[2] = {{1}, {2}};\nint lm_above(void) { return lm_below(); }\n")
    file("row.h", "#define LM_ROW(i) \\\n  lm_rows[i].n\nextern const lm_row lm_rows[];\n")
    assert(temp.execute("mkdir " .. folder .. "/src/lower") == 0)
    file("../lower/below.c", "static int first;\nint lm_below(void) { return first = LM_ROW(1); }\n")
    local ok, text = check()
    assert.is_false(ok)
    assert.matches("lower/below.c calls lm_rows of room/above.c", text, 1, true)
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
