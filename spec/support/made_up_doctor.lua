-- `luminary doctor` of a made-up machine: luajit made_up_doctor.lua FOLDER LIMIT options...
-- FOLDER has its files in root/ and its commands in bin/; LIMIT: the most seconds that a command is waited for.
local folder, limit = table.remove(arg, 1), tonumber(table.remove(arg, 1))
require("luminary.cli.doctor.files_and_commands").replace(folder .. "/root", folder .. "/bin", limit)
table.insert(arg, 1, "doctor")
os.exit(require("luminary.cli").main(arg), true)
