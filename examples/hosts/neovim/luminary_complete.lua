-- Completes text in Neovim by a small network over bytes, which learns from the open file. All that computes runs on
-- a worker thread: keystrokes do not wait.
--
--   :lua require("luminary_complete").setup()
--   :LuminaryTrain [STEPS]      learns from the buffer; the completions improve meanwhile
--   <C-l> in insert mode        takes the completion that is shown behind the cursor
local lm = require "luminary"
local nn = lm.nn
local on_done = require("luminary.serve.neovim").on_done

local complete = {}

local Bytes = nn.Module:extend "Bytes"

function Bytes:init(width)
  self.embedding = nn.Embedding(256, 64)
  self.gru = nn.GRU(64, width, {batch_first = true})
  self.scores = nn.Linear(width, 256)
end

--- Returns the scores of the next byte after each, [N, length, 256], and the state.
function Bytes:forward(ids, state)
  local y, new_state = self.gru(self.embedding(ids), state)
  return self.scores(y), new_state
end

local function ids_of(text) return lm.frombuffer(text, {dtype = "uint8"}):long() + 1 end

-- ---- on the worker thread

-- Returns up to `count` bytes that follow text, to the end of its line.
local function continued(net, text, count)
  return lm.no_grad(function()
    local scores, state = net(ids_of(text):unsqueeze(1))
    local bytes = {}
    for i = 1, count do
      local id = scores[1][-1]:argmax():item()
      if id == 11 then break end -- the end of a line
      bytes[i] = string.char(id - 1)
      scores, state = net(lm.tensor({{id}}, {dtype = "int64"}), state)
    end
    return table.concat(bytes)
  end)
end

-- Trains net on rows cut from text; returns the loss of the last step.
local function train(net, text, steps)
  local ids, length, rows, loss = ids_of(text), 64, 8, nil
  local optimizer = lm.optim.Adam(net:parameters(), {lr = 3e-3})
  for _ = 1, steps do
    local starts, parts = lm.randint(1, math.max(2, #ids - length), {rows}):totable(), {}
    for i, start in ipairs(starts) do parts[i] = ids:narrow(1, start, math.min(length + 1, #ids - start + 1)) end
    local batch = lm.stack(parts)
    local n = batch.shape[2] - 1
    loss = nn.functional.cross_entropy(net(batch:narrow(2, 1, n)):flatten(1, 2), batch:narrow(2, 2, n):flatten())
    optimizer:zero_grad()
    loss:backward()
    optimizer:step()
  end
  return loss:item()
end

-- ---- in the editor

local net, waiting, shown, stop_waiting
local namespace = vim and vim.api.nvim_create_namespace "luminary"

local function clear()
  shown = nil
  vim.api.nvim_buf_clear_namespace(0, namespace, 0, -1)
end

-- Shows a completion behind the cursor.
local function show(text)
  local row, column = unpack(vim.api.nvim_win_get_cursor(0))
  clear()
  if text == "" then return end
  shown = text
  vim.api.nvim_buf_set_extmark(0, namespace, row - 1, column, {
    virt_text = {{text, "Comment"}}, virt_text_pos = "overlay",
  })
end

-- Asks for a completion of the text before the cursor; a newer keystroke drops an older answer.
local function ask()
  clear()
  if stop_waiting then stop_waiting() end
  if waiting then waiting:cancel() end
  local row, column = unpack(vim.api.nvim_win_get_cursor(0))
  local lines = vim.api.nvim_buf_get_lines(0, math.max(0, row - 4), row, false)
  if #lines == 0 then return end
  lines[#lines] = lines[#lines]:sub(1, column)
  local text = table.concat(lines, "\n")
  if #text == 0 then return end
  waiting = lm.async(continued, net, text, 20)
  stop_waiting = on_done(waiting, function(future)
    if future == waiting and not future:exception() then show(future:get()) end
  end)
end

--- Learns from the buffer; calls `after` with the loss, if given.
function complete.train(steps, after)
  local text = table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), "\n")
  if #text < 8 then return vim.notify "luminary: the buffer is too short to learn from" end
  on_done(lm.async(train, net, text, steps or 200), function(future)
    vim.notify(future:exception() or ("luminary: loss %.3f"):format(future:get()))
    if after then after(future) end
  end)
end

--- Returns the completion that is shown, or nil.
function complete.shown() return shown end

--- Starts it. width: numbers in the network's state.
function complete.setup(width)
  lm.set_async {workers = 2} -- one learns, the other completes
  lm.manual_seed(0)
  net = Bytes(width or 256)
  vim.api.nvim_create_autocmd({"TextChangedI", "CursorMovedI"}, {callback = ask})
  vim.api.nvim_create_autocmd("InsertLeave", {callback = clear})
  vim.api.nvim_create_user_command("LuminaryTrain", function(command)
    complete.train(tonumber(command.args))
  end, {nargs = "?"})
  vim.keymap.set("i", "<C-l>", function()
    if shown then vim.api.nvim_put({shown}, "c", true, true) end
  end)
end

return complete
