--- watch.progress: Draws progress bars: one line that is redrawn on a terminal, plain lines elsewhere.
local core = require "luminary.core"
local characters = require "luminary.base.characters"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local rank_and_size = require "luminary.base.rank_and_size"
local signature = require "luminary.base.signature"
local terminal = require "luminary.base.terminal"

local progress = {}

--- Returns whether standard output is a terminal.
function progress.on_terminal() return terminal.is_terminal() end

--- Formats seconds as 1:15 or 1:01:40.
function progress.duration(seconds)
  seconds = math.floor(seconds + 0.5)
  local hours, minutes = math.floor(seconds / 3600), math.floor(seconds / 60) % 60
  if hours > 0 then return ("%d:%02d:%02d"):format(hours, minutes, seconds % 60) end
  return ("%d:%02d"):format(minutes, seconds % 60)
end

local Progress = class.root("Progress")
local WIDTH, EVERY = 20, 0.1 -- characters of the bar, seconds between two drawings

--- Creates a bar; `done` steps were made before (a resumed run) and do not count in the estimate of time left.
Progress.init = signature.of([[Progress(total: natural?, {done: natural = 0, desc = "", lines_every: positive = 10,
  disable = false})]], function(self, total, opts)
  self.total, self.skipped, self.done, self.desc = total, opts.done, opts.done, opts.desc
  self.lines_every, self.text = opts.lines_every, ""
  self.began, self.drawn = core.time(), 0
  local shown = not opts.disable and rank_and_size() == 0 -- the first of several ranks shows bars, for all
  self.visible = shown and progress.on_terminal()
  self.in_lines = shown and not self.visible
  if self.in_lines then self.drawn = self.began end -- the first line appears after lines_every
end)

-- Returns the seconds until all steps are made at the rate so far, or nil.
local function seconds_left(self, now)
  local steps = self.done - self.skipped
  if not self.total or steps <= 0 then return nil end
  return (now - self.began) / steps * math.max(self.total - self.done, 0)
end

-- Returns a value's text after the bar: "loss=0.123".
local function shown(value)
  if core.is_tensor(value) then value = value:item() end
  return type(value) == "number" and ("%.4g"):format(value) or tostring(value)
end

-- Returns the text after the bar. Only this reads tensors, which waits for a GPU.
local function text_of(self)
  if not self.values then return self.text end
  local names = options.sorted_keys(self.values)
  return table.concat(lists.map(names, function(name) return name .. "=" .. shown(self.values[name]) end), " ")
end

-- Returns the text that follows the bar: count, time, and the user's text, which a narrow terminal cuts first.
local function state(self, now)
  local left, parts = seconds_left(self, now), {}
  parts[1] = self.total and ("%d/%d"):format(self.done, self.total) or tostring(self.done)
  parts[2] = self.total and progress.duration(left or 0) .. " left" or progress.duration(now - self.began)
  local text = text_of(self)
  if text ~= "" then parts[3] = text end
  return table.concat(parts, "  ")
end

-- Returns the line; the bar is as long as the rest of the line allows.
local function line_of(self, now)
  local desc, after = self.desc ~= "" and self.desc .. " " or "", state(self, now)
  if not self.visible then return desc .. after end
  desc, after = desc:gsub("%c", " "), after:gsub("%c", " ") -- keeps one line
  local columns, bar = terminal.size() - 1, ""
  local width = math.min(WIDTH, columns - characters.columns(desc .. after) - 3)
  if self.total and width > 0 then
    local part = self.total > 0 and math.min(self.done / self.total, 1) or 1
    local filled = math.floor(part * width)
    bar = ("[%s%s] "):format(("#"):rep(filled), ("."):rep(width - filled))
  end
  return characters.first_columns(desc .. bar .. after, columns)
end

local function write_stdout(...)
  io.stdout:write(...)
  io.stdout:flush()
end

-- Erases the bar from its first character, where the cursor waits: if a narrowed terminal wraps it, all rows are below.
local ERASE = "\r\27[J"

-- Wraps print while a bar is on the screen: it removes the bar, which is drawn again, below, when it changes. A print
-- that the script replaced is not wrapped.
local on_screen, print = nil, print

local function print_above(...)
  if on_screen then
    on_screen.drawn = 0
    on_screen:clear()
  end
  return print(...)
end

local function draw_bar(self, now)
  write_stdout(ERASE, line_of(self, now), "\r")
  self.shown, on_screen = true, self
  if rawget(_G, "print") == print then rawset(_G, "print", print_above) end
end

--- Shows that `done` steps of the total are made, with text after the bar. A complete bar stays as a line.
Progress.update = signature.of("update(done: natural, text: string?)", function(self, done, text)
  self.done = done
  if text then self.text, self.values = text, nil end
  if not (self.visible or self.in_lines) then return end
  local now, complete = core.time(), self.total ~= nil and done >= self.total
  if complete and self.completed then return end
  if not complete and now - self.drawn < (self.visible and EVERY or self.lines_every) then return end
  if self.visible and not complete then
    draw_bar(self, now)
  else
    self:clear()
    write_stdout(line_of(self, now), "\n")
  end
  self.completed, self.drawn = complete, now
end)

--- Shows that one more step is made, or n.
Progress.advance = signature.of("advance(n: natural = 1, text: string?)", function(self, n, text)
  self:update(self.done + n, text)
end)

--- Sets what is shown after the bar: a table of names and values. Tensors of one element are read when the bar is
--- drawn.
Progress.set_postfix = signature.of("set_postfix(values: table)", function(self, values)
  self.values = {}
  for name, value in pairs(values) do
    self.values[options.arg("set_postfix", "a name", name, "string")] = core.is_tensor(value)
      and core.keep(value:detach()) or value
  end
end)

--- Iterates as `iterator` does, and counts a step for each iteration; an incomplete bar is removed at the end.
---   for x, y in bar:over(loader:epoch(1)) do … end
function Progress:over(iterator, of, control)
  options.arg("over", "iterator", iterator, "callable")
  local is_first = true
  local function clear_at_end(first, ...)
    if first == nil then self:clear() end
    control = first
    return first, ...
  end
  return function()
    if is_first then is_first = false else self:advance(1) end
    return clear_at_end(iterator(of, control))
  end
end

--- Prints a line, above the bar.
function Progress:write(text)
  if not (self.visible or self.in_lines) then return end
  local was_shown = self.shown
  self:clear()
  write_stdout(tostring(text), "\n")
  if was_shown then draw_bar(self, core.time()) end
end

--- Removes the bar.
function Progress:clear()
  if not self.shown then return end
  write_stdout(ERASE)
  self.shown = false
  if on_screen == self then
    on_screen = nil
    if rawget(_G, "print") == print_above then rawset(_G, "print", print) end
  end
end

--- lm.watch.progress.new(total, {done = 0, desc = "", lines_every = 10, disable = false}): Creates a progress bar of
--- `total` steps, of which `done` were made before.
progress.new = Progress
return options.strict("watch.progress", progress)
