local options = require "luminary.base.options"
return options.strict("text", require "luminary.text.tokenizer")
