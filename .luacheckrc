std = "luajit"
max_line_length = 120
files["spec/**/*.lua"].std = "+busted"
files["spec/**/*_spec.lua"].std = "+busted"
files["torch7/spec/*.lua"].std = "+busted"
files["spec/op/op_cases.lua"].max_line_length = 200
files["spec/golden/transforms.lua"].max_line_length = 200
-- Hosts have other things under that name (sysbench an option); require "debug" is the library everywhere.
-- What hosts give their scripts.
files["examples/hosts/nginx"].globals = {"ngx"}
files["examples/hosts/neovim"].globals = {"vim"}
files["scripts/bench/neovim"].globals = {"vim"}
files["examples/hosts/love"].globals = {"love"}
files["lua"].not_globals = {"debug"}
files["torch7/lua"].not_globals = {"debug"}
files["spec/golden/families.lua"].max_line_length = false
