-- lm.watch: event files for TensorBoard, JSON lines, CSV. scripts/dev/check_tensorboard.py compares event files with
-- PyTorch's as TensorBoard reads them.
local lm = require "luminary"
local message = require "spec.support.error_of"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"
local event_file = require "luminary.watch.event_file"
local bit, ffi = require "bit", require "ffi"
local nn, watch = lm.nn, lm.watch

local function hex(bytes) return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end)) end

-- ---- a reader of event files: of the wire format alone, without the writer's schema

local function varint(text, at)
  local value, factor = 0ULL, 1ULL
  repeat
    local byte = text:byte(at)
    value, factor, at = value + factor * bit.band(byte, 127), factor * 128, at + 1
  until byte < 128
  return tonumber(ffi.cast("int64_t", value)), at
end

-- Returns the fields of a message: lists of values by number.
local function fields_of(text)
  local fields, at = {}, 1
  while at <= #text do
    local key, value
    key, at = varint(text, at)
    local number, wire = math.floor(key / 8), key % 8
    if wire == 0 then
      value, at = varint(text, at)
    elseif wire == 1 then
      value, at = ffi.cast("const double *", text:sub(at, at + 7))[0], at + 8
    elseif wire == 5 then
      value, at = ffi.cast("const float *", text:sub(at, at + 3))[0], at + 4
    else
      local n
      n, at = varint(text, at)
      value, at = text:sub(at, at + n - 1), at + n
    end
    fields[number] = fields[number] or {}
    table.insert(fields[number], value)
  end
  return fields
end

-- Returns the checksum bit by bit.
local function masked_crc(bytes)
  local crc = 0xffffffffULL
  for i = 1, #bytes do
    crc = bit.bxor(crc, bytes:byte(i))
    for _ = 1, 8 do
      crc = crc % 2 == 1 and bit.bxor(crc / 2, 0x82f63b78ULL) or crc / 2
    end
  end
  crc = bit.bxor(crc, 0xffffffffULL)
  return tonumber((crc / 2 ^ 15 + (crc % 2 ^ 15) * 2 ^ 17 + 0xa282ead8ULL) % 2 ^ 32)
end

local function little_endian(text)
  local a, b, c, d = text:byte(1, 4)
  return a + b * 2 ^ 8 + c * 2 ^ 16 + d * 2 ^ 24
end

