--- luajit spec/support/steps/equal_program.lua PATH CALLS: runs a program of programs.lua until its step was called
--- CALLS times, once as it is and once with its step through lm.compile, and compares them bit by bit.
local ffi = require "ffi"
local lm = require "luminary"
local equal = require "spec.support.steps.equal"
local markdown = require "spec.support.markdown"
local temp = require "spec.support.temp"

local path, calls = arg[1], tonumber(arg[2])
local program = require "spec.support.steps.programs"[path]
local edited = program.file or path

-- Returns the page's Lua blocks as lines of one chunk.
local function lines_of_page(page)
  local lines = {}
  for _, block in ipairs(page.blocks) do
    if block.language == "lua" and block.directive == nil then
      for line in (block.code .. "\n"):gmatch "(.-)\n" do lines[#lines + 1] = line end
    end
  end
  return lines
end

-- Returns the text with its step within step_of(…), which returns one; fails if the step is not there.
local function with_step(text)
  local lines, first, last = {}, nil, nil
  if edited:find "%.md$" then
    lines = lines_of_page(markdown.parse(text))
  else
    for line in text:gmatch "([^\n]*)\n" do lines[#lines + 1] = line end
  end
  local from = program.from or "local function " .. program.name .. "("
  for i, line in ipairs(lines) do
    local indent, code = line:match "^(%s*)(.*)"
    if not first and code:sub(1, #from) == from then first, last = i, program.name and indent .. "end" end
    local to = last or program.to and indent .. program.to
    if first and i > first and line:sub(1, #to) == to then
      if program.name then
        lines[i] = ("%s %s = step_of(%s)"):format(line, program.name, program.name)
      else
        local takes, returns = program.takes, program.returns
        lines[first] = ("local %s = step_of(function(%s) %s"):format(returns, takes, lines[first])
        lines[i] = ("%s return %s end)(%s)"):format(line, returns, takes)
      end
      return table.concat(lines, "\n") .. "\n"
    end
  end
  error(edited .. " has no step where spec/support/steps/programs.lua says", 0)
end

local folder = temp.folder()
if path:find "%.lua$" then temp.execute(("cp examples/*.lua %s"):format(folder)) end
local function copy_of(file) return folder .. "/" .. file:match "[^/]*$":gsub("%.md$", ".lua") end
temp.write(copy_of(edited), with_step(temp.read(edited)))
ffi.cdef "int chdir(const char *);"

-- Runs the program, whose steps pass through `wrap`. Returns lists of all that the step refers to after each call.
local function run(wrap)
  local seen, runs = {}, {}
  function _G.step_of(f)
    local site = debug.getinfo(2, "l").currentline
    runs[site] = runs[site] or wrap(f) -- the first function of a loop, whose later ones have the same variables
    return function(...)
      local results = {runs[site](...)}
      seen[#seen + 1] = equal.copied(equal.collected("", {f, results, {...}, lm.get_rng_state()}))
      if #seen == calls then error "enough" end
      return unpack(results, 1, table.maxn(results))
    end
  end
  ffi.C.chdir(temp.folder(folder)) -- no checkpoint of another run
  local words = {[0] = copy_of(path)}
  for word in program.arguments:gmatch "%S+" do words[#words + 1] = word end
  _G.arg = words
  lm.manual_seed(1)
  math.randomseed(1)
  local ok, problem = pcall(dofile, copy_of(path))
  if not ok and #seen < calls then error(problem, 0) end
  if pcall(lm.dist.get_rank) then lm.dist.destroy_process_group() end
  return seen
end

local state
local eager = run(function(f) return f end)
local compiled = run(function(f)
  local wrapped
  wrapped, state = lm.compile(f)
  return wrapped
end)
temp.remove(folder)
print("state of lm.compile: " .. lm.repr(state))
assert(#eager > 1 and #eager == #compiled, ("%d calls, and %d compiled"):format(#eager, #compiled))
assert(not pcall(equal.compare_lists, eager[1], eager[#eager]), "no call changed what is compared")
for k = 1, #eager do equal.compare_lists(eager[k], compiled[k], "call " .. k) end
