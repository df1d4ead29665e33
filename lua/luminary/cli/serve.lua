--- Runs `luminary serve FILE`: answers requests of OpenAI's API with a language model.
local USAGE = [[
usage: luminary serve FILE [option ...]

Answers requests of OpenAI's API at http://HOST:PORT/v1 with the language model of a GGUF file or of a folder as Hugging
Face has them: /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/models, /health, /metrics (for Prometheus).
Needs GNU libmicrohttpd (on Debian: libmicrohttpd-dev). SIGTERM ends it after the answers that are open.

  --host ADDRESS       IPv4 address to listen at                            (127.0.0.1)
  --port P             port to listen at; 0: a free one                     (8080)
  --name NAME          the model's name in requests                         (FILE's last part)
  --dtype NAME         of the weights: float32, bfloat16, float16           (as in FILE)
  --device DEVICE      such as cpu or cuda:0                                (cpu)
  --max-tokens N       positions of all conversations' keys and values      (8192)
  --max-sequences N    conversations computed at once                       (16)
  --threads N          compute threads                                      (all cores)
  --end-seconds S      that open answers have after SIGTERM                 (30)
  --help               print this

Exit code: 0, 1 if the model cannot be read or the port is taken, 2 for wrong usage.
]]

local flags = require "luminary.cli.command_options"
local options = require "luminary.base.options"

local serve = {}

--- Runs the command on the arguments from `first` on; returns the exit status.
function serve.main(args, first)
  local rows = {dtype = {"text", "auto"}, device = {"text"}, threads = {"count"}, name = {"text"}}
  local files = {}
  local o, code = flags.read("serve", USAGE, args, first, rows, flags.one_file, files)
  if not o then return code end
  local ok, why = pcall(function()
    local server = require("luminary").serve.OpenAI(files[1], {
      name = o.name, dtype = o.dtype, device = o.device, threads = o.threads,
      engine = {max_tokens = o["max-tokens"], max_sequences = o["max-sequences"]},
    })
    require("luminary.serve.http").serve(server, {
      host = o.host, port = o.port, seconds = o["end-seconds"], on_start = function(port)
        server:check()
        print(("%s at http://%s:%d/v1"):format(server.name, o.host, port))
        io.stdout:flush()
      end,
    })
    server:close(1)
  end)
  if ok then return 0 end
  io.stderr:write("luminary serve: ", (options.without_position(why):gsub("^serve: ", "")), "\n")
  return 1
end

return serve
