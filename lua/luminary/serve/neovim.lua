--- Runs functions in Neovim, or any host with luv, when futures of lm.async and lm.serve end; keystrokes never wait.
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"

local neovim = {}

--- on_done(future, fn): Calls fn(future) from the event loop after the call's end, where all of vim's functions may be
--- called; future:get() then returns at once, or raises the call's error. Returns a function that stops the waiting.
function neovim.on_done(future, fn)
  local vim = rawget(_G, "vim")
  local loop = vim and (vim.uv or vim.loop) or package.loaded.luv
  if not loop then options.fail "neovim.on_done: there is no event loop of luv in this process; use future:get()" end
  options.arg("neovim.on_done", "fn", fn, "function")
  load_module("luminary.mp.executor").need_future("neovim.on_done", future)
  local poll = loop.new_poll(future:fileno())
  local function stop()
    if poll and not poll:is_closing() then
      poll:stop()
      poll:close()
    end
    poll = nil
  end
  local function run()
    if not poll then return end
    stop()
    fn(future)
  end
  poll:start("r", vim and vim.schedule_wrap(run) or run)
  return stop
end

return options.strict("serve.neovim", neovim)
