--- load_net(who, path, options): Returns the language model of a folder or GGUF file, with options of its maker.
local core = require "luminary.core"
local options = require "luminary.base.options"
local Source = require "luminary.file_formats.source"
local models = require "luminary.models"

local fail = options.fail

return function(who, path, opts)
  local kind
  if core.file_kind(path) == "a folder" then
    local ok, config = pcall(core.json_decode, Source.whole_text(path .. "/config.json"), false)
    if not (ok and options.is_plain(config)) then fail("%s: '%s/config.json' is not a JSON object", who, path) end
    kind = config.model_type
  elseif not core.file_kind(path) then
    fail("%s: cannot open '%s': No such file or directory; nothing is downloaded", who, path)
  elseif not require("luminary.models.gguf").is(path) then
    fail("%s: '%s' is not a GGUF file; pass one, or a folder with config.json and weights", who, path)
  else
    kind = require("luminary.file_formats.gguf").metadata(path)["general.architecture"]
  end
  local has, make = pcall(function() return models[kind] end)
  if type(kind) ~= "string" or not has then
    fail("%s: '%s' has a model of the unknown kind '%s'", who, path, tostring(kind))
  end
  local is_there, why = pcall(core.ops.empty, {0}, {device = opts.device})
  if not is_there then fail("%s: %s", who, options.without_position(why):gsub("^empty: ", "")) end
  opts.weights = path
  return make(opts):eval()
end
