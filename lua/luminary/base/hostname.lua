local read_file = require "luminary.base.read_file"

--- Returns this machine's name as its kernel has it, or nil.
return function() return (read_file "/proc/sys/kernel/hostname" or ""):match "^[^\n]+" end
