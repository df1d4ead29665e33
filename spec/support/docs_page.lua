--- Runs the Lua blocks of a page of README or docs/, in a process of their own:
---
---   luajit spec/support/docs_page.lua PAGE [--show]     --show: also print what the blocks print, with its lines
---
--- The blocks run in order, as one program: a local of one block is there in the next. `lm`, `nn`, `F`, `optim`, `data`
--- and `dist` are there from the start. A comment before a block changes that:
---
---   <!-- run: alone -->         a separate program
---   <!-- run: error "TEXT" -->  the block must raise an error that contains TEXT
---   <!-- run: no, REASON -->    does not run
---
--- Output on a page must be true. `print(…) -- 3` and `print(…) -- {8, 10}: batch, classes` are compared where the
--- comment, up to its first ": " or "; ", is a plain value; `print(…) --> any text` always is. A ```text block right
--- after a Lua block is the rest of what it prints. Spaces do not count. Numbers with a fraction may differ by 5 %:
--- processors round differently. The blocks run in an empty folder. Prints each mistake with its line. The exit status
--- is 1 if there is one.
local ffi = require "ffi"
local markdown = require "spec.support.markdown"
local temp = require "spec.support.temp"

local PREAMBLE = 'local lm = require "luminary" local nn, F, optim, data, dist = '
  .. "lm.nn, lm.nn.functional, lm.optim, lm.data, lm.dist "
local PLAIN = {}
for word in ([[true false nil nan inf tensor dtype device cpu cuda
  float32 float64 float16 bfloat16 int64 int32 int16 int8 uint16 uint8 bool]]):gmatch "%S+" do PLAIN[word] = true end

local path = assert(arg[1], "usage: luajit spec/support/docs_page.lua PAGE [--show]")
local file = assert(io.open(path))
local page = markdown.parse(file:read "*a")
file:close()

local mistakes = 0
local function complain(line, ...)
  mistakes = mistakes + 1
  io.stderr:write(path, ":", line, ": ", string.format(...), "\n")
end

-- ---- what the blocks print

local printed = {} -- list of {line, text}, in order

local function record(text)
  local level = 3 -- level of the function that called print
  local info = debug.getinfo(level, "Sl")
  while info and info.source ~= "@" .. path do
    level = level + 1
    info = debug.getinfo(level, "Sl")
  end
  local line = info and info.currentline or 0
  printed[#printed + 1] = {line = line, text = text}
  if arg[2] == "--show" then io.stdout:write(line, ": ", text) end
end

local function quiet_print(...)
  local words = {}
  for i = 1, select("#", ...) do words[i] = tostring((select(i, ...))) end
  record(table.concat(words, "\t") .. "\n")
end

local function quiet_write(...)
  record(table.concat {...})
  return io.stdout
end

-- Returns the output of lines `first` to `last`, without the lines in `except`.
local function output(first, last, except)
  local texts = {}
  for _, entry in ipairs(printed) do
    if entry.line >= first and entry.line <= last and not except[entry.line] then texts[#texts + 1] = entry.text end
  end
  return table.concat(texts)
end

-- ---- comparing

local function words_of(text) return (text:gsub("([%[%]{}(),])", " %1 ")) end

local function same_word(a, b)
  if a == b then return true end
  local x, y = tonumber(a), tonumber(b)
  if not (x and y and a:find "%." and b:find "%.") then return false end
  return math.abs(x - y) <= 0.05 * math.max(math.abs(x), math.abs(y))
end

local function same(want, got)
  local next_want, next_got = words_of(want):gmatch "%S+", words_of(got):gmatch "%S+"
  while true do
    local a, b = next_want(), next_got()
    if not a or not b then return a == b end
    if not same_word(a, b) then return false end
  end
end

local function plain_value(text)
  text = text:match "^(.-)[:;]%s" or text
  if not text:find "%S" then return end
  for word in words_of(text:gsub("[=:]", " ")):gmatch "%S+" do
    local known = word:match "^[%[%]{}(),]$" or word:match "^[+-]?%d*%.?%d*e?[+-]?%d*$" or PLAIN[word]
    if not known then return end
  end
  return text
end

local function shown_value(line)
  local comment = line:match "print%b()%s*%-%-(.*)$"
  if not comment then return end
  if comment:sub(1, 1) == ">" then return comment:sub(2) end
  return plain_value(comment)
end

-- ---- running

local function environment()
  return setmetatable({
    print = quiet_print,
    io = setmetatable({write = quiet_write}, {__index = io}),
    __fails = function(line, text, f)
      local ok, problem = pcall(f)
      if ok then return complain(line, "the block raised no error; expected '%s'", text) end
      if tostring(problem):find(text, 1, true) then return end
      complain(line, "expected '%s', got: %s", text, tostring(problem))
    end,
  }, {__index = _G})
end

-- Runs these blocks as one chunk whose lines are the page's.
local function run(blocks)
  local lines = {}
  for i = 1, #page.lines do lines[i] = "" end
  lines[1] = PREAMBLE
  for _, block in ipairs(blocks) do
    local text = (block.directive or ""):match '^error "(.*)"$'
    local _, problem = loadstring(block.code)
    if text and problem then
      if not problem:find(text, 1, true) then complain(block.first, "expected '%s', got: %s", text, problem) end
    else
      for i = block.first + 1, block.last - 1 do lines[i] = page.lines[i] end
      if text then
        lines[block.first] = lines[block.first] .. ("__fails(%d, %q, function()"):format(block.first, text)
        lines[block.last] = "end)"
      end
    end
  end
  local chunk, problem = loadstring(table.concat(lines, "\n"), "@" .. path)
  local ok
  if chunk then
    ok, problem = xpcall(setfenv(chunk, environment()), debug.traceback)
    if ok then return end
  end
  mistakes = mistakes + 1
  io.stderr:write(tostring(problem), "\n")
end

ffi.cdef "int chdir(const char *path);"
local folder = os.getenv "DOCS_FOLDER" or temp.folder() -- one for several ranks
ffi.C.chdir(folder)

local together, ran = {}, {}
for _, block in ipairs(page.blocks) do
  if block.language == "lua" then
    local directive = block.directive or ""
    if directive == "alone" then
      run {block}
    elseif directive == "" or directive:find '^error ".+"$' then
      together[#together + 1] = block
    elseif not directive:find "^no, %S" then
      complain(block.first, "unknown directive 'run: %s'", directive)
    end
    ran[block] = not directive:find "^no,"
  end
end
if together[1] then run(together) end

if mistakes == 0 then
  local before, compared = nil, {}
  for _, block in ipairs(page.blocks) do
    if ran[block] then
      for line = block.first + 1, block.last - 1 do
        local want = shown_value(page.lines[line])
        compared[line] = want ~= nil
        local got = want and output(line, line, {})
        if want and not same(want, got) then complain(line, "shows '%s', printed: %s", want, got) end
      end
    elseif block.language == "text" and ran[before] then
      local got = output(before.first, before.last, compared)
      if not same(block.code, got) then complain(block.first, "shows other output than was printed:\n%s", got) end
    end
    before = block
  end
end
if not os.getenv "DOCS_FOLDER" then temp.remove(folder) end
os.exit(mistakes == 0 and 0 or 1, true)
