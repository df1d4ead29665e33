--- watch: Functions that show what a program does.
return require("luminary.base.options").strict("watch", {progress = require "luminary.watch.progress"})
