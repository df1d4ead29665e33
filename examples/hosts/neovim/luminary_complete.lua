-- Completes text in Neovim by a small network over bytes (luminary_bytes.lua), which learns from the open file. It is
-- made, computes, trains and is saved on worker threads.
--
--   :lua require("luminary_complete").setup()
--   :LuminaryTrain [STEPS]      learns from the buffer; the completions improve meanwhile
--   :LuminaryCancel             ends the training; what it learned remains
--   <C-l> in insert mode        takes the completion that is shown behind the cursor
local complete = {}

local loop = vim and (vim.uv or vim.loop)
local folder = debug.getinfo(1, "S").source:match "^@(.*/)" or "./"
if not package.path:find(folder .. "?.lua", 1, true) then package.path = folder .. "?.lua;" .. package.path end

local BYTES = 20 -- the most that a completion has
local SECONDS = 0.05 -- the length of one call, after which newer keystrokes are looked at
local PROGRESS = 250 -- milliseconds between two messages

local lm, on_done, settings, model, training
local asked, busy, shown -- the request of the latest keystroke; whether a call is open; the text behind the cursor
local namespace = vim and vim.api.nvim_create_namespace "luminary"

--- Calls a function of luminary_bytes; runs on a worker thread.
function complete.call(name, ...) return require("luminary_bytes")[name](...) end

-- Calls a function of luminary_bytes on a worker thread, and then `after` with its results, in Neovim's loop.
local function in_background(after, name, ...)
  on_done(lm.async(complete.call, name, ...), function(future)
    local problem = future:exception()
    if problem then vim.notify("luminary: " .. problem, vim.log.levels.ERROR) end
    after(not problem, future)
  end)
end

-- ---- completions

local function clear()
  shown = nil
  vim.api.nvim_buf_clear_namespace(0, namespace, 0, -1)
end

local function show(text)
  clear()
  if text == "" then return end
  local row, column = unpack(vim.api.nvim_win_get_cursor(0))
  shown = text
  vim.api.nvim_buf_set_extmark(0, namespace, row - 1, column, {
    virt_text = {{vim.fn.strtrans(text), "Comment"}}, virt_text_pos = "overlay",
  })
end

-- Sends the latest request, unless a call is open: its end sends the next. A call lasts about SECONDS and shows what it
-- found; the next continues it, or begins with the text of a newer keystroke.
local function request()
  if busy or not (asked and model) then return end
  local query = asked
  busy = true
  in_background(function(ok, future)
    busy = false
    if not ok then asked = nil end
    if asked ~= query then return request() end
    local text, more = future:get()
    if text ~= query.shown then
      query.shown = text
      show(text)
    end
    if more then request() end
  end, "continued", model, query.text, query.shown, BYTES, SECONDS)
end

-- Asks for a completion of the last 32 to 63 bytes before the cursor. Their beginning moves rarely, so that the network
-- can continue.
local function ask()
  local row, column = unpack(vim.api.nvim_win_get_cursor(0))
  local lines = vim.api.nvim_buf_get_lines(0, math.max(0, row - 8), row, false)
  if #lines == 0 then return end
  lines[#lines] = lines[#lines]:sub(1, column)
  local offset = vim.api.nvim_buf_get_offset(0, math.max(0, row - 8))
  local text = table.concat(lines, "\n")
  text = text:sub(math.max(0, math.floor((offset + #text) / 32) * 32 - 32 - offset) + 1)
  if asked and asked.text == text then return end
  clear()
  asked = #text > 0 and {text = text, shown = ""} or nil
  request()
end

local function forget()
  asked = nil
  clear()
end

--- Returns the completion that is shown, or nil.
function complete.shown() return shown end

-- ---- training

local function say(text) vim.api.nvim_echo({{"luminary: " .. text}}, false, {}) end

-- Asks again after the weights changed; workers drop what they computed with the weights before.
local function refresh()
  model.trained = model.trained + 1
  if asked then asked = {text = asked.text, shown = ""} end
  request()
end

--- Learns from the buffer; calls `after`, if given, with the steps done and the last loss.
function complete.train(steps, after)
  local text = table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), "\n")
  if not model then return say "the network is not ready yet" end
  if training then return say "a training runs already; :LuminaryCancel ends it" end
  if #text < 8 then return say "the buffer is too short to learn from" end
  steps = steps or 200
  local control, timer, reported = lm.zeros({3}, {dtype = "float64"}), loop.new_timer(), 0
  training = control
  timer:start(PROGRESS, PROGRESS, vim.schedule_wrap(function()
    if training ~= control or control[1] == reported then return end
    reported = control[1]
    say(("step %d of %d, loss %.3f"):format(reported, steps, control[2]))
    refresh()
  end))
  in_background(function()
    timer:close()
    training = nil
    say(("learned for %d steps, loss %.3f"):format(control[1], control[2]))
    refresh()
    if after then after(control[1], control[2]) end
  end, "train", model, text, steps, control, settings.path)
end

--- Ends the training after its current step. Returns the steps done, or nil if there is none.
function complete.cancel()
  if not training then return nil end
  training[3] = 1
  return training[1]
end

-- ---- starting

-- Loads the library on a thread of libuv, then runs steps one by one, each in a turn of the loop of its own.
local function run_in_turns(steps)
  local function run(i)
    steps[i]()
    if steps[i + 1] then vim.defer_fn(function() run(i + 1) end, 1) end
  end
  local ends, loaded = loop.pipe({nonblock = true}, {nonblock = true}), loop.new_pipe(false)
  loaded:open(ends.read)
  loaded:read_start(vim.schedule_wrap(function()
    if loaded:is_closing() then return end
    loaded:close()
    run(1)
  end))
  loop.new_thread(function(path, cpath, fd)
    package.path, package.cpath = path, cpath
    pcall(require, "luminary.core")
    vim.loop.fs_close(fd) -- the other end reads that it is closed; a signal by new_async could make the loop spin
  end, package.path, package.cpath, ends.write)
end

--- Starts it. opts: width (256) and layers (6) of the network; path, a file of weights, which trainings write; ready, a
--- function to call when the network is there.
function complete.setup(opts)
  settings = opts or {}
  vim.api.nvim_create_autocmd({"TextChangedI", "CursorMovedI"}, {callback = ask})
  vim.api.nvim_create_autocmd("InsertLeave", {callback = forget})
  vim.api.nvim_create_autocmd("VimLeavePre", {callback = complete.cancel})
  vim.api.nvim_create_user_command("LuminaryTrain", function(command)
    complete.train(tonumber(command.args))
  end, {nargs = "?"})
  vim.api.nvim_create_user_command("LuminaryCancel", complete.cancel, {})
  vim.keymap.set("i", "<C-l>", function()
    if shown then vim.api.nvim_put({shown}, "c", true, true) end
  end)
  run_in_turns {
    function() lm = require "luminary" end,
    function() on_done = require("luminary.serve.neovim").on_done end,
    function() return lm.async end, -- loaded at its first use
    -- One learns, the other completes; both yield to the editor.
    function() lm.set_async {workers = 2, threads = 1, nice = 10} end,
    function()
      in_background(function(ok, future)
        model = ok and future:get()
        request()
        if ok and settings.ready then settings.ready() end
      end, "make", {width = settings.width or 256, layers = settings.layers or 6}, settings.path)
    end,
  }
end

return complete
