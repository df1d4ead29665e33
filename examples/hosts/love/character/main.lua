-- A character that answers by a language model, which computes on a worker thread while the game runs.
--   love examples/hosts/love/character model.gguf              type and press Return; Escape interrupts it
--   love examples/hosts/love/character model.gguf --say Hello  says that, prints the answer and the frames, and ends
local lm = require "luminary"
local utf8 = require "utf8"

local OPTIONS = {temperature = 0.7, max_new_tokens = 120}
local messages = {{role = "system", content = "You are Pip, a small robot. Answer in one or two short sentences."}}
local path, said -- arguments
local typed, bubble, future = "", "", nil
local frames, longest, longest_poll = 0, 0, 0 -- while an answer was generated; in seconds

local function say(text)
  messages[#messages + 1] = {role = "user", content = text}
  bubble, future = "", lm.async(lm.chat.answer, path, messages, OPTIONS)
  future:on_part(function(piece) bubble = bubble .. piece:gsub("%c", " ") end):on_done(function(done)
    future = nil
    local problem = done:exception()
    local answer = problem or done:get()
    if problem then bubble = problem else messages[#messages + 1] = {role = "assistant", content = answer} end
    if not said then return end
    print(answer)
    print(("%d frames while it answered, the longest %.1f ms; lm.poll %.2f ms at most"):format(frames, longest * 1e3,
      longest_poll * 1e3))
    love.event.quit(problem and 1 or 0)
  end)
end

function love.load(arguments)
  path = arguments[1]
  if not path then
    print "usage: love examples/hosts/love/character MODEL [--say TEXT]"
    return love.event.quit(2)
  end
  if arguments[2] == "--say" then said = arguments[3] end
  love.keyboard.setKeyRepeat(true)
  lm.set_async {workers = 1, nice = 10} -- the window comes first
  future = lm.async(lm.chat.answer, path, " ", {max_new_tokens = 1}) -- loads the model
  future:on_done(function(done)
    future, bubble = nil, done:exception() or "Hello!"
    if said then say(said) end
  end)
end

function love.update(dt)
  local before = love.timer.getTime()
  lm.poll() -- appends the pieces of text that have come
  if future and #messages > 1 then
    frames, longest = frames + 1, math.max(longest, dt)
    longest_poll = math.max(longest_poll, love.timer.getTime() - before)
  end
end

function love.textinput(text) typed = typed .. text end

function love.keypressed(key)
  if key == "backspace" and typed ~= "" then
    typed = typed:sub(1, utf8.offset(typed, -1) - 1)
  elseif key == "return" and typed ~= "" and not future then
    say(typed)
    typed = ""
  elseif key == "escape" and future then
    future:cancel() -- the answer ends as far as it came
  end
end

function love.draw()
  local t = love.timer.getTime()
  love.graphics.clear(0.93, 0.95, 1)
  love.graphics.setColor(0.25, 0.5, 0.75)
  love.graphics.rectangle("fill", 60, 200 + 4 * math.sin(3 * t), 120, 120, 20)
  love.graphics.setColor(1, 1, 1)
  for _, x in ipairs {95, 145} do love.graphics.circle("fill", x, 240 + 4 * math.sin(3 * t), 12) end
  local mouth = future and 6 + 5 * math.sin(20 * t) or 2 -- moves while it speaks
  love.graphics.ellipse("fill", 120, 285 + 4 * math.sin(3 * t), 20, mouth)
  love.graphics.rectangle("fill", 210, 30, 560, 270, 12)
  love.graphics.setColor(0, 0, 0)
  love.graphics.printf(bubble == "" and future and "…" or bubble, 225, 45, 530)
  love.graphics.print("> " .. typed .. (t % 1 < 0.5 and "_" or ""), 60, 350)
end
