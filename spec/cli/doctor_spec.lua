-- `luminary doctor`: every finding on a machine made up for it, a machine without any, and this machine.
local core = require "luminary.core"
local machine = require "spec.support.machine"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"
local time = require "spec.support.time"
local within = time.within
local with = machine.with
local ROWS = dofile "spec/cli/doctor_cases.lua"

local folder
setup(function() folder = machine.build() end)
teardown(function() temp.remove(folder) end)

describe("luminary doctor #lua", function()
  it("finds nothing on a clean machine", function()
    local object, code, by_id, text = machine.run(folder, {})
    assert.equal(0, code, text)
    for _, one in ipairs(object.findings) do assert.equal("ok", one.severity, one.id .. ": " .. one.reason) end
    for _, id in ipairs {
      "gpu.driver", "gpu.driver_fits", "gpu.driver_library", "gpu.nodes", "gpu.smi", "gpu.log", "libraries.cuda",
      "libraries.nccl", "pci.clear", "peers.matrix", "peers.pinned", "peers.batches", "host.shm", "cores.count",
      "network.nccl", "network.host_known", "network.no_firewall", "environment.habits",
    } do
      assert(by_id[id], id .. " is missing in\n" .. text)
    end
    assert.matches("2%.28%.9, for CUDA 13%.0", by_id["libraries.nccl"].reason)
    assert.matches("cuda:1, 16.8 MB: 1.3 ms as it is; pinned 0.41 ms, after 1.2 ms to pin it",
      by_id["peers.batches"].reason)
    assert.matches("cuda:0 +%- +350%.0\ncuda:1 +351%.0 +%-", by_id["peers.matrix"].reason)
  end)

  it("shows no secret and no home folder", function()
    local env = {
      HOME = "/home/hidden-user", LD_PRELOAD = "/home/hidden-user/x.so", LM_TOKEN = "hidden-token",
      HF_TOKEN = "hidden-too", https_proxy = "http://me:hidden-word@proxy:1",
    }
    for _, options in ipairs {"--verbose", "--json"} do
      local text = machine.ask(folder, {args = options .. " 2>/dev/null", env = env})
      assert.matches("~/x.so", text, 1, true)
      assert.not_matches("hidden", text)
    end
  end)

  it("does not call it lost what a container or Slurm hides, nor too old what works", function()
    local one_card = {["nvidia-smi"] = machine.smi("\n.*", "")}
    for _, change in ipairs {
      {bin = one_card, files = {["/.dockerenv"] = ""}}, {bin = one_card, env = {SLURM_JOB_ID = "7"}},
      {files = {["/proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun\n"}},
    } do
      local _, code, _, text = machine.run(folder, with(change, {args = "--only gpu"}))
      assert.equal(0, code, text)
    end
  end)

  for _, row in ipairs(ROWS) do
    local id, severity, reason, remedy, change = unpack(row)
    it(("finds %s: a %s, %s"):format(id, severity, reason), function()
      change = with(change, {args = ("--only %s %s"):format(id:match("^%a+"), change.args or "")})
      local object, code, by_id, text = machine.run(folder, change)
      local one = assert(by_id[id], text)
      assert.equal(severity, one.severity, text)
      assert.equal(id:match("^%a+"), one.subject)
      assert.matches(reason:match("|(.*)") or reason, one.reason)
      assert.matches(remedy, one.remedy)
      assert(#one.title > 0)
      local problem = severity == "problem" or change.problem
      assert.equal(problem and 1 or 0, code, text)
      assert.equal(code, object.exit_code)
    end)
  end

  it("has a row here for each finding that is not 'ok'", function()
    local rows = {["reach.timed_out"] = true, ["reach.unreachable"] = true, ["reach.stranger"] = true,
      ["reach.slow"] = true, ["reach.breaks"] = true, ["libraries.no_kernels"] = true,
      ["reach.forbidden"] = true, ["reach.fails"] = true, ["reach.no_core"] = true} -- below, or
      -- Two rows cannot be tested on one machine: a slow network, and a firewall that forbids.
    for _, row in ipairs(ROWS) do rows[row[1]] = true end
    local pipe = io.popen("cat " .. "lua/luminary/cli/doctor/*.lua")
    local source = pipe:read "*a"
    pipe:close()
    local n = 0
    for _, pattern in ipairs {'found%.problem%(%s*"([%w_.]+)"', 'found%.warning%(%s*"([%w_.]+)"',
      'found%.note%(%s*"([%w_.]+)"', 'found%[[^%]]*%]%(%s*"(%a+%.[%w_]+)"', '= {"(reach%.[%w_]+)"'} do
      for id in source:gmatch(pattern) do
        n = n + 1
        assert(rows[id], "no row for " .. id)
      end
    end
    assert(n > 90, n)
  end)
end)

describe("its report #lua", function()
  it("groups by subject, problems first, and says what to do", function()
    local change
    for _, row in ipairs(ROWS) do
      if row[1] == "pci.acs_iommu" and row[2] == "problem" and not change then
        change = with(row[5], {env = {LM_SYNC = "1", NCCL_DEBUG = "INFO"}})
      end
    end
    local text, code = machine.ask(folder, change)
    assert.equal(1, code)
    assert.matches("^luminary %d[%d.]* on node1, Linux 6%.8%.0\n\nPCI: IOMMU and ACS\n  problem  IOMMU with ACS", text)
    assert.matches("seen: access control is on in 0000:00:01%.0", text)
    assert.matches("do:   BIOS: switch ACS off", text)
    local pci, sync, debug = text:find("pci.acs_iommu", 1, true), text:find("environment.lm_sync", 1, true),
      text:find("environment.nccl_debug", 1, true)
    assert(pci < sync and sync < debug, text)
    assert.matches("\n1 problem, 1 warning, 1 note; %d+ checks found nothing wrong %(%-%-verbose shows them%)\n$", text)
    assert.not_matches("%[gpu%.driver%]", text)
    for line in text:gmatch("[^\n]+") do assert(#line <= 104, line) end
    text = machine.ask(folder, with(change, {args = "--verbose"}))
    assert.matches("ok       the driver is loaded  %[gpu%.driver%]", text)
    assert.not_matches("\27", text)
  end)

  it("is one JSON object with the same keys always", function()
    local object = machine.run(folder, {files = {["/proc/sys/kernel/hostname"] = "no\255de\1\"\n"}})
    for _, key in ipairs {"version", "host", "kernel", "seconds", "exit_code", "counts", "findings"} do
      assert(object[key] ~= nil, key)
    end
    assert.equal('no?de?"', object.host)
    assert.equal("number", type(object.seconds))
    assert.equal("Linux 6.8.0", object.kernel)
    local n = {problem = 0, warning = 0, note = 0, ok = 0}
    for _, one in ipairs(object.findings) do
      n[one.severity] = n[one.severity] + 1
      for _, key in ipairs {"id", "subject", "severity", "title", "reason", "remedy"} do
        assert.equal("string", type(one[key]), key)
      end
      if one.severity ~= "ok" and one.severity ~= "note" then assert(#one.remedy > 0, one.id) end
    end
    assert.same(n, object.counts)
  end)

  it("takes some subjects alone", function()
    local object = machine.run(folder, {args = "--only host,cores"})
    for _, one in ipairs(object.findings) do assert(one.subject == "host" or one.subject == "cores", one.id) end
  end)

  it("refuses what it does not know, with exit code 2", function()
    for args, message in pairs {
      ["--onyl host"] = "unrecognized argument '%-%-onyl'; did you mean '%-%-only'%?",
      ["--only disk"] = "unknown subject 'disk'; subjects are gpu",
      ["--with nowhere"] = "host:port", ["--with a:0"] = "'a:0'", ["--with ::1:80"] = "%[address%]:port",
      ["script.lua"] = "unrecognized argument 'script.lua'", ["--listen x"] = "port",
    } do
      local _, text, code = temp.run(folder, ranks.luminary .. " doctor " .. args)
      assert.equal(2, code, args)
      assert.matches(message, text)
    end
    local text, code = machine.ask(folder, {args = "--help"})
    assert.equal(0, code)
    assert.matches("^usage: luminary doctor", text)
  end)

  it("is not stopped by a check that fails, or by files that are nonsense", function()
    local junk = {}
    for path in pairs(machine.clean.files) do
      if not path:match("^/usr") then junk[path] = "\255\0}{%%%s 99999999999999999999 -1:-1 \n\n" end
    end
    local bin = {}
    for name in pairs(machine.clean.bin) do bin[name] = "head -c 3000 /dev/urandom\n" end
    local object, code = machine.run(folder, {files = junk, bin = bin})
    assert(code == 0 or code == 1)
    for _, one in ipairs(object.findings) do assert.not_matches("%.failed$", one.id:gsub("^peers.failed$", ""),
      one.reason) end
    object, code = machine.run(folder, {shell = "rm -rf ./*"})
    assert(code == 0 or code == 1)
    for _, one in ipairs(object.findings) do assert.not_matches("%.failed$", one.id, one.reason) end
  end)
end)

describe("what commands print #lua", function()
  it("is read no further than it makes sense", function()
    local began = core.time()
    local _, code, _, text = machine.run(folder, {bin = {nft = "exec yes " .. ("x"):rep(1000)},
      args = "--only network"})
    assert.equal(0, code, text)
    within(core.time() - began, 4)
  end)

  it("does not reach the terminal as control characters", function()
    local odd = "printf 'a\\033[2J\\r\\177b\\tc\\n'; exit 1"
    local object = machine.run(folder, {bin = {nft = odd, iptables = odd}, args = "--only network"})
    for _, one in ipairs(object.findings) do
      if one.id == "network.firewall_unknown" then assert.equal("iptables: a?[2J??b\tc", one.reason) end
      assert.not_matches("[%z\1-\8\11-\31\127]", one.reason)
    end
  end)
end)

describe("other machines #lua", function()
  local function doctor(args, seconds)
    local _, text, code = temp.run(folder, ("timeout -k 1 %d %s doctor %s"):format(seconds or 30, ranks.luminary, args))
    return text, code
  end

  local function findings(args)
    local text, code = doctor(args .. " --only reach --json")
    local by_id = {}
    for _, one in ipairs(core.json_decode(text).findings) do by_id[one.id] = one end
    return by_id, code
  end

  local function listener(args)
    local job = ranks.start {n = 1, file = ranks.luminary, args = "doctor " .. args, timeout = 60}
    assert(job:wait_for(0, "listening on port"))
    return job, tonumber(job:output(0):match("port (%d+)"))
  end

  it("answers --listen with round trip and bandwidth, both ways, over IPv4 and IPv6", function()
    local job, port = listener "--listen 0"
    for _, host in ipairs {"127.0.0.1", "[::1]"} do
      local found, code = findings(("--with %s:%d"):format(host, port))
      assert.equal(0, code)
      local speed = found["reach.speed"] or found["reach.slow"]
      assert.matches("round trip [%d.]+ ms %(median of 50%), [%d.]+ GB/s there, [%d.]+ GB/s back", speed.reason)
      assert(not time.judged or tonumber(speed.reason:match("([%d.]+) GB/s there")) > 0.01)
    end
    assert.matches("127.0.0.1 asks", job:output(0))
    job:kill(0)
    job:wait()
    local _, code = findings(("--with 127.0.0.1:%d"):format(port))
    assert.equal(1, code)
  end)

  it("survives clients that talk nonsense, and a port that is taken", function()
    local job, port = listener "--listen 0"
    temp.run(folder, ("timeout 5 luajit -e '%s' %d"):format([[
      package.path = arg[2] or package.path
      for _, text in ipairs {"GET / HTTP/1.0\r\n\r\n", "take999999999999", "give", "ping           x"} do
        local socket = assert(require("luminary.core").tcp_connect("127.0.0.1:" .. arg[1], 2))
        assert(socket:send(text, 1))
        socket:close()
      end]], port))
    local found = findings(("--with 127.0.0.1:%d"):format(port))
    assert(found["reach.speed"] or found["reach.slow"])
    local text, code = doctor(("--listen %d"):format(port))
    assert.equal(1, code)
    assert.matches("cannot listen on port " .. port, text)
    job:kill(0)
    job:wait()
  end)

  it("knows a luminary store, and a stranger", function()
    local port = ranks.free_port()
    local job = ranks.start {n = 1, timeout = 40, env = {MASTER_PORT = port, WORLD_SIZE = 2}, script = [[
      require("luminary").dist.init_process_group("gloo", {timeout = 30})
    ]]}
    local found, code
    for _ = 1, 50 do
      found, code = findings(("--with 127.0.0.1:%d"):format(port))
      if found["reach.connected"] then break end
      ranks.sleep(0.1)
    end
    assert.equal(0, code)
    assert(found["reach.store"], "a store")
    job:kill(0)
    job:wait()
    local stranger = ranks.start {n = 1, timeout = 20, script = [[
      local listener, address = require("luminary.core").tcp_listen(0)
      print("port " .. address:match "%d+$")
      io.stdout:flush()
      local socket = listener:accept(15)
      socket:receive(1, 15)
    ]]}
    assert(stranger:wait_for(0, "port"))
    found, code = findings("--with 127.0.0.1:" .. stranger:output(0):match("port (%d+)"))
    assert.equal(0, code)
    assert(found["reach.stranger"])
    stranger:wait()
  end)

  it("tells who does not answer from who cannot be reached", function()
    -- A listener whose queue is full drops what comes, as a firewall does.
    local full = ranks.start {n = 1, timeout = 30, script = [[
      local ffi = require "ffi"
      ffi.cdef [=[int socket(int, int, int); int listen(int, int); int getsockname(int, void *, unsigned *);
        int poll(void *, unsigned long, int);]=]
      local listener, address = ffi.C.socket(2, 1, 0), ffi.new "uint8_t[16]"
      ffi.C.listen(listener, 0) -- at a port that the system chooses
      ffi.C.getsockname(listener, address, ffi.new("unsigned[1]", 16))
      local port, held = address[2] * 256 + address[3], {}
      for i = 1, 3 do held[i] = require("luminary.core").tcp_connect("127.0.0.1:" .. port, 0.2) end
      print("port " .. port)
      io.stdout:flush()
      ffi.C.poll(nil, 0, 20000)
    ]]}
    assert(full:wait_for(0, "port"))
    local found, code = findings("--with 127.0.0.1:" .. full:output(0):match("port (%d+)"))
    assert.equal(1, code)
    assert.matches("127.0.0.1: timed out %(5 s%)", found["reach.timed_out"].reason)
    assert.matches("firewall", found["reach.timed_out"].remedy)
    full:kill(0)
    full:wait()
    local _, text = temp.run(folder, ("timeout 20 unshare -rn %s doctor --only reach --with 203.0.113.9:80 --json")
      :format(ranks.luminary))
    if text:find("^{") then -- namespaces may be forbidden here
      assert.matches('"reach.unreachable"', text)
      assert.matches("ip route get", text)
    end
  end)
end)

describe("this machine #lua", function()
  local function look(args, env)
    local _, text, code = temp.run(folder, ("%s timeout -k 1 60 %s doctor --json %s"):format(env or "", ranks.luminary,
      args or ""))
    local by_id = {}
    local object = core.json_decode(text)
    for _, one in ipairs(object.findings) do by_id[one.id] = one end
    return object, code, by_id
  end

  it("is looked at within seconds", function()
    local object, code = look()
    assert.equal(object.counts.problem > 0 and 1 or 0, code)
    within(object.seconds, 30)
    for _, one in ipairs(object.findings) do assert.not_matches("%.failed$", one.id, one.reason) end
  end)

  it("is not said to be well if nobody can read it", function()
    for _, sink in ipairs {"/dev/full", "&-"} do
      local _, text, code = temp.run(folder, ("%s doctor --only cores >%s"):format(ranks.luminary, sink))
      assert.equal(1, code, text)
      assert.matches("luminary doctor: the report could not be written: ", text, 1, true)
    end
  end)

  it("is looked at even if luminary's own library does not load", function()
    temp.run(folder, ("mkdir -p %s/broken/luminary"):format(folder))
    temp.write(folder .. "/broken/luminary/core.so", "no library")
    local object, code, found = look("--only libraries,cores", ("LUA_CPATH='%s/broken/?.so'"):format(folder))
    assert.equal(1, code)
    assert.matches("broken/luminary/core.so': .*file too short", found["libraries.core"].reason)
    found = select(3, look("--only network --with 127.0.0.1:1", ("LUA_CPATH='%s/broken/?.so'"):format(folder)))
    assert.equal("the way to 127.0.0.1:1 was not tried", found["reach.no_core"].title)
    assert.matches("^%d+%.%d+", object.version)
    local _, text
    _, text, code = temp.run(folder, ("LUA_CPATH='%s/broken/?.so' %s doctor --onyl"):format(folder, ranks.luminary))
    assert.equal(2, code)
    assert.matches("unrecognized argument '%-%-onyl'", text)
  end)

  it("has the same addresses by ip and by the core", function()
    local found = require "luminary.cli.doctor.ip_addresses"
    local function sorted(list)
      local out = {}
      for i, one in ipairs(list) do out[i] = ("%s %s/%d"):format(one.interface, one.address, one.bits) end
      table.sort(out)
      return out
    end
    local by_ip = found.of_ip()
    if by_ip then assert.same(sorted(by_ip), sorted(found.of_core())) end
  end)

  local fake = assert(package.searchpath("luminary.core", package.cpath)):gsub("core%.so$", "fake_cuda.so")
  local there = io.open(fake)
  if there then there:close() end

  it("measures copies between GPUs, over a runtime without any #unsanitized", function()
    if not there then return pending "no fake CUDA runtime is built" end
    local env = "env -u LM_FAKE_CUDA_FAIL LD_PRELOAD=" .. fake .. " LM_FAKE_CUDA_DEVICES="
    local _, code, found = look("--only peers", env .. "4")
    assert.equal(0, code)
    local rows = 0
    for _ in found["peers.matrix"].reason:gmatch("\ncuda:%d ") do rows = rows + 1 end
    assert.equal(4, rows)
    assert.not_matches("%?", found["peers.matrix"].reason)
    assert.matches("cuda:3: pinned [%d.]+ up, [%d.]+ down; pageable [%d.]+ up", found["peers.pinned"].reason)
    local batches = "" -- measured values put each card into one of the two
    for _, id in ipairs {"peers.batches", "peers.pinning"} do
      batches = batches .. (found[id] or {reason = ""}).reason
    end
    assert.matches("cuda:3, 16.8 MB: [%d.]+ ms as it is; pinned [%d.]+ ms", batches)
    _, code, found = look("--only peers", env .. "2 LM_FAKE_CUDA_NULL=1") -- nothing arrives
    assert.equal(1, code)
    assert.matches("cuda:0 to cuda:1, cuda:1 to cuda:0", found["peers.wrong"].reason)
    _, code, found = look("--only peers", env .. "2 LM_FAKE_CUDA_FAIL=cudaMemcpyPeerAsync:1:1")
    assert.equal(0, code)
    assert.matches("cudaMemcpyPeerAsync", found["peers.failed"].reason)
  end)

  it("says when the library has no code for the GPU, and how to build it", function()
    if not there then return pending "no fake CUDA runtime is built" end
    local env = "env -u LM_FAKE_CUDA_FAIL LD_PRELOAD=" .. fake .. " LM_FAKE_CUDA_IMAGE=0"
    local _, code, found = look("--only peers", env)
    assert.equal(1, code)
    local said = found["libraries.no_kernels"]
    assert.matches("cudaErrorNoKernelImageForDevice", said.reason)
    assert.equal("build it with CUDAARCHS=90 scripts/setup", said.remedy)
    for _, error in ipairs { 218, 221, 222, 223 } do -- PTX that the driver does not, or cannot, compile
      env = ("LD_PRELOAD=%s LM_FAKE_CUDA_FAIL=cudaLaunchKernel:1:%d"):format(fake, error)
      said = select(3, look("--only peers", env))["libraries.no_kernels"]
      assert.matches("error " .. error, said.reason)
      assert.equal("build it with CUDAARCHS=90 scripts/setup", said.remedy)
    end
  end)
end)
