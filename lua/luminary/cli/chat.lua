--- Runs `luminary chat FILE`: a conversation with a language model at a terminal, or with the lines of standard input.
local COMMANDS = [[
  /clear          begin another conversation
  /system TEXT    begin another one with TEXT as its system message
  /help           print this
  /exit           leave, as Ctrl-D does; Ctrl-C stops an answer
]]
local USAGE = [[
usage: luminary chat FILE [option ...]

Talks with a language model: a GGUF file, or a folder of Hugging Face's with config.json, weights and tokenizer.json.
Each line is a message, whose answer appears as it is generated. Lines that begin with / are commands:

]] .. COMMANDS .. [[

  --system TEXT      the system message, which says how to answer
  --temperature X    0: always the likeliest token (as the model's files say, else 0.7)
  --top-p X          smallest probability of the set of likely tokens that is drawn from (as the files say, else 1)
  --top-k K          number of likely tokens that are drawn from; 0: all (as the files say, else 0)
  --seed K           of the random numbers (differs each time)
  --context N        most tokens of the conversation; the oldest turns are left out (the model's positions)
  --max-tokens N     of an answer (512, at most half of the context)
  --dtype NAME       float32, bfloat16 or float16 (as in the files)
  --device DEVICE    cpu, cuda or cuda:1 (cpu)
  --help             print this

Exit code: 0, 1 if the model cannot be loaded or an answer failed, 2 for wrong usage.
]]

local lm = require "luminary"
local core = require "luminary.core"
local flags = require "luminary.cli.command_options"
local line = require "luminary.cli.line_editing"
local options = require "luminary.base.options"

local chat = {}

-- Writes the answer to a message as it comes; one that is stopped stays as far as it came. Raises errors.
local function answer(talk, message, guarded)
  local pieces = {}
  local ok, problem = guarded(pcall, talk.say, talk, message, {on_text = function(piece)
    pieces[#pieces + 1] = piece
    io.stdout:write(core.printable(piece))
    io.stdout:flush()
  end})
  io.stdout:write "\n"
  if ok then return end
  if not tostring(problem):find("interrupted!", 1, true) then error(problem, 0) end
  if pieces[1] then
    talk:add({role = "user", content = message}):add {role = "assistant", content = table.concat(pieces)}
  end
end

-- Runs a command, or answers a message; returns false at the end of the conversation.
local function serve(talk, text, guarded)
  local name, rest = text:match "^/(%S*)%s*(.-)%s*$"
  if not core.is_utf8_text(text) then options.fail("the line is not UTF-8: '%s'", core.printable(text)) end
  if not name then
    if text:find "%S" then answer(talk, text, guarded) end
  elseif name == "clear" then
    talk:reset()
  elseif name == "system" then
    talk.messages = {rest ~= "" and {role = "system", content = rest} or nil}
  elseif name ~= "exit" then
    io.stdout:write(name == "help" and "" or ("no command '/%s'\n"):format(core.printable(name)), COMMANDS)
  end
  return name ~= "exit"
end

--- Runs the command on the arguments from `first` on; returns the exit status.
function chat.main(args, first)
  local files = {}
  local o, code = flags.read("chat", USAGE, args, first, {dtype = {"text"}, device = {"text"}}, flags.one_file, files)
  if not o then return code end
  local status, prompt = 0, line.is_terminal() and "> " or ""
  local function try(f, ...)
    local ok, result = pcall(f, ...)
    if ok then return result end
    io.stdout:flush()
    local problem = options.without_position(result):gsub("^[Cc]hat:?%w*: ", ""):gsub("max_new_tokens", "--max-tokens")
    io.stderr:write("luminary chat: ", (problem:gsub("larger context", "larger --context")), "\n")
    status = 1
  end
  if o.seed then lm.manual_seed(o.seed) end
  local talk = try(lm.chat, files[1], {
    system = o.system, context = o.context, dtype = o.dtype, device = o.device, top_p = o["top-p"], top_k = o["top-k"],
    max_new_tokens = o["max-tokens"], temperature = o.temperature,
  })
  if not talk then return 1 end
  local given = talk.net.generation_config or {}
  if not (o.temperature or given.temperature or given.do_sample ~= nil) then talk.options.temperature = 0.7 end
  local read, remember = line.reader(function() return {} end, "_chat")
  local guarded, quiet = line.guard()
  if prompt ~= "" then print "/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves." end
  repeat
    quiet()
    local text, is_interrupted = read(prompt)
    if text and text:find "%S" then remember(text) end
  until not text and not is_interrupted or text and try(serve, talk, text, guarded) == false
  if prompt ~= "" then print() end
  return status
end

return chat
