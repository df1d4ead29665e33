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
  -- Runs a program in Neovim with an editor's buffer and the example as `complete`; returns what it passed to finish().
  local function in_neovim(program)
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
    ]]):format(folder .. "/seen", HOSTS .. "neovim/luminary_complete.lua") .. program)
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
end)

describe("examples/hosts/love", function()
  -- Returns how to run LÖVE without a screen, or nil.
  local function love_command()
    for _, way in ipairs {"SDL_VIDEODRIVER=offscreen love", "xvfb-run -a love"} do
      local ok = temp.run(folder, ("%s %s/empty"):format(way, folder))
      if ok then return way end
    end
  end

  it("plays and learns meanwhile, and ends while it learns #unsanitized", function()
    if not has "love" then return pending "no LÖVE (on Debian: love)" end
    temp.execute(("mkdir %s/empty"):format(folder))
    temp.write(folder .. "/empty/main.lua", "function love.draw() love.event.quit() end")
    local love = love_command()
    if not love then return pending "no OpenGL without a screen (on Debian: libegl1 libgl1-mesa-dri, or xvfb)" end
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
