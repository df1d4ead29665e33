--- Reads a chunk at the prompt, of one line or several.
local hints = require "luminary.cli.error_hints"
local incomplete_chunk = require "luminary.cli.incomplete_chunk"

local load, select, concat, max = load, select, table.concat, math.max
local find, gmatch, match, sub = string.find, string.gmatch, string.match, string.sub

local CALL = 200 -- bytes in which a call at the end of a chunk is searched, by a quadratic pattern

local function load_text(text) return load(text, "=prompt", "t") end

-- Compiles an input that begins with `local`, whose variable would end with the input, so that it makes a global; nil
-- for other inputs.
local function load_kept(text)
  local blank, rest = match(text, "^(%s*)local(%s.*)$")
  if not rest then return nil end
  return load_text(blank .. rest) or load_text(blank .. rest .. "\n= nil")
end

-- Compiles a text. Returns a chunk, or nil and the message, or nil and `true` if more lines are needed. An expression
-- is not returned by a tail call, which has no stack level that errors could name.
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
  local more = find(as_expression, eof, 1, true) or find(problem, eof, 1, true)
  if more and not hints.block(match(text, "[^\n]*")) then return nil, true end
  return nil, find(text, "^%s*[%a_(]") and problem or as_expression -- a statement's would blame the 2 of 2 * x // 3
end

local SMALL = 1024 -- bytes that are compiled after every line, so that errors show at once
local MOST = 4 * 1024 * 1024 -- bytes of an incomplete chunk to compile at most

--- Reads lines until a chunk is complete. Returns its text, and the compiled function or nil and the error; nil at the
--- end of input. Ctrl-C drops the lines so far. read(prompt) returns the next line, as line_editing.lua does, or
--- several recalled from the history.
---
--- A long chunk with incomplete tokens is compiled only when its length has doubled, so that the total work is linear;
--- a long incomplete chunk whose tokens look complete is refused before it takes long.
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
    next_line, interrupted = read(find(lines[#lines], "%S") and ">> " or ">> (Ctrl-C drops this input) ")
    if interrupted then return "" end
    if not next_line then return concat(lines, "\n"), nil, "unfinished chunk" end
    lines[#lines + 1], size = next_line, size + #next_line + 1
    look(next_line)
  end
end
