--- lm.text: tokenizers, from Hugging Face's files, with its results; text as they give it while a model goes on.
local options = require "luminary.base.options"

local text = {}
for _, part in ipairs {"tokenizer", "vocabulary_files"} do
  for name, value in pairs(require("luminary.text." .. part)) do text[name] = value end
end

return options.strict("text", text)
