--- watch: seeing what a program does.
return {progress = require "luminary.watch.progress"}
