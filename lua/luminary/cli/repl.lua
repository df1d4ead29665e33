--- The prompt. A line is tried as an expression first, whose values are printed; an incomplete chunk goes
--- on with the next line. Errors and Ctrl-C leave the prompt running.
local lm = require "luminary"
local core = require "luminary.core"
local cli = require "luminary.cli"
local line = require "luminary.cli.line"

local repl = {}

-- A compiled loop would not see Ctrl-C: what is typed here is interpreted.
local function load_text(text)
  local chunk, problem = loadstring(text, "=prompt")
  if chunk then jit.off(chunk, true) end
  return chunk, problem
end

-- A chunk, or nil and the message, or nil and `true` where more lines are wanted. An expression is not
-- returned as it stands: a tail call would be no level of its own, and errors blame a level.
local function compile(text)
  local expression = text:match("^%s*=(.*)$") or text
  local chunk, as_expression = load_text("return nil, " .. expression)
  if chunk then return function() return select(2, chunk()) end end
  local problem
  chunk, problem = load_text(text)
  if chunk then return chunk end
  for _, what in ipairs {as_expression, problem} do
    if what:find("near '<eof>'", 1, true) then return nil, true end
  end
  return nil, problem
end

local function print_values(ok, ...)
  if not ok then
    print((...))
    return
  end
  for i = 1, select("#", ...) do print(lm.repr((select(i, ...)))) end
  if select("#", ...) > 0 then rawset(_G, "_", (...)) end
end

local function evaluate(chunk, guarded)
  print_values(guarded(function() return xpcall(chunk, cli.traceback) end))
end

--- What `?name` prints: an op's signature and what it does, or the names that come near.
function repl.help(name)
  name = name:match("([%w_]+)%s*$") or ""
  if name == "" then return "?name explains an op: ?conv2d. There are\n" .. table.concat(core.op_list(), " ") end
  local text = core.help(name)
  if text then return text end
  local near = core.nearest(name, core.op_list())
  return ("no op '%s'%s"):format(name, near and "; did you mean ?" .. near or "")
end

-- Lines until a chunk is whole. nil at the end of input.
local function read_chunk(read)
  local text = read("> ")
  if not text then return nil end
  if text:find("^%s*%?") or text:find("^%s*$") then return text end
  while true do
    local chunk, more = compile(text)
    if chunk or more ~= true then return text, chunk, more end
    local next_line = read(">> ")
    if not next_line then return text, nil, "unfinished chunk" end
    text = text .. "\n" .. next_line
  end
end

--- Runs the prompt to the end of input; gives the exit status.
function repl.run()
  rawset(_G, "lm", lm)
  local read, remember = line.reader()
  local guarded = line.guard()
  print(("luminary %s, %s. ?name explains an op, Ctrl-D leaves."):format(lm.version, jit.version))
  while true do
    local text, chunk, problem = read_chunk(read)
    if not text then break end
    if text:find("%S") then remember((text:gsub("\n", " "))) end
    if chunk then
      evaluate(chunk, guarded)
    elseif problem then
      print(problem)
    elseif text:find("%S") then
      print(repl.help(text))
    end
  end
  print()
  return 0
end

return repl
