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
  local function status_of(path, options)
    return get(path, "-o /dev/null -w '%{http_code}' " .. (options or ""))
  end

  -- Runs f(nginx, photo) while a copy of the example runs: the command that controls it, and the option of curl
  -- that posts an image. changes: texts of the example's files and what replaces them. Returns the error log.
  local function with_server(changes, f)
    local modules = output_of "ls /usr/lib/nginx/modules/ngx_http_lua_module.so"
    if not has "nginx" or modules == "" then
      return pending "no nginx with its Lua module (on Debian: nginx-light libnginx-mod-http-lua)"
    end
    local server = folder .. "/server"
    run(("sh -c 'rm -rf %s && cp -r %snginx %s && mkdir %s/run'"):format(server, HOSTS, server, server))
    changes["8080"] = PORT
    for _, name in ipairs {"nginx.conf", "app.lua"} do
      local text = temp.read(server .. "/" .. name)
      for from, to in pairs(changes) do text = text:gsub(from, to) end
      if name == "nginx.conf" and output_of "id -u" == "0" then text = "user root;\n" .. text end
      temp.write(server .. "/" .. name, text)
    end
    run(("luajit %s/models.lua --make %s/run"):format(server, server))
    lm.vision.write_jpeg(lm.randint(0, 256, {3, 40, 50}, {dtype = "uint8"}), folder .. "/photo.jpg")
    local nginx = ("nginx -p %s -c nginx.conf"):format(server)
    run(nginx)
    local ok, problem = pcall(function()
      run(("curl -s --retry 9 --retry-connrefused --retry-delay 1 http://127.0.0.1:%d/health"):format(PORT))
      assert.equal("ok", get "/health")
      f(nginx, ("--data-binary @%s/photo.jpg"):format(folder))
    end)
    run(nginx .. " -s quit")
    local pid = server .. "/run/nginx.pid"
    run(("sh -c 'while [ -e %s ]; do sleep 0.1; done'"):format(pid))
    assert(ok, tostring(problem) .. "\n" .. output_of("tail -5 " .. server .. "/run/error.log"))
    return temp.read(server .. "/run/error.log")
  end

  it("classifies images, writes text as events, counts, and reloads #lua", function()
    local log = with_server({}, function(nginx, photo)
      local answer = get("/classify", photo)
      assert.matches("^%d+ 0%.%d+$", answer)
      local together = output_of(("for i in 1 2 3 4 5 6 7 8; do curl -s %s http://127.0.0.1:%d/classify & done; wait")
        :format(photo, PORT))
      assert.equal((answer .. "\n"):rep(8), together .. "\n")
      assert.matches("^data: .-\n\ndata: .*\n\ndata: %[DONE%]$", get "/generate?text=once+upon")
      run(nginx .. " -s reload")
      for _ = 1, 20 do assert.equal(answer, get("/classify", photo)) end
      local metrics = get "/metrics"
      for _, line in ipairs {
        '_requests_total{path="classify",status="200"} 29', '_requests_total{path="generate",status="200"} 1',
        '_seconds_bucket{path="classify",le="+Inf"} 29', '_seconds_count{path="classify"} 29',
      } do
        assert.matches("\nluminary" .. line .. "\n", metrics, 1, true)
      end
      assert.matches('\nluminary_memory_bytes{worker="[01]"} %d+$', metrics)
    end)
    if log then assert.no.matches("%[[ec]r[ri][ot]r?%]", log) end
  end)

  it("refuses what is no image, too large, too slow or too much, and survives clients that leave #lua", function()
    local log = with_server({["timeout 10s"] = "timeout 1s"}, function(nginx, photo)
      local answer = get("/classify", photo)
      assert.equal("400", status_of("/classify", "-d nonsense"))
      assert.matches("image", get("/classify", "-d nonsense"))
      assert.no.matches("%.lua", get("/classify", "-d nonsense"))
      assert.equal("400", status_of("/classify", "-X POST"))
      assert.equal("403", status_of "/classify")
      local photo_bytes = temp.read(folder .. "/photo.jpg")
      temp.write(folder .. "/cut.jpg", photo_bytes:sub(1, #photo_bytes / 2))
      assert.equal("400", status_of("/classify", ("--data-binary @%s/cut.jpg"):format(folder)))
      local at = photo_bytes:find("\255\192", 1, true) -- the frame's header: its sides follow after 5 bytes
      temp.write(folder .. "/large.jpg", photo_bytes:sub(1, at + 4) .. "\127\0\127\0" .. photo_bytes:sub(at + 9))
      assert.equal("400", status_of("/classify", ("--data-binary @%s/large.jpg"):format(folder)))
      assert.matches("max_pixels", get("/classify", ("--data-binary @%s/large.jpg"):format(folder)))
      temp.write(folder .. "/huge", ("x"):rep(5 * 2 ^ 20))
      assert.equal("413", status_of("/classify", ("--data-binary @%s/huge"):format(folder)))
      assert.equal("400", status_of("/generate?text=" .. ("x"):rep(1001)))
      assert.equal("400", status_of "/generate?text=")
      -- A client that sends a part of its body and waits is answered with 408 or closed; one that leaves is no error.
      local head = [[POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc]]
      local slow = output_of(("{ printf '%s'; sleep 3; } | timeout 20 curl -s -m 15 telnet://127.0.0.1:%d"):format(
        head, PORT))
      assert.is_true(slow == "" or slow:find("408", 1, true) ~= nil, slow)
      output_of(("curl -s -m 0.02 'http://127.0.0.1:%d/generate?text=once'"):format(PORT))
      output_of(("for i in 1 2 3 4 5 6 7 8; do curl -s -m 0.00$i %s http://127.0.0.1:%d/classify & done; wait")
        :format(photo, PORT))
      run(nginx .. " -s reload")
      assert.equal(answer, get("/classify", photo))
      assert.equal("ok", get "/health")
    end)
    if log then assert.no.matches("%.lua:%d+:", log) end
  end)

  it("answers what runs during a reload, and refuses what waits too long or exceeds the queue #lua", function()
    local log = with_server({
      ["worker_processes 2"] = "worker_processes 1", ["workers = 2"] = "workers = 1, max_queue = 1",
      ["= 10, 2 "] = "= 4, 2 ", -- seconds of a request
      ["local T = "] = 'local begun, s = lm.time(), tonumber(bytes:match "SPIN([0-9])$") or 0\n'
        .. "while lm.time() < begun + s do end\nlocal T = ",
    }, function(nginx, photo)
      local answer, bytes = get("/classify", photo), temp.read(folder .. "/photo.jpg")
      local function post(seconds, name)
        temp.write(folder .. "/spin.jpg", bytes .. "SPIN" .. seconds)
        return ("curl -s -m 30 -w ' %%{http_code}' --data-binary @%s/spin.jpg http://127.0.0.1:%d/classify >%s/%s & ")
          :format(folder, PORT, folder, name)
      end
      output_of(post(1, "reloaded") .. ("sleep 0.3; %s -s reload 2>&1; sleep 0.3; "):format(nginx)
        .. ("curl -sf --retry 20 --retry-delay 1 %s http://127.0.0.1:%d/classify >%s/new; wait"):format(
          photo, PORT, folder))
      assert.equal(answer .. "\n 200", temp.read(folder .. "/reloaded"))
      assert.equal(answer .. "\n", temp.read(folder .. "/new"))
      local busy = output_of(post(8, "late") .. ("sleep 0.5; curl -s -i %s http://127.0.0.1:%d/classify; "):format(
        photo, PORT) .. ("curl -s http://127.0.0.1:%d/health; wait"):format(PORT))
      assert.matches("^HTTP/1.1 503 .*\r\nRetry%-After: 1\r\n.*\r\nbusy\nok$", busy)
      assert.equal("the computation took too long\n 504", temp.read(folder .. "/late"))
      assert.matches('path="classify",status="504"} 1\n', get "/metrics")
    end)
    if log then assert.no.matches("%.lua:%d+:", log) end
  end)
end)
