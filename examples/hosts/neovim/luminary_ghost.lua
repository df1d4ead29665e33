-- Completes text in Neovim by a language model, which computes on a worker thread.
--
--   :lua dofile("PATH/luminary_ghost.lua").setup {model = "model.gguf"}
--   <Tab> in insert mode takes the text that is shown behind the cursor; typing cancels it
local ghost = {}

local loop = vim and (vim.uv or vim.loop)
local DELAY, PERIOD = 100, 15 -- milliseconds from the last key to a request, and between two looks for pieces of text
local LINES = 40 -- the model reads 40 to 80 lines before the cursor; their beginning moves rarely, so that it continues

local lm, settings, delay, poll, current -- current: the request whose text is shown
local open = 0 -- number of calls of the worker
local namespace = vim and vim.api.nvim_create_namespace "luminary_ghost"

-- Runs on the worker, where the model stays loaded.
local function answer(...) return require("luminary").chat.answer(...) end

local function cancel()
  delay:stop()
  if not current then return end
  current.future:cancel() -- one that runs ends after its next token
  vim.api.nvim_buf_clear_namespace(current.buffer, namespace, 0, -1)
  current = nil
end

local function show(request)
  local lines = {}
  for line in (request.text .. "\n"):gmatch "(.-)\n" do lines[#lines + 1] = {{vim.fn.strtrans(line), "Comment"}} end
  request.id = vim.api.nvim_buf_set_extmark(request.buffer, namespace, request.row - 1, request.column, {
    id = request.id, virt_text = table.remove(lines, 1), virt_text_pos = "overlay", virt_lines = lines,
  })
end

local function receive(request, piece)
  if current ~= request then return false end
  request.text = request.text .. piece
  show(request)
end

local function finish(future)
  open = open - 1
  if open == 0 then poll:stop() end
  local problem = not future:cancelled() and future:exception()
  if problem then vim.notify("luminary: " .. problem, vim.log.levels.ERROR) end
end

-- Calls the model on the worker; returns the future. lm.poll runs its functions.
local function call(text, options)
  open = open + 1
  poll:start(PERIOD, PERIOD, vim.schedule_wrap(lm.poll))
  return lm.async(answer, settings.model, text, options):on_done(finish)
end

-- Asks the model for the text after the cursor, at the end of a line.
local function ask()
  if vim.fn.mode() ~= "i" then return end
  local row, column = unpack(vim.api.nvim_win_get_cursor(0))
  local lines = vim.api.nvim_buf_get_lines(0, math.max(0, math.floor(row / LINES) * LINES - LINES), row, false)
  local text = table.concat(lines, "\n")
  if column < #lines[#lines] or not text:find "%S" then return end
  local request = {text = "", row = row, column = column, buffer = vim.api.nvim_get_current_buf()}
  current = request
  request.future = call(text, settings.options):on_part(function(piece) return receive(request, piece) end)
end

local function changed()
  cancel()
  if lm then delay:start(DELAY, 0, vim.schedule_wrap(ask)) end
end

local function accept()
  if not (current and current.text ~= "") then
    return vim.api.nvim_feedkeys(vim.api.nvim_replace_termcodes("<Tab>", true, false, true), "in", false)
  end
  local lines = vim.split(current.text, "\n", {plain = true})
  cancel()
  vim.api.nvim_put(lines, "c", true, true)
end

--- Returns the text that is shown, or nil.
function ghost.shown() return current and current.text ~= "" and current.text or nil end

--- Starts it. opts: model, the path of a GGUF file or a folder; options, those of lm.chat.answer; ready, a function
--- that is called when the model is loaded. What takes long runs on a thread of libuv or is spread over turns of the
--- loop.
function ghost.setup(opts)
  settings = opts
  settings.options = opts.options or {max_new_tokens = 32, temperature = 0}
  delay, poll = loop.new_timer(), loop.new_timer()
  vim.api.nvim_create_autocmd({"TextChangedI", "CursorMovedI"}, {callback = changed})
  vim.api.nvim_create_autocmd({"InsertLeave", "BufLeave", "VimLeavePre"}, {callback = cancel})
  vim.keymap.set("i", "<Tab>", accept)
  local steps = { -- each takes 1 or 2 ms
    "luminary.core", "luminary.base.options", "luminary.tensor.methods", "luminary", "luminary.base.class",
    "luminary.mp.serialization", "luminary.mp.executor", "luminary.async",
    -- The editor comes first.
    function() require("luminary").set_async {workers = 1, nice = 10} end,
    function()
      lm = require "luminary"
      call(" ", {max_new_tokens = 1}):on_done(settings.ready or function() end) -- loads the model
    end,
  }
  local function load(i)
    if type(steps[i]) == "string" then require(steps[i]) else steps[i]() end
    if steps[i + 1] then vim.defer_fn(function() load(i + 1) end, 1) end
  end
  local ends, loaded = loop.pipe({nonblock = true}, {nonblock = true}), loop.new_pipe(false)
  loaded:open(ends.read)
  loaded:read_start(vim.schedule_wrap(function()
    if loaded:is_closing() then return end
    loaded:close()
    load(1)
  end))
  loop.new_thread(function(path, cpath, fd)
    package.path, package.cpath = path, cpath
    pcall(require, "luminary.core")
    vim.loop.fs_close(fd)
  end, package.path, package.cpath, ends.write)
end

return ghost
