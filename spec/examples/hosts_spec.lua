-- examples/hosts: each example runs in its host, where that is installed.
local lm = require "luminary"
local temp = require "spec.support.temp"

local HOSTS = "examples/hosts/"

local function output_of(command)
  local pipe = io.popen(command .. " 2>/dev/null")
  local text = pipe:read "*a"
  pipe:close()
  return (text:gsub("%s+$", ""))
end

local function has(program) return output_of("command -v " .. program) ~= "" end

local folder
setup(function() folder = temp.folder() end)
teardown(function() temp.remove(folder) end)

-- Runs a command, 60 s at most; returns what it printed.
local function run(command)
  local ok, text = temp.run(folder, "timeout 60 " .. command)
  assert(ok, text)
  return text
end

describe("examples/hosts/c", function()
  it("computes in several Lua states of one program #unsanitized", function()
    if not (has "cc" and output_of "pkg-config --cflags --libs luajit" ~= "") then
      return pending "no C compiler, or no headers of LuaJIT"
    end
    run(([[sh -c 'cc -O1 -Wall -Wextra -Werror -DCLASSIFY_LUA="\"%sc/classify.lua\"" %sc/classify.c -o %s/classify ]]
      .. "$(pkg-config --cflags --libs luajit) -pthread'"):format(HOSTS, HOSTS, folder))
    run(("luajit %sc/classify.lua --make %s/weights.safetensors"):format(HOSTS, folder))
    local text = run(("%s/classify %s/weights.safetensors 4 50"):format(folder, folder))
    _G.WEIGHTS = folder .. "/weights.safetensors"
    local threads, classify = lm.get_num_threads(), dofile(HOSTS .. "c/classify.lua")
    _G.WEIGHTS = nil
    lm.set_num_threads(threads)
    for i = 1, 4 do
      local sum = 0
      for k = 0, 49 do sum = sum + classify {i - 3, k % 7 - 3, 1, k % 3 - 1} end
      assert.matches(("thread %d: 50 calls, sum %d\n"):format(i, sum), text, 1, true)
    end
    local ok, problem = temp.run(folder, ("%s/classify %s/none.safetensors 2 1"):format(folder, folder))
    assert.is_false(ok)
    assert.matches("thread 1: .-none.safetensors", problem)
  end)
end)

describe("examples/hosts/neovim", function()
  it("learns from a buffer and completes while it is typed into #lua", function()
    if not has "nvim" then return pending "no Neovim (on Debian: neovim)" end
    temp.write(folder .. "/try.lua", ([[
      package.path, package.cpath = os.getenv "LUA_PATH", os.getenv "LUA_CPATH"
      package.path = %q .. package.path
      local complete = require "luminary_complete"
      complete.setup(64)
      local line = "the cat sat on the mat"
      vim.api.nvim_buf_set_lines(0, 0, -1, false, {line, line, line, line, ""})
      local trained
      complete.train(150, function(future) trained = future:get() end)
      local file = io.open(%q, "w")
      local function finish(...)
        file:write(...)
        file:close()
        vim.cmd "qa!"
      end
      vim.defer_fn(function() finish "too late" end, 50000)
      local function type_text()
        if not trained then return vim.defer_fn(type_text, 10) end
        vim.api.nvim_win_set_cursor(0, {5, 0})
        vim.api.nvim_feedkeys("ithe cat", "n", false)
        local function look()
          if not complete.shown() then return vim.defer_fn(look, 10) end
          finish(trained < 1 and "learned" or "loss " .. trained, ":", complete.shown())
        end
        vim.defer_fn(look, 10)
      end
      type_text()
    ]]):format(HOSTS .. "neovim/?.lua;", folder .. "/seen"))
    run(("nvim --headless -u NONE -c 'luafile %s/try.lua'"):format(folder))
    assert.equal("learned: sat on the mat", temp.read(folder .. "/seen"))
  end)
end)

describe("examples/hosts/nginx", function()
  local PORT = 8917
  local function get(path, options)
    return output_of(("curl -s -m 30 %s 'http://127.0.0.1:%d%s'"):format(options or "", PORT, path))
  end

  it("classifies images, writes text as events, counts, and reloads #lua", function()
    local modules = output_of "ls /usr/lib/nginx/modules/ngx_http_lua_module.so"
    if not has "nginx" or modules == "" then
      return pending "no nginx with its Lua module (on Debian: nginx-light libnginx-mod-http-lua)"
    end
    run(("sh -c 'cp -r %snginx %s/server && mkdir %s/server/run'"):format(HOSTS, folder, folder))
    local server = folder .. "/server"
    local conf = temp.read(server .. "/nginx.conf"):gsub("8080", PORT)
    temp.write(server .. "/nginx.conf", (output_of "id -u" == "0" and "user root;\n" or "") .. conf)
    run(("luajit %s/models.lua --make %s/run"):format(server, server))
    local nginx = ("nginx -p %s -c nginx.conf"):format(server)
    run(nginx)
    local ok, problem = pcall(function()
      run(("curl -s --retry 50 --retry-connrefused --retry-delay 0 http://127.0.0.1:%d/health"):format(PORT))
      assert.equal("ok", get "/health")
      lm.vision.write_jpeg(lm.randint(0, 256, {3, 40, 50}, {dtype = "uint8"}), folder .. "/photo.jpg")
      local post = ("--data-binary @%s/photo.jpg"):format(folder)
      local answer = get("/classify", post)
      assert.matches("^%d+ 0%.%d+$", answer)
      local together = output_of(("for i in 1 2 3 4 5 6 7 8; do curl -s %s http://127.0.0.1:%d/classify & done; wait")
        :format(post, PORT))
      assert.equal((answer .. "\n"):rep(8), together .. "\n")
      assert.matches("image", get("/classify", "-d nonsense"))
      local events = get "/generate?text=once+upon"
      assert.matches("^data: .-\n\ndata: .*\n\ndata: %[DONE%]$", events)
      run(nginx .. " -s reload")
      for _ = 1, 20 do assert.equal(answer, get("/classify", post)) end
      local metrics = get "/metrics"
      assert.matches("luminary_classify_requests_total 30\n", metrics)
      assert.matches("luminary_classify_errors_total 1\n", metrics)
      assert.matches("luminary_generate_requests_total 1\n", metrics)
    end)
    run(nginx .. " -s quit")
    assert(ok, tostring(problem) .. "\n" .. output_of("tail -5 " .. server .. "/run/error.log"))
  end)
end)

describe("examples/hosts/kresd", function()
  local port = 20000 + require("luminary.core").process_id() % 10000

  -- Runs kresd in a copy of the example, with its configuration changed by `change`, and a shell script beside it:
  -- `ask NAME` prints a status and addresses. Returns what the script printed, then kresd's log.
  local function serve(change, script)
    local server = folder .. "/kresd"
    run(("sh -c 'rm -rf %s && cp -r %skresd %s && mkdir %s/run'"):format(server, HOSTS, server, server))
    run(("luajit %s/names.lua --make %s/run/names.safetensors"):format(server, server))
    temp.write(server .. "/kresd.conf", change((temp.read(server .. "/kresd.conf"):gsub("5353", port))))
    temp.write(server .. "/script", ([[
      cd %s
      ask() {
        kdig @127.0.0.1 -p %d +timeout=${2:-20} +retry=0 "$1" 2>&1 |
          sed -n 's/.*status: \([A-Z]*\).*/\1/p;s/.*IN.A.\([0-9]\)/\1/p'
      }
      /usr/sbin/kresd -n -c "$PWD/kresd.conf" run >log 2>&1 &
      trap 'kill $!; wait $!; cat log' EXIT
      until [ "$(ask debian.example 1)" ] || ! kill -0 $!; do sleep 0.1; done
      kill -0 $! || exit 1
    ]]):format(server, port) .. script)
    return run("sh " .. server .. "/script")
  end

  local function is_missing()
    return not (has "/usr/sbin/kresd" and has "kdig") and "no kresd (on Debian: knot-resolver knot-dnsutils)"
  end

  it("refuses names made by programs #lua", function()
    if is_missing() then return pending(is_missing()) end
    local text = serve(function(conf) return conf:gsub("longest = 0.1", "longest = 20") end, [[
      ask knowledgebase.example
      ask xq7k2vjw9zt4hb.example
      ask www.xq7k2vjw9zt4hb.example
    ]])
    assert.matches("^NOERROR\n192.0.2.2\nREFUSED\nREFUSED\n", text)
    assert.matches("suspicious: www.xq7k2vjw9zt4hb.example., score 1.000", text, 1, true)
  end)

  it("answers other names while one is scored #lua", function()
    if is_missing() then return pending(is_missing()) end
    local text = serve(function(conf)
      return conf:gsub("start %b{}", [[start {threshold = 0.4, network = function(bytes)
        while bytes[1][1] == ("x"):byte() and not io.open "go" do os.execute "sleep 0.05" end
        return require("luminary").zeros(#bytes)
      end}]])
    end, [[
      ask xq7k2vjw9zt4hb.example
      ask debian.example
      ask knowledgebase.example
      touch run/go
      until [ "$(ask xq7k2vjw9zt4hb.example)" = REFUSED ] && [ "$(ask knowledgebase.example)" = REFUSED ]; do :; done
    ]])
    assert.matches("^NOERROR\n192.0.2.3\nNOERROR\n192.0.2.1\nNOERROR\n192.0.2.2\n", text)
  end)
end)

describe("examples/hosts/wrk", function()
  local SERVER = [[
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        sys.stdout.write(self.path + "\n")
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
open(sys.argv[1], "w").write(str(server.server_port))
server.serve_forever()
]]

  it("sends queries that a network has drawn for each thread #lua", function()
    if not (has "wrk" and has "python3") then return pending "no wrk (on Debian: wrk), or no python3" end
    local weights = folder .. "/queries.safetensors"
    run(("luajit %swrk/queries.lua --make %s"):format(HOSTS, weights))
    temp.write(folder .. "/server.py", SERVER)
    temp.write(folder .. "/script", ([[
      cd %s
      python3 -u server.py port >paths 2>errors &
      trap 'kill $!; wait $!; cat paths' EXIT
      until [ -s port ] || ! kill -0 $!; do sleep 0.1; done
      wrk -t2 -c4 -d1s -s "$OLDPWD/%swrk/load.lua" http://127.0.0.1:$(cat port)/find -- %s 20 3 >&2
    ]]):format(folder, HOSTS, weights))
    local text = run("sh " .. folder .. "/script")
    assert.matches("requests in", text)
    local queries = dofile(HOSTS .. "wrk/queries.lua")
    local net, expected, first = queries.network(weights), {}, {}
    for thread = 1, 2 do
      local generator = lm.Generator "cpu"
      generator:manual_seed(3000 + thread)
      local drawn = queries.draw(net, 20, generator)
      for _, query in ipairs(drawn) do expected[query] = true end
      first[thread] = drawn[1]
    end
    local seen = {}
    for query in text:gmatch "/find%?q=(%S*)\n" do
      query = query:gsub("%+", " "):gsub("%%(%x%x)", function(code) return string.char(tonumber(code, 16)) end)
      assert(expected[query], query)
      seen[query] = true
    end
    assert.is_true(seen[first[1]])
    assert.is_true(seen[first[2]])
  end)
end)

describe("examples/hosts/sysbench", function()
  it("computes in sysbench's threads #lua", function()
    if not has "sysbench" then return pending "no sysbench (on Debian: sysbench)" end
    for _, options in ipairs {"", "--train=on"} do
      local text = run(("sysbench %ssysbench/forward.lua --threads=2 --events=20 --time=0 --batch=4 %s run")
        :format(HOSTS, options))
      assert.matches("total number of events: +20\n", text)
    end
    local ok, text = temp.run(folder, ("timeout 60 sysbench %ssysbench/forward.lua --events=1 --batch=-1 run")
      :format(HOSTS))
    assert.is_false(ok)
    assert.matches("forward.lua:%d+: rand: .-%-1", text)
  end)
end)
