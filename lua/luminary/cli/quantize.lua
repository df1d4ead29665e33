--- Runs `luminary quantize FROM OUT.gguf`: writes a language model with quantized weights as a GGUF file.
local USAGE = [[
usage: luminary quantize FROM OUT.gguf [option ...]

Writes a GGUF file of a language model, which Luminary and llama.cpp read. FROM is a folder as Hugging Face has it
(config.json, weights, tokenizer) or a GGUF file, best one of floats. Weights are rounded one by one, from the mapped
files: memory for the largest one as float32 suffices.

  --kind KIND     q4_k_m and q5_k_m mix kinds as llama.cpp does; others are the same for all matrices: q8_0, q4_0, q4_1,
                  q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs, mxfp4, bfloat16, float16, float32 (q4_k_m)
  --no-tokenizer  write no tokenizer, for a folder whose tokenizer is missing or has no form in GGUF
  --help          print this

Exit code: 0, 1 if the model cannot be read or written, 2 for wrong usage.
]]

local bytes_text = require "luminary.base.bytes_text"
local core = require "luminary.core"
local flags = require "luminary.cli.command_options"
local options = require "luminary.base.options"

local quantize = {}

local function write(from, to, o)
  local lm = require "luminary"
  local save_gguf = require "luminary.models.save_gguf"
  local net, tokenizer, bar
  if require("luminary.models.gguf").is(from) then
    net = lm.load(from, {mmap = true, keep_blocks = true})
  else
    net = require "luminary.models.load_net"("quantize", from, {assign = true})
    local ok, found = pcall(lm.text.Tokenizer, not o["no-tokenizer"] and from or "")
    if not (ok or o["no-tokenizer"]) then error(found .. "; --no-tokenizer writes none", 0) end
    tokenizer = ok and found or nil
  end
  save_gguf.save(to, net, {kind = o.kind, tokenizer = tokenizer, on_tensor = function(n, name, kind)
    bar = bar or lm.watch.progress.new(n, {desc = "quantize"})
    bar:advance(1, ("%s %s"):format(name, kind))
  end})
  print(("%s: %s, %s"):format(to, o.kind, bytes_text((select(2, core.file_kind(to))))))
end

--- Runs the command on the arguments from `first` on; returns the exit status.
function quantize.main(args, first)
  local paths = {}
  local o, status = flags.read("quantize", USAGE, args, first, {}, function(values)
    values.kind = values.kind:lower()
    local ok, why = pcall(options.choice, "quantize", "--kind", values.kind, require("luminary.models.save_gguf").kinds)
    if not ok then return (options.without_position(why):gsub("^quantize: ", "")) end
    if #paths ~= 2 then return ("expected two paths, FROM and OUT.gguf, got %d"):format(#paths) end
    return not paths[2]:find "%.gguf$" and ("OUT must end in .gguf, got '%s'"):format(paths[2])
  end, paths)
  if not o then return status end
  local ok, why = pcall(write, paths[1], paths[2], o)
  if ok then return 0 end
  io.stderr:write("luminary quantize: ", (options.without_position(why):gsub("^%a+: ", "")), "\n")
  return 1
end

return quantize
