--- lm.text: tokenizers, from Hugging Face's files, with its results; text as they give it while a model goes on.
local options = require "luminary.base.options"
return options.strict("text", require "luminary.text.tokenizer")
