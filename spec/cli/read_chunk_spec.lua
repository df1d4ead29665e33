-- Tests how the prompt finds the end of a chunk.
local lm = require "luminary"
local incomplete_chunk = require "luminary.cli.incomplete_chunk"

-- Calls read_chunk with lines; returns its results, the number of lines that it read, and of bytes that it compiled.
local function read(lines)
  local bytes, plain, n, path = 0, load, 0, "luminary.cli.read_chunk"
  local known = package.loaded[path]
  package.loaded[path] = nil
  rawset(_G, "load", function(text, ...) -- luacheck: ignore
    bytes = bytes + #text
    return plain(text, ...)
  end)
  local read_chunk = require(path)
  rawset(_G, "load", plain)
  package.loaded[path] = known
  local text, chunk, problem = read_chunk(function()
    n = n + 1
    return lines[n]
  end)
  return {text = text, chunk = chunk, problem = problem, lines = n, bytes = bytes}
end

local function scanned(text)
  local scan = incomplete_chunk()
  for each in (text .. "\n"):gmatch "(.-)\n" do scan:line(each) end
  return scan:incomplete_chunk()
end

local function many(first, line, n, last)
  local lines = {first}
  for i = 2, n do lines[i] = line end
  lines[#lines + 1] = last
  return lines
end

describe("a chunk at the prompt", function()
  it("ends with the line that completes it", function()
    for _, lines in ipairs {
      {"x = {", "1, 2,", "}"}, {"f = function(a,", "b)", "return a .. -- so", "[[", "( ]] .. b", "end"},
      {"while x do", "for i = 1, 2 do", "repeat x = y until", "z", "end end"},
      {"s = 'a\\", "b' .. \"it's \\z", "  \\\" end\""}, {"--[==[ (", "]] ]==] x ="  , "3"},
      {"= 1 +", "2"}, {"for k in (function() do end end)() do", "end"}, {"do goto e", "::e::", "end"},
      {"x = a[b[1", "]", "]"}, {"return function(...) return ...", "end"},
      {"do -- " .. ("a"):rep(2000) .. "\nend x = 1 +", "2"}, -- two lines are of the history
    } do
      local all = {unpack(lines)}
      all[#all + 1] = "beyond"
      local got = read(all)
      assert.equal(#lines, got.lines, lines[1])
      assert.equal(table.concat(lines, "\n"), got.text)
      assert.equal("function", type(got.chunk), got.problem)
    end
    local got = read {"f(", "x"}
    assert.same({"f(\nx", "unfinished chunk"}, {got.text, got.problem})
  end)

  it("may have words and blanks of any length, each of which is walked once", function()
    local word, blanks = ("a"):rep(400000), (" "):rep(400000)
    for _, lines in ipairs {
      {"x = {", "'" .. word .. "',", "}"}, {"x = function() local y; y =" .. blanks .. "1", "end"},
    } do
      local got = read(lines)
      assert.equal("function", type(got.chunk), #lines[1])
      assert.equal(#lines, got.lines)
    end
    assert.matches("expected near '1'", read({"x = {'" .. word .. "', 1 1}"}).problem, 1, true)
    assert.equal("a:b: a:b() calls a method, a.b is a field", read({"a:b"}).problem)
  end)

  it("is unfinished by its tokens only where a compiler says so, too", function()
    local seen = {}
    for _, name in ipairs {"cli/repl", "cli/unfinished", "tensor/einsum", "base/is_text", "text/vocabulary_files"} do
      local path, lines = package.searchpath("luminary." .. name:gsub("/", "."), package.path), {}
      for text in io.lines(path) do
        lines[#lines + 1] = text
        local sofar = table.concat(lines, "\n")
        local chunk, problem = load(sofar)
        local wants, says = not chunk and problem:find "near '<eof>'" ~= nil, scanned(sofar)
        if says then assert(wants, sofar .. "\n" .. tostring(problem)) end
        local both = ("%s %s"):format(wants, says)
        seen[both] = (seen[both] or 0) + 1
      end
    end
    assert(seen["true true"] > 300 and seen["false false"] > 50 and not seen["true false"], lm.repr(seen))
  end)

  it("is compiled in proportion to its length", function()
    for _, case in ipairs {
      {"x = {", "1,", "}"}, {"f = function()", "  s = 'end'", "end"}, {"s = [[", "]=] (", "]]"},
      {"x = 1 +", "1 +", "1"}, {"--[[", "text", "]] y = 2"},
    } do
      local lines = many(case[1], case[2], 20000, case[3])
      local got = read(lines)
      assert.equal("function", type(got.chunk), got.problem)
      assert.equal(#lines, got.lines)
      assert(got.bytes < 5 * (2 * 1024 ^ 2 + 4 * #got.text), got.bytes)
    end
  end)

  it("reports a wrong line before the end, and refuses lines that lead to none", function()
    local got = read(many("x = {", "1 1,", 1e5, "}"))
    assert.equal(2, got.lines)
    got = read(many("x = {" .. ("1,"):rep(5000), "1 1,", 1e5, "}"))
    assert.matches("'}' expected .* near '1'", got.problem)
    assert(got.lines < 6000, got.lines)
    got = read(many("do end y", ".z", 1e5))
    assert.matches("too many lines that may be its last", got.problem)
    assert(got.bytes < 5 * 5 * 1024 * 1024)
  end)
end)
