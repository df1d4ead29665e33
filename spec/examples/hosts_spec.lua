-- examples/hosts: each example runs in its host, where that is installed.
local lm = require "luminary"
local small = require "spec.support.small_chat"
local temp = require "spec.support.temp"
local within = require("spec.support.time").within

local HOSTS = "examples/hosts/"

local function has(program) return temp.output_of("command -v " .. program) ~= "" end

local folder = temp.during(setup, teardown)

-- Runs a command, 60 s at most; returns what it printed.
local function run(command)
  local ok, text = temp.run(folder, "timeout 60 " .. command)
  assert(ok, text)
  return text
end

describe("examples/hosts/c", function()
  it("computes in several Lua states of one program #unsanitized", function()
    if not (has "cc" and temp.output_of "pkg-config --cflags --libs luajit" ~= "") then
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
  -- Runs a program in Neovim with an editor's buffer and an example as `complete`; returns what it passed to finish().
  local function in_neovim(program, example)
    temp.write(folder .. "/try.lua", ([[
      package.path, package.cpath = os.getenv "LUA_PATH", os.getenv "LUA_CPATH"
      local seen = %q
      function finish(...)
        local file, values = io.open(seen, "w"), {...}
        for i = 1, select("#", ...) do file:write(i == 1 and "" or ":", tostring(values[i])) end
        file:close()
        vim.cmd "qa!"
      end
      vim.defer_fn(function() finish("too late", complete.shown()) end, 50000)
      function when(test, fn)
        if test() then return fn() end
        vim.defer_fn(function() when(test, fn) end, 5)
      end
      local line = "the cat sat on the mat"
      vim.api.nvim_buf_set_lines(0, 0, -1, false, {line, line, line, line, ""})
      vim.api.nvim_win_set_cursor(0, {5, 0})
      complete = dofile(%q)
    ]]):format(folder .. "/seen", HOSTS .. "neovim/" .. (example or "luminary_complete") .. ".lua") .. program)
    run(("nvim --headless -u NONE -i NONE -n -c 'luafile %s/try.lua'"):format(folder))
    return temp.read(folder .. "/seen")
  end

  it("learns from a buffer, completes what is typed, and leaves the network to its threads #lua", function()
    if not has "nvim" then return pending "no Neovim (on Debian: neovim)" end
    assert.equal("learned: sat on the mat:nil:nil:the cat sat on the mat", in_neovim [[
      complete.setup {width = 64, layers = 2, ready = function()
        complete.train(150, function(steps, loss)
          vim.api.nvim_input "ithe cat"
          when(function() return complete.shown() == " sat on the mat" end, function()
            local shown = complete.shown()
            vim.api.nvim_input "<C-l>"
            when(function() return #vim.api.nvim_get_current_line() > 7 end, function()
              finish(steps == 150 and loss < 1 and "learned" or steps .. " steps, loss " .. loss, shown,
                package.loaded["luminary.nn"], package.loaded.luminary_bytes, vim.api.nvim_get_current_line())
            end)
          end)
        end)
      end}
    ]])
  end)

  it("takes keys and completes while it trains, cancels, saves, and quits while it trains #lua", function()
    if not has "nvim" then return pending "no Neovim (on Debian: neovim)" end
    local file = folder .. "/learned.safetensors"
    local program = ([[
      local MOST = 1e9
      complete.setup {width = 64, layers = 2, path = %q, ready = function()
        complete.train(MOST, function(steps)
          local saved = io.open(%q) ~= nil
          complete.train(MOST) -- runs at the end
          finish(steps > 0 and steps < MOST and "canceled", saved and "saved", vim.api.nvim_get_current_line())
        end)
        complete.train(MOST, function() finish "a second training" end)
        vim.api.nvim_input "ithe cat"
        when(complete.shown, function()
          vim.api.nvim_input "x"
          when(function() return vim.api.nvim_get_current_line() == "the catx" end, function()
            vim.cmd "LuminaryCancel"
          end)
        end)
      end}
    ]]):format(file, file)
    assert.equal("canceled:saved:the catx", in_neovim(program))
    assert.equal(64, lm.load(file)["model.embed_tokens.weight"].shape[2])
  end)

  it("shows a language model's text, takes it by Tab and cancels by typing, in 2 ms of the loop's time #lua", function()
    if not has "nvim" then return pending "no Neovim (on Debian: neovim)" end
    run(("mkdir -p %s/model"):format(folder))
    small.write(folder .. "/model", 400)
    local o = {max_new_tokens = 8, temperature = 0}
    local before = ("the cat sat on the mat\n"):rep(4) .. "ab"
    local text = lm.async(lm.chat.answer, folder .. "/model", before, o):get()
    local after = lm.async(lm.chat.answer, folder .. "/model", before .. "c", o):get()
    lm.set_async {}
    local least = math.huge -- the least of three runs: a busy machine slows a thread in its own time, too
    for _ = 1, 3 do
      local seen = in_neovim(([[
        local ffi = require "ffi"
        ffi.cdef "typedef struct { long s, ns; } spec_time; int clock_gettime(int, spec_time *);"
        local time, THREAD = ffi.new "spec_time", 3
        local function computed()
          ffi.C.clock_gettime(THREAD, time)
          return tonumber(time.s) * 1e3 + tonumber(time.ns) / 1e6
        end
        local last, most = nil, 0
        vim.loop.new_timer():start(1, 1, function()
          local now = computed()
          most, last = math.max(most, now - (last or now)), now
        end)
        local function line() return vim.api.nvim_get_current_line() end
        local shown = {}
        vim.api.nvim_input "i<Tab><BS>" -- before the model is there
        complete.setup {model = %q, options = {max_new_tokens = 8, temperature = 0}, ready = function()
          most = 0
          vim.api.nvim_input "ab"
          local text, after = %q, %q
          when(function() return complete.shown() == text end, function()
            vim.api.nvim_input "c"
            when(function() return line() == "abc" and complete.shown() ~= text end, function()
              when(function() return complete.shown() == after end, function()
                vim.api.nvim_input "<Tab>"
                when(function() return #line() > 3 end, function()
                  finish(most, line() == "abc" .. after, complete.shown())
                end)
              end)
            end)
          end)
        end}
      ]]):format(folder .. "/model.gguf", text, after), "luminary_ghost")
      assert.matches("^%S+:true:nil$", seen)
      least = math.min(least, tonumber(seen:match "^[^:]+"))
    end
    assert.is_true(least < 2, least .. " ms")
  end)

  it("names what keeps a model from being loaded #lua", function()
    if not has "nvim" then return pending "no Neovim (on Debian: neovim)" end
    assert.matches("luminary: .*none.gguf': No such file or directory", in_neovim([[
      vim.notify = finish
      complete.setup {model = "none.gguf"}
    ]], "luminary_ghost"))
  end)
end)

-- Returns how to run LÖVE without a screen, or nil and why it does not run.
local function love_command()
  if not has "love" then return nil, "no LÖVE (on Debian: love)" end
  temp.execute(("mkdir -p %s/empty"):format(folder))
  temp.write(folder .. "/empty/main.lua", "function love.draw() love.event.quit() end")
  for _, way in ipairs {"SDL_VIDEODRIVER=offscreen love", "xvfb-run -a love"} do
    local ok = temp.run(folder, ("%s %s/empty"):format(way, folder))
    if ok then return way end
  end
  return nil, "no OpenGL without a screen (on Debian: libegl1 libgl1-mesa-dri, or xvfb)"
end

describe("examples/hosts/love", function()
  it("plays and learns meanwhile, and ends while it learns #unsanitized", function()
    local love, why = love_command()
    if not love then return pending(why) end
    local agent = folder .. "/agent.safetensors"
    local function play(rounds)
      local text = run(("env %s %slove --rounds %d %s"):format(love, HOSTS, rounds, agent))
      local counts = {}
      for number in text:match("%d+ frames.*"):gmatch "%d+%.?%d*" do counts[#counts + 1] = tonumber(number) end
      local frames, _, done, first, last, _, pixels = unpack(counts)
      assert.equal(rounds, done, text)
      assert.is_true(frames > rounds and pixels > 2000 and pixels <= 3200, text) -- the pole covers part of the cart
      return first, last, lm.load(agent)
    end
    local first, last, weights = play(6)
    assert.is_true(last > 1.3 * first, ("%g, then %g"):format(first, last))
    assert.same({64, 4}, weights["actor.0.weight"].shape)
    local next_first, _, next_weights = play(1) -- continues from the file
    assert.is_true(next_first == 0 or next_first > first, ("%g, then %g"):format(first, next_first))
    assert.is_false(weights["actor.0.weight"]:equal(next_weights["actor.0.weight"]))
  end)
end)

describe("examples/hosts/love/character", function()
  it("answers while frames go on, and says what is wrong #unsanitized", function()
    local love, why = love_command()
    if not love then return pending(why) end
    run(("mkdir -p %s/model"):format(folder))
    small.write(folder .. "/model", 400)
    local text = run(("env %s %slove/character %s/model.gguf --say Hello"):format(love, HOSTS, folder))
    local frames, poll = text:match "\n(%d+) frames while it answered, .* lm.poll ([%d.]+) ms at most"
    assert.is_true(tonumber(frames) > 0, text)
    within(tonumber(poll) / 1e3, 0.002, text)
    local ok
    ok, text = temp.run(folder, ("env %s %slove/character none.gguf --say Hello"):format(love, HOSTS))
    assert.is_false(ok)
    assert.matches("cannot open 'none.gguf'", text, 1, true)
  end)
end)

describe("examples/hosts/nginx", function()
  local PORT = 8917
  local function get(path, options)
    return temp.output_of(("curl -s -m 30 %s 'http://127.0.0.1:%d%s'"):format(options or "", PORT, path))
  end
  local function status_of(path, options)
    return get(path, "-o /dev/null -w '%{http_code}' " .. (options or ""))
  end

  -- Runs f(nginx, photo) while a copy of the example runs: the command that controls it, and the option of curl
  -- that posts an image. changes: texts of the example's files and what replaces them. Returns the error log.
  local function with_server(changes, f)
    local modules = temp.output_of "ls /usr/lib/nginx/modules/ngx_http_lua_module.so"
    if not has "nginx" or modules == "" then
      return pending "no nginx with its Lua module (on Debian: nginx-light libnginx-mod-http-lua)"
    end
    local server = folder .. "/server"
    run(("sh -c 'rm -rf %s && cp -r %snginx %s && mkdir %s/run'"):format(server, HOSTS, server, server))
    changes["8080"] = PORT
    for _, name in ipairs {"nginx.conf", "app.lua"} do
      local text = temp.read(server .. "/" .. name)
      for from, to in pairs(changes) do text = text:gsub(from, to) end
      if name == "nginx.conf" and temp.output_of "id -u" == "0" then text = "user root;\n" .. text end
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
    assert(ok, tostring(problem) .. "\n" .. temp.output_of("tail -5 " .. server .. "/run/error.log"))
    return temp.read(server .. "/run/error.log")
  end

  it("classifies images, writes text as events, counts, and reloads #lua", function()
    local log = with_server({}, function(nginx, photo)
      local answer = get("/classify", photo)
      assert.matches("^%d+ 0%.%d+$", answer)
      local together = temp.output_of((
        "for i in 1 2 3 4 5 6 7 8; do curl -s %s http://127.0.0.1:%d/classify & done; wait")
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
      -- HTTP/1.0, as proxy_pass asks by default
      assert.matches("^data: .-\n\ndata: .*\n\ndata: %[DONE%]$", get("/generate?text=once+upon", "-0"))
    end)
    if log then assert.no.matches("%[[ec]r[ri][ot]r?%]", log) end
  end)

  it("answers HTTP/1.0 completely where nginx keeps such answers until their end #lua", function()
    with_server({["lua_http10_buffering off;"] = ""}, function()
      assert.matches("^data: .-\n\ndata: .*\n\ndata: %[DONE%]$", get("/generate?text=once+upon", "-0"))
    end)
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
      local slow = temp.output_of(("{ printf '%s'; sleep 3; } | timeout 20 curl -s -m 15 telnet://127.0.0.1:%d"):format(
        head, PORT))
      assert.is_true(slow == "" or slow:find("408", 1, true) ~= nil, slow)
      temp.output_of(("curl -s -m 0.02 'http://127.0.0.1:%d/generate?text=once'"):format(PORT))
      temp.output_of(("for i in 1 2 3 4 5 6 7 8; do curl -s -m 0.00$i %s http://127.0.0.1:%d/classify & done; wait")
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
      temp.output_of(post(1, "reloaded") .. ("sleep 0.3; %s -s reload 2>&1; sleep 0.3; "):format(nginx)
        .. ("curl -sf --retry 20 --retry-delay 1 %s http://127.0.0.1:%d/classify >%s/new; wait"):format(
          photo, PORT, folder))
      assert.equal(answer .. "\n 200", temp.read(folder .. "/reloaded"))
      assert.equal(answer .. "\n", temp.read(folder .. "/new"))
      local busy = temp.output_of(post(8, "late") .. ("sleep 1; curl -s -i %s http://127.0.0.1:%d/classify; "):format(
        photo, PORT) .. ("curl -s http://127.0.0.1:%d/health; wait"):format(PORT))
      assert.matches("^HTTP/1.1 503 .*\r\nRetry%-After: 1\r\n.*\r\nbusy\nok$", busy)
      assert.equal("the computation took too long\n 504", temp.read(folder .. "/late"))
      assert.matches('path="classify",status="504"} 1\n', get "/metrics")
    end)
    if log then assert.no.matches("%.lua:%d+:", log) end
  end)
end)

describe("examples/hosts/nginx/openai.conf", function()
  it("answers requests of OpenAI's API, also while it reloads, and ends answers of clients that leave #lua", function()
    local modules = temp.output_of "ls /usr/lib/nginx/modules/ngx_http_lua_module.so"
    if not has "nginx" or modules == "" then
      return pending "no nginx with its Lua module (on Debian: nginx-light libnginx-mod-http-lua)"
    end
    local server, model, port = folder .. "/openai", folder .. "/model", 8918
    run(("sh -c 'rm -rf %s %s && mkdir -p %s/run %s'"):format(server, model, server, model))
    run(("luajit examples/random_model.lua %s"):format(model))
    local text = temp.read(HOSTS .. "nginx/openai.conf"):gsub("8080", port)
    temp.write(server .. "/openai.conf", (temp.output_of "id -u" == "0" and "user root;\n" or "") .. text)
    local nginx = ("env MODEL=%s nginx -p %s -c openai.conf"):format(model, server)
    run(nginx)
    local function ask(path, options)
      return temp.output_of(("curl -s -m 30 %s 'http://127.0.0.1:%d%s'"):format(options or "", port, path))
    end
    local function body(more) return ([[-d '{"model": "model", "prompt": "a", "temperature": 0%s}']]):format(more) end
    local ok, problem = pcall(function()
      run(("curl -s --retry 9 --retry-connrefused --retry-delay 1 http://127.0.0.1:%d/health"):format(port))
      local want = ask("/v1/completions", body ', "max_tokens": 40'):match '"text":"(.-)"}'
      local stream = ask("/v1/completions", "-N " .. body ', "max_tokens": 40, "stream": true')
      local parts = {}
      for part in stream:gmatch '"text":"(.-)"}' do parts[#parts + 1] = part end
      assert.equal(want, table.concat(parts))
      assert.matches("data: %[DONE%]$", stream)
      assert.matches('"code":"model_not_found"', ask("/v1/completions", [[-d '{"model": "x"}']]))
      temp.write(folder .. "/large", ("x"):rep(2 ^ 21))
      local large = ("-w ' %%{http_code}' --data-binary @%s/large"):format(folder)
      assert.matches('^{"error":.* 413$', ask("/v1/completions", large))
      temp.output_of(("curl -s -m 0.2 %s http://127.0.0.1:%d/v1/completions"):format(
        body ', "max_tokens": 450, "stream": true', port))
      local open
      for _ = 1, 50 do
        open = ask "/metrics":match "\nluminary_conversations_open (%d+)"
        if open == "0" then break end
        temp.execute "sleep 0.1"
      end
      assert.equal("0", open)
      temp.execute(("curl -s -m 30 -N %s http://127.0.0.1:%d/v1/completions >%s/during & sleep 0.2; %s -s reload; wait")
        :format(body ', "max_tokens": 300, "stream": true', port, folder, nginx))
      assert.matches("data: %[DONE%]%s*$", temp.read(folder .. "/during"))
      assert.equal(want, ask("/v1/completions", "--retry 5 " .. body ', "max_tokens": 40'):match '"text":"(.-)"}')
    end)
    run(nginx .. " -s quit")
    run(("sh -c 'while [ -e %s/run/nginx.pid ]; do sleep 0.1; done'"):format(server))
    local log = temp.read(server .. "/run/error.log")
    assert(ok, tostring(problem) .. "\n" .. log)
    assert.no.matches("%.lua:%d+:", log)
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
