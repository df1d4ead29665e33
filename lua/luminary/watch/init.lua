--- watch: seeing what a program does.
return require("luminary.options").strict("watch", {progress = require "luminary.watch.progress"})