-- Returns the events of a folder's files: fields of the event, tag, and fields of the summary's value.
local function events_in(folder)
  local events = {}
  for name in lm.paths.files(folder, "tfevents") do
    local text, at = temp.read(folder .. "/" .. name), 1
    while at <= #text do
      local n = little_endian(text:sub(at, at + 3))
      assert.equal(masked_crc(text:sub(at, at + 7)), little_endian(text:sub(at + 8, at + 11)))
      local bytes = text:sub(at + 12, at + 11 + n)
      assert.equal(masked_crc(bytes), little_endian(text:sub(at + 12 + n)))
      local event = fields_of(bytes)
      if event[5] then
        event.value = fields_of(fields_of(event[5][1])[1][1])
        event.tag = event.value[1][1]
      end
      events[#events + 1] = event
      at = at + 16 + n
    end
  end
  return events
end

local function by_tag(events)
  local found = {}
  for _, event in ipairs(events) do
    if event.tag then found[event.tag] = event end
  end
  return found
end

local folder = temp.during(before_each, after_each)

describe("watch.SummaryWriter", function()
  it("has the bytes of TensorBoard's own writer", function()
    local function bytes(event) return hex(event_file.record(event_file.encode("Event", event))) end
    assert.equal("1a00000000000000129bd82d09000000000000144010032a0d0a0b0a046c6f7373150000003f264e452b",
      bytes {wall_time = 5, step = 3, summary = {value = {{tag = "loss", simple_value = 0.5}}}})
    assert.equal("6e00000000000000c4bf336409000000000000f83f10f9ffffffffffffffff012a580a560a01682a5109000000000000f0bf"
      .. "11000000000000004019000000000000084021000000000000f03f2900000000000015403210000000000000f0bf0000000000000040"
      .. "3a10000000000000000000000000000008404b6e7f8e",
      bytes {wall_time = 1.5, step = -7, summary = {value = {{tag = "h", histo = {
        min = -1, max = 2, num = 3, sum = 1, sum_squares = 5.25, bucket_limit = {-1, 2}, bucket = {0, 3},
      }}}}})
    assert.equal("e60000000000000071234f8709000000000000f83f108080808080202ad3010ad0010ac801" .. ("74"):rep(200)
      .. "150000c07fdd26d9b7", bytes {wall_time = 1.5, step = 2 ^ 40, summary = {value = {{
        tag = ("t"):rep(200), simple_value = -(0 / 0)}}}})
  end)

  it("writes numbers", function()
    local writer = watch.SummaryWriter(folder .. "/run")
    writer:add_scalar("loss", lm.tensor {0.25}, 3, 7)
    writer:add_scalar("exact", 0.1, 4, 7, {double_precision = true})
    writer:log_metrics({accuracy = lm.tensor(0.5), f1 = 1}, 5)
    writer:add_scalars("both", {train = 1, test = 2}, 6)
    writer:close()
    local events = events_in(folder .. "/run")
    assert.equal("brain.Event:2", events[1][3][1])
    assert.same({7, 3, 0.25}, {events[2][1][1], events[2][2][1], events[2].value[2][1]})
    local tagged = by_tag(events)
    assert.equal(0.1, ffi.cast("const double *", fields_of(tagged.exact.value[8][1])[6][1])[0])
    assert.equal(0.5, tagged.accuracy.value[2][1])
    assert.equal(5, tagged.f1[2][1])
    assert(math.abs(tagged.f1[1][1] - os.time()) < 100)
    assert.equal(2, by_tag(events_in(folder .. "/run/both_test")).both.value[2][1])
    assert.equal(1, by_tag(events_in(folder .. "/run/both_train")).both.value[2][1])
  end)

  it("writes histograms, images and text", function()
    local writer = watch.SummaryWriter(folder)
    writer:add_histogram("h", lm.tensor {1, 2, 2, 4, 0 / 0, math.huge}, 1, {bins = {0, 1, 2, 3, 4, 5}})
    writer:add_histogram("two", {1, 2, 3, 5}, 1, {bins = 2})
    writer:add_histogram("default", lm.tensor {0.5, -2}, 1)
    local image = lm.arange(24):reshape(2, 4, 3):to "uint8"
    writer:add_image("image", image, 1, {dataformats = "HWC"})
    writer:add_image("float", image:permute(3, 1, 2):float():div(255), 1)
    writer:add_images("grid", lm.rand(10, 1, 4, 5), 1)
    writer:add_text("notes", "a *text*", 1)
    writer:close()
    local tagged = by_tag(events_in(folder))
    local function doubles(text)
      local list = {}
      for i = 0, #text / 8 - 1 do list[i + 1] = ffi.cast("const double *", text)[i] end
      return list
    end
    local h = fields_of(tagged.h.value[5][1])
    assert.same({1, 4, 4, 9, 25}, {h[1][1], h[2][1], h[3][1], h[4][1], h[5][1]})
    assert.same({1, 2, 3, 4, 5}, doubles(h[6][1]))
    assert.same({0, 1, 2, 0, 1}, doubles(h[7][1]))
    local two = fields_of(tagged.two.value[5][1])
    assert.same({1, 3, 5}, doubles(two[6][1]))
    assert.same({0, 2, 2}, doubles(two[7][1])) -- the last bucket has its upper edge
    local default = fields_of(tagged.default.value[5][1])
    local limits, counts = doubles(default[6][1]), doubles(default[7][1])
    assert.equal(2, counts[2] + counts[#counts])
    assert(limits[1] <= -2 and limits[2] > -2 and limits[#limits] > 0.5 and limits[#limits - 1] <= 0.5)
    for _, tag in ipairs {"image", "float"} do
      local png = fields_of(tagged[tag].value[4][1])
      assert.same({2, 4, 3}, {png[1][1], png[2][1], png[3][1]})
      assert.is_true(lm.vision.decode_image(png[4][1]):equal(image:permute(3, 1, 2)))
    end
    local grid = fields_of(tagged.grid.value[4][1])
    assert.same({8, 40}, {grid[1][1], grid[2][1]})
    local text = tagged["notes/text_summary"].value
    assert.equal("a *text*", fields_of(text[8][1])[8][1])
    assert.equal("text", fields_of(fields_of(text[9][1])[1][1])[1][1])
  end)

  it("writes hyperparameters as a run", function()
    local writer = watch.SummaryWriter(folder)
    writer:add_hparams({lr = 0.5, opt = "sgd", big = true}, {["hparam/loss"] = 2}, {run_name = "trial"})
    writer:close()
    local tagged = by_tag(events_in(folder .. "/trial"))
    local function session(tag, number)
      local plugin = fields_of(fields_of(tagged["_hparams_/" .. tag].value[9][1])[1][1])
      assert.equal("hparams", plugin[1][1])
      return fields_of(fields_of(plugin[2][1])[number][1])
    end
    local started = session("session_start_info", 3)
    local values = {}
    for _, entry in ipairs(started[1]) do
      local fields = fields_of(entry)
      values[fields[1][1]] = fields_of(fields[2][1])
    end
    assert.same({lr = {[2] = {0.5}}, opt = {[3] = {"sgd"}}, big = {[4] = {1}}}, values)
    assert.equal(3, #session("experiment", 2)[4])
    assert.equal(1, session("session_end_info", 4)[1][1])
    assert.equal(2, tagged["hparam/loss"].value[2][1])
  end)

  it("writes the graph of a model, with the edges that functions between modules make", function()
    local Block = nn.Module:extend "Block"
    function Block:init()
      self.conv = nn.Conv2d(2, 2, 3, {padding = 1})
      self.norm = nn.BatchNorm2d(2)
    end
    function Block:forward(x) return self.norm(self.conv(x)):add_(x):relu_(), x:argmax(2) end
    local Two = nn.Module:extend "Two"
    function Two:init()
      self.block = Block()
      self.shared = nn.ReLU()
      self.embed = nn.Embedding(9, 4)
      self.rnn = nn.LSTM(4, 4)
    end
    function Two:forward(x, ids)
      local y = self.block(x)
      local z, state = self.rnn(self.embed(ids))
      return self.shared(y):sum() * self.shared(z):sum() + state[1]:sum()
    end
    local net = Two()
    local mean, mode = net.block.norm.running_mean:clone(), net.training
    local writer = watch.SummaryWriter(folder)
    writer:add_graph(net, {lm.rand(1, 2, 4, 4), lm.ones(3, 1, {dtype = "int64"})})
    writer:close()
    local nodes = {}
    for _, event in ipairs(events_in(folder)) do
      for _, node in ipairs(event[4] and fields_of(event[4][1])[1] or {}) do
        local fields = fields_of(node)
        table.sort(fields[3] or {})
        nodes[fields[1][1]] = {fields[2][1], unpack(fields[3] or {})}
      end
    end
    assert.same({
      input = {"input"}, ["Two/block/conv"] = {"Conv2d", "input"},
      ["Two/block/norm"] = {"BatchNorm2d", "Two/block/conv"}, ["Two/embed"] = {"Embedding", "input"},
      ["Two/rnn"] = {"LSTM", "Two/embed"}, ["Two/shared"] = {"ReLU", "Two/block/norm", "input"},
      ["Two/shared_2"] = {"ReLU", "Two/rnn"}, output = {"output", "Two/rnn", "Two/shared", "Two/shared_2"},
    }, nodes)
    assert.is_true(net.block.norm.running_mean:equal(mean))
    assert.equal(mode, net.training)
    assert.is_nil(net.block.conv.weight.grad)
    net(lm.rand(1, 2, 4, 4), lm.ones(3, 1, {dtype = "int64"})) -- leaves no hook
  end)

  it("begins again at a step, and has a folder by default", function()
    local writer = watch.SummaryWriter({log_dir = folder, purge_step = 40, filename_suffix = ".x"})
    writer:close()
    local events = events_in(folder)
    assert.equal(40, events[2][2][1])
    assert.equal(1, fields_of(events[2][7][1])[1][1])
    assert.matches("%.x$", lm.paths.files(folder, "tfevents")())
    local ok, text = temp.run(folder, "cd " .. folder .. [[ && luajit -e '
      local writer = require("luminary").watch.SummaryWriter {comment = "_test"}
      writer:add_scalar("x", 1, 1)
      io.write(writer:get_logdir())']])
    assert(ok, text)
    assert.matches("^runs/%a%a%a%d%d_%d%d%-%d%d%-%d%d_.*_test$", text)
  end)

  it("writes UTF-8, whatever the tags", function()
    local writer = watch.SummaryWriter(folder .. "/run")
    writer:add_scalar("a\255/é", 1, 1)
    writer:close()
    local ok, text = temp.run(folder, ("cat %s/run/events*"):format(folder))
    assert(ok)
    assert.matches("a\239\191\189/é", text, 1, true)
    local json = watch.JSONLogger(folder .. "/run.jsonl")
    json:add_text("a\255", "\254", 1)
    json:close()
    assert.is_true(lm.core.is_utf8_text(temp.read(folder .. "/run.jsonl")))
  end)

  it("warns once of what is added after the end", function()
    local ok, text = temp.run(folder, ([[luajit -e '
      local writer = require("luminary").watch.SummaryWriter "%s/run"
      writer:close()
      for step = 1, 3 do writer:add_scalar("x", 1, step) end
      writer:close()' 2>&1]]):format(folder))
    assert(ok, text)
    local warning = "cannot write '[^\n]*': the log is closed; nothing more is written"
    assert.equal(1, select(2, text:gsub(warning, "")))
  end)

  it("rejects wrong calls", function()
    local writer = watch.SummaryWriter(folder)
    for _, row in ipairs {
      { "scalar_value must be a number or a tensor of one element",
        function() writer:add_scalar("x", lm.ones(2), 1) end },
      { "scalar_value must be a number", function() writer:add_scalar("x", "1", 1) end },
      { "global_step must be an integer", function() writer:add_scalar("x", 1, 1.5) end },
      { "at least one finite element", function() writer:add_histogram("x", lm.zeros(0), 1) end },
      { "dataformats must be 3 letters",
        function() writer:add_image("x", lm.ones(3, 4, 5), 1, {dataformats = "HW"}) end },
      { "number of channels must be from 1 to 4, got 5", function() writer:add_image("x", lm.ones(5, 4, 3), 1) end },
      { "hparam_dict.x must be a number, a string or a boolean", function() writer:add_hparams({x = {}}, {}) end },
      { "no field 'add_video'; this version writes scalars", function() writer:add_video("x") end },
      { "model must be a module", function() writer:add_graph(3, lm.ones(1)) end },
      { "hparam_domain_discrete.lr%[2%] must be a number, a string or a boolean, got a table",
        function() writer:add_hparams({lr = 1}, {m = 1}, {hparam_domain_discrete = {lr = {1, {}}}}) end },
      { "bins must be at least two numbers, each greater than the last, got",
        function() writer:add_histogram("x", lm.ones(2), 1, {bins = {3, 2}}) end },
      { "bins must be at least two numbers", function() writer:add_histogram("x", lm.ones(2), 1, {bins = {1}}) end },
      { "run_name must be inside of log_dir, got string '%.%./x'",
        function() writer:add_hparams({lr = 1}, {m = 1}, nil, "../x") end },
      { "the tag must be inside of log_dir, got string 'm_%.%./%.%./x'",
        function() writer:add_scalars("m", {["../../x"] = 1}) end },
      { "filename_suffix must be without a slash, got string '/%.%./x'",
        watch.SummaryWriter, {log_dir = folder, filename_suffix = "/../x"} },
    } do
      assert.matches(row[1], message(unpack(row, 2, table.maxn(row))))
    end
    writer:close()
    assert.matches("cannot write '/proc/none/", message(watch.SummaryWriter, "/proc/none"))
  end)
end)

describe("watch.JSONLogger", function()
  local function lines_of(path)
    local list = {}
    for line in io.lines(path) do list[#list + 1] = lm.core.json_decode((line:gsub(":null", ":false"))) end
    return list
  end

  it("writes an object a line", function()
    local path = folder .. "/new/log.jsonl"
    local log = watch.JSONLogger(path)
    log:add_scalar("loss", lm.tensor(0.5), 1)
    assert.equal(1, #lines_of(path)) -- at once
    log:log_metrics({loss = 0 / 0, ["100%"] = 1}, 2, 7)
    log:add_scalars("both", {a = 1, b = 2}, 3)
    log:add_text("notes", 'a "text"\n', 4)
    log:add_histogram("weights", lm.tensor {1, 3}, 5)
    log:add_hparams({lr = 0.1, opt = "sgd"}, {accuracy = 1})
    log:close()
    local more = watch.JSONLogger(path, {append = true})
    more:add_scalar("loss", 2, 6)
    more:close()
    local list = lines_of(path)
    assert.same({0.5, 1}, {list[1].loss, list[1].step})
    assert(math.abs(list[1].wall_time - os.time()) < 100)
    assert.matches('"loss":null', temp.read(path), 1, true)
    assert.same({1, 2, 7}, {list[2]["100%"], list[2].step, list[2].wall_time})
    assert.same({1, 2}, {list[3]["both/a"], list[3]["both/b"]})
    assert.equal('a "text"\n', list[4].notes)
    assert.same({min = 1, max = 3, num = 2, mean = 2, std = 1}, list[5].weights)
    assert.same({hparams = {lr = 0.1, opt = "sgd"}, metrics = {accuracy = 1}},
      {hparams = list[6].hparams, metrics = list[6].metrics})
    assert.equal(2, list[7].loss)
  end)

  it("goes on without a full disk, and warns once of what it leaves out", function()
    local ok, text = temp.run(folder, [[luajit -e '
      local lm = require "luminary"
      local log = lm.watch.JSONLogger "/dev/full"
      for step = 1, 3 do log:add_scalar("x", 1, step) end
      log:close()
      local csv = lm.watch.CSVLogger "/dev/null"
      for step = 1, 3 do csv:add_text("x", "text", step) end
      local endless = lm.watch.CSVLogger "/dev/zero" -- /dev/zero is never read
      for step = 1, 3 do endless:add_scalar("x" .. step, 1, step) end
      endless:close()
      print "the end"' 2>&1]])
    assert(ok, text)
    assert.equal(1, select(2, text:gsub("cannot write '/dev/full': No space left on device", "")))
    assert.equal(1, select(2, text:gsub("CSVLogger: text is left out", "")))
    assert.matches("the end", text)
    local log = watch.JSONLogger(folder .. "/x")
    assert.matches("a tag must be neither", message(function() log:add_scalar("step", 1) end))
    log:close()
  end)
end)

describe("watch.CSVLogger", function()
  it("writes a row a step, and a column a tag, also of tags that come later", function()
    local path = folder .. "/log.csv"
    local log = watch.CSVLogger(path)
    log:add_scalar("loss", 0.5, 1, 10)
    log:add_scalar("acc", 1, 1, 11)
    log:add_scalar("loss", 0.25, 2, 12)
    log:log_metrics({loss = 0.1, ["a,\"b"] = 3}, 3, 13)
    log:close()
    assert.equal('step,wall_time,loss,acc,"a,""b"\n1,10,0.5,1,\n2,12,0.25,,\n3,13,0.1,,3\n', temp.read(path))
    local more = watch.CSVLogger(path, {append = true})
    more:log_metrics({["a,\"b"] = 4}, 4, 14)
    more:log_metrics({new = 5}, 5, 15)
    more:close()
    assert.equal('step,wall_time,loss,acc,"a,""b",new\n1,10,0.5,1,,\n2,12,0.25,,,\n3,13,0.1,,3,\n4,14,,,4,\n'
      .. "5,15,,,,5\n", temp.read(path))
  end)

  it("replaces the rows of an earlier run unless append is true", function()
    local path = folder .. "/again.csv"
    local function run(opts, values, time)
      local log = watch.CSVLogger(path, opts)
      log:log_metrics(values, 1, time)
      log:close()
    end
    run({}, {accuracy = 0.9, loss = 0.5}, 7)
    run({append = false}, {val = 0.25}, 8)
    assert.equal("step,wall_time,val\n1,8,0.25\n", temp.read(path))
    run({}, {val = 0.5}, 9)
    assert.equal("step,wall_time,val\n1,9,0.5\n", temp.read(path))
    run({append = true}, {val = 1}, 10)
    assert.equal("step,wall_time,val\n1,9,0.5\n1,10,1\n", temp.read(path))
  end)

  it("appends to a file whose last line has no end", function()
    local path = folder .. "/part.csv"
    temp.write(path, "step,wall_time,a\n1,7,")
    local log = watch.CSVLogger(path, {append = true})
    log:add_scalar("a", 5, 2, 8)
    log:close()
    assert.equal("step,wall_time,a\n1,7,\n2,8,5\n", temp.read(path))
  end)

  it("appends to a file of another program, without a column 'step'", function()
    local path = folder .. "/foreign.csv"
    temp.write(path, "loss,epoch\n0.5,1\n")
    local log = watch.CSVLogger(path, {append = true})
    log:log_metrics({loss = 0.25}, 2, 7)
    log:close()
    assert.equal("loss,epoch,step,wall_time\n0.5,1,,\n0.25,,2,7\n", temp.read(path))
  end)

  it("keeps all earlier rows where no space is left for a new column", function()
    temp.write(folder .. "/full.lua", [[
      local log = require("luminary").watch.CSVLogger(arg[1] .. "/log.csv")
      for i = 1, 120 do log:log_metrics({loss = i}, i, 1) end
      for i = 121, 125 do log:log_metrics({loss = i, acc = 1}, i, 1) end
      log:close()]])
    local _, output, code = temp.run(folder, ("bash -c 'trap \"\" XFSZ; ulimit -f 1; luajit %s/full.lua %s'"):format(
      folder, folder))
    assert.equal(0, code, output)
    assert.matches("CSVLogger: cannot write '[^']*log.csv': [^\n]*; each further entry tries again\n", output)
    assert.matches("CSVLogger: '[^']*log.csv' is closed; 5 entries are lost\n$", output)
    local expected = {"step,wall_time,loss"}
    for i = 1, 120 do expected[#expected + 1] = ("%d,1,%d"):format(i, i) end
    assert.equal(table.concat(expected, "\n", 1, 121) .. "\n", temp.read(folder .. "/log.csv"))
    assert.same({".", "..", "full.lua", "log.csv"}, lm.paths.dir(folder))
  end)
end)

describe("A log that cannot be written for a while", function()
  -- Runs a script with `limit`, which sets how many bytes a file may have (-1: any number). Returns what it printed.
  local function run(text, code)
    temp.write(folder .. "/limited.lua", [[
      local ffi = require "ffi"
      ffi.cdef "int setrlimit(int, const long *); void *signal(int, void *);"
      ffi.C.signal(25, ffi.cast("void *", 1)) -- SIGXFSZ
      local function limit(bytes) assert(ffi.C.setrlimit(1, ffi.new("long[2]", bytes, -1)) == 0) end
      local watch, folder = require("luminary").watch, arg[1]
    ]] .. text)
    local ok, output = temp.run(folder, ("bash -c 'set -o pipefail; luajit %s/limited.lua %s 2>&1 | cat'"):format(
      folder, folder))
    assert(ok == not code, output)
    return output
  end
  local function lines(name)
    local list = {}
    for line in io.lines(folder .. "/" .. name) do list[#list + 1] = line end
    return list
  end

  it("has each entry once it can, and warns once", function()
    local output = run [[
      local json, csv = watch.JSONLogger(folder .. "/log.jsonl"), watch.CSVLogger(folder .. "/log.csv")
      for i = 1, 120 do
        if i == 20 then limit(200) end
        if i == 80 then limit(-1) end
        json:log_metrics({loss = i}, i, 1)
        csv:log_metrics(i < 90 and {loss = i} or {loss = i, acc = 1}, i, 1)
      end
      json:close()
      csv:close()
    ]]
    local json, csv = lines "log.jsonl", lines "log.csv"
    assert.equal(120, #json)
    for i, line in ipairs(json) do assert.matches(('"loss":%d,'):format(i), line) end
    assert.equal("step,wall_time,loss,acc", csv[1])
    assert.equal(121, #csv)
    for i = 1, 120 do assert.equal(("%d,1,%d,%s"):format(i, i, i < 90 and "" or "1"), csv[i + 1]) end
    for _, name in ipairs {"JSONLogger", "CSVLogger"} do
      assert.equal(2, select(2, output:gsub(name, "")), output)
      assert.matches(name .. ": cannot write '[^\n]*: File too large; each further entry tries again\n", output)
      assert.matches(name .. ": '[^\n]* is written again; 0 entries are lost\n", output)
    end
  end)

  it("says how many entries were lost", function()
    local output = run [[
      local log = watch.JSONLogger(folder .. "/log.jsonl")
      limit(700)
      for i = 1, 3000 do log:add_text("text", ("x"):rep(1000), i) end
      limit(-1)
      log:add_text("text", "last", 3001)
      log:close()
    ]]
    local list = lines "log.jsonl"
    local lost = tonumber(output:match "is written again; (%d+) entries are lost\n")
    assert.is_true(lost > 1500 and lost < 2500, output)
    assert.equal(3001, #list + lost)
    assert.matches('"text":"last"', list[#list])
  end)

  it("has what was added where a script ends without closing it #lua", function() -- the unclosed state leaks
    for _, ending in ipairs {"", "os.exit(0)", "os.exit(0, true)", "error 'no more'"} do
      run("local log = watch.SummaryWriter(folder .. '/run') log:add_text('text', ('x'):rep(100), 1) " .. ending,
        ending:find "error" and 1)
      local name = lm.paths.dir(folder .. "/run")[3]
      assert.matches(("x"):rep(100), temp.read(folder .. "/run/" .. name), ending)
      lm.paths.rmall(folder .. "/run", "yes")
    end
  end)

  it("may be removed meanwhile", function()
    run [[
      local log = watch.JSONLogger(folder .. "/log.jsonl")
      limit(0)
      log:add_scalar("loss", 1, 1)
      os.remove(folder .. "/log.jsonl")
      limit(-1)
      log:add_scalar("loss", 2, 2)
      log:close()
    ]]
    assert.equal(2, #lines "log.jsonl")
  end)
end)

describe("Loggers of several ranks", function()
  it("write on rank 0 alone", function()
    local got = ranks.run {n = 2, env = {LM_TOKEN = "a token for specs"}, args = folder, script = [[
      local lm = require "luminary"
      lm.dist.init_process_group()
      local rank = lm.dist.get_rank()
      for i, log in ipairs {
        lm.watch.SummaryWriter(arg[1] .. "/run" .. rank), lm.watch.JSONLogger(arg[1] .. "/jsonl" .. rank),
        lm.watch.CSVLogger(arg[1] .. "/csv" .. rank), lm.watch.JSONLogger(arg[1] .. "/all" .. rank, {all_ranks = true}),
      } do
        log:add_scalar("x", 1, 1)
        log:add_histogram("h", lm.ones(2), 1)
        log:flush()
        log:close()
      end
      local bar = lm.watch.progress.new(1)
      bar:update(1)
    ]]}
    assert(got.ok, got.text)
    local names = {}
    for name in lm.paths.files(folder) do names[name] = true end
    for _, name in ipairs {"run0", "jsonl0", "csv0", "all0", "all1"} do assert.is_true(names[name], name) end
    for _, name in ipairs {"run1", "jsonl1", "csv1"} do assert.is_nil(names[name], name) end
    assert.matches("1/1  0:00 left", got[0].output, 1, true)
    assert.equal("", got[1].output)
  end)
end)
