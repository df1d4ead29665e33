--- A chunk of the prompt, of one line or several.
local incomplete_chunk = require "luminary.cli.incomplete_chunk"

local load, select, concat, max = load, select, table.concat, math.max
local find, gmatch, match, sub = string.find, string.gmatch, string.match, string.sub

local CALL = 200 -- bytes that a call at the end of a chunk is looked for in, by a pattern that tries each place

local function load_text(text) return load(text, "=prompt", "t") end

-- A `local` that stands at the beginning of what is typed would be gone with the line, so it makes a global. nil where
-- none stands there.
local function load_kept(text)
  local blank, rest = match(text, "^(%s*)local(%s.*)$")
  if not rest then return nil end
  return load_text(blank .. rest) or load_text(blank .. rest .. "\n= nil")
end

-- A chunk, or nil and the message, or nil and `true` where more lines are requested. An expression is not
-- returned as it stands: a tail call would be no level of its own, and errors blame a level.
local function compile(text)
  local expression = match(text, "^%s*=(.*)$") or text
  local chunk, as_expression = load_text("return nil, " .. expression)
  if chunk then return function() return select(2, chunk()) end end
  local problem
  chunk, problem = load_text(text)
  if chunk then return load_kept(text) or chunk end
  local statements, last = match(text, "^(.*;)%s*(.*)$") -- x = 3; x
  if statements and load_text(statements) and load_text("return nil, " .. last) then
    local first = load_kept(statements) or load_text(statements)
    chunk = load_text("return nil, " .. last)
    return function()
      first()
      return select(2, chunk())
    end
  end
  if find(problem .. as_expression, "unfinished string near", 1, true) and not find(text, "\\$")
    and not find(text, "\\z%s*$") then
    return nil, problem -- strings end on their line
  end
  local of, name = match(sub(text, -CALL), "([%w_%]%)]*):%s*([%a_][%w_]*)%s*$")
  if name and find(problem .. as_expression, "function arguments expected near '<eof>'", 1, true) then
    if not find(of, "^[%a_]") then of = "…" end
    return nil, ("%s:%s: %s:%s() calls a method, %s.%s is a field"):format(of, name, of, name, of, name)
  end
  local eof = "near '<eof>'"
  if find(as_expression, eof, 1, true) or find(problem, eof, 1, true) then return nil, true end
  return nil, problem
end

local SMALL = 1024 -- bytes that are compiled after every line, so that an error is reported at once
local MOST = 4 * 1024 * 1024 -- bytes compiled of a chunk that does not end

--- Lines until a chunk is complete: its text, and the compiled function or nil and what is wrong. nil at the end of
--- input; Ctrl-C drops what there is. read(prompt): the next line, as line_editing.lua has it, or several that were
--- recalled from the history.
---
--- A long chunk whose tokens say that it is unfinished is compiled only when it has doubled, so that the work is in
--- proportion to its length; one that is unfinished where its tokens do not say so is refused before it takes long.
return function(read)
  local text, interrupted = read "> "
  if not text then return interrupted and "" or nil end
  if find(text, "^%s*%?") or find(text, "^%s*:%a") or find(text, "^%s*$") then return text end
  local lines, scan, size, due, compiled = {text}, incomplete_chunk(), #text, 0, 0
  local function look(at_lines)
    for each in gmatch(at_lines .. "\n", "(.-)\n") do scan:line(each) end
  end
  look(text)
  while true do
    if size <= SMALL or size >= due or not scan:incomplete_chunk() then
      text = concat(lines, "\n")
      local chunk, more = compile(text)
      if chunk or more ~= true then return text, chunk, more end
      due, compiled = 2 * size, compiled + size
      if compiled > max(MOST, 8 * size) then
        return text, nil, "the chunk has too many lines that may be its last; put it in a file and run that"
      end
    end
    local next_line
    next_line, interrupted = read ">> "
    if interrupted then return "" end
    if not next_line then return concat(lines, "\n"), nil, "unfinished chunk" end
    lines[#lines + 1], size = next_line, size + #next_line + 1
    look(next_line)
  end
end
