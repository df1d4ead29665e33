--- gnuplot: Runs scripts of the program gnuplot, and draws to the terminal or into a PNG or SVG file.
local core = require "luminary.core"
local characters = require "luminary.base.characters"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local read_file = require "luminary.base.read_file"
local run_command = require "luminary.base.run_command"
local terminal = require "luminary.base.terminal"

local gnuplot = {}

local LIMIT = 60 -- seconds for a drawing

--- Returns a text that gnuplot shows literally. All except letters and spaces are octal escapes, so that a text can
--- neither end the string nor contain commands or macros: '' in single quotes fails at the start of a string (5.4), and
--- a digit would continue an escape.
function gnuplot.quoted(text)
  local shown = printable_name((text:gsub("%s", " ")), 300)
  return '"' .. shown:gsub("[^%a ]", function(byte) return ("\\%03o"):format(byte:byte()) end) .. '"'
end
local quoted = gnuplot.quoted

--- Returns a list of tics, {text, …} at 0, 1, …, for gnuplot, which reads a tic's text as a format.
function gnuplot.tics(names)
  local list = {}
  for i, name in ipairs(names) do list[i] = ("%s %d"):format(quoted((name:gsub("%%", "%%%%"))), i - 1) end
  return "(" .. table.concat(list, ", ") .. ")"
end

--- Returns the commands that set the title and the labels of the axes. columns: the terminal's width, nil for a file. A
--- terminal omits text that is too wide or rotated: there the y label is above the axis.
function gnuplot.labels(opts, columns)
  local function shown(text) return quoted(columns and characters.first(text, columns - 12) or text) end
  local y = columns and "set label 1 %s at graph 0, graph 1 offset -4, 1" or "set ylabel %s"
  return ("set title %s%s\nset xlabel %s\n%s"):format(shown(opts.title), columns and " offset 0, 1" or "",
    shown(opts.xlabel), y:format(shown(opts.ylabel)))
end

-- The commands that select the output by a path's extension; without a path ("dumb"), characters.
local terminals = {
  dumb = function(size, mono)
    return ("set terminal dumb size %d, %d noenhanced %s"):format(size[1], size[2],
      not mono and terminal.has_color() and "ansi256" or "mono")
  end,
  png = function(size)
    return ([[
if (strstrt(GPVAL_TERMINALS, ' pngcairo ') > 0) {
  set terminal pngcairo size %d, %d noenhanced background rgb 'white'
} else {
  set terminal png size %d, %d noenhanced
}]]):format(size[1], size[2], size[1], size[2])
  end,
  svg = function(size)
    return ("set terminal svg size %d, %d dynamic noenhanced background rgb 'white'"):format(size[1], size[2])
  end,
}

-- Runs gnuplot on a script whose output is the file `out`.
local function run_gnuplot(who, program, script, path, out)
  core.write_pieces(path, {script}, who)
  -- The option -d ignores the user's settings, so that equal calls draw equal pictures. LD_PRELOAD, for an allocator or
  -- a sanitizer of this process, must not affect gnuplot.
  local result = run_command.run(program, {"gnuplot", "-d", path}, LIMIT, nil, "LD_PRELOAD")
  if result.timed_out then options.fail("%s: gnuplot did not finish within %d s", who, result.timed_out) end
  local picture = read_file(out) or ""
  if result.code ~= 0 or picture == "" then
    local reason = result.out:match "^.*line %d+: ([^\n]+)" or "exit code " .. result.code -- the last, after warnings
    options.fail("%s: gnuplot failed: %s", who, printable_name(reason, 300))
  end
  return picture
end

-- Returns the dumb terminal's text without its form feed and without empty ends.
local function trimmed(text)
  return text:gsub("\f", ""):gsub(" +\n", "\n"):gsub("^%s*\n", ""):match "^(.-)%s*$" .. "\n"
end

--- Draws a script into the file at a path, or without one on standard output. size: pixels, or columns and rows. mono:
--- true for no colors on the terminal.
function gnuplot.draw(who, path, size, lines, mono)
  local program = run_command.find("gnuplot", os.getenv "PATH" or "")
  if not program then
    options.fail("%s: cannot find the program gnuplot in PATH; install the package gnuplot-nox (Debian, Ubuntu) or "
      .. "gnuplot", who)
  end
  local script, out = os.tmpname(), os.tmpname()
  local text = ("set encoding utf8\n%s\nset output %s\n%s\n"):format(
    terminals[path and path:match("%.(%w+)$"):lower() or "dumb"](size, mono), quoted(out),
    table.concat(lines, "\n"))
  local ok, picture = pcall(run_gnuplot, who, program, text, script, out)
  os.remove(script)
  os.remove(out)
  if not ok then error(picture, 0) end
  if path then return core.write_pieces(path, {picture}, who) end
  io.stdout:write(trimmed(picture))
  io.stdout:flush()
end

return gnuplot
