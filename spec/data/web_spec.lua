-- WebDataset: tar archives.
local lm = require "luminary"
local sets = require "spec.support.sets"
local temp = require "spec.support.temp"
local tar = require "spec.support.tar"
local data = lm.data
local write, says, all, with, skipped_by_workers, folder =
  sets.write, sets.says, sets.all, sets.with, sets.skipped_by_workers, sets.folder
teardown(sets.remove)

describe("a WebDataset", function()
  local function shard(name, first, n, more)
    local files = {}
    for i = first, first + n - 1 do
      local key = ("%03d"):format(i)
      files[#files + 1] = {key .. ".cls", tostring(i)}
      files[#files + 1] = {key .. ".txt", "text " .. i}
      files[#files + 1] = {key .. ".meta.JSON", ('{"v": %d}'):format(i)}
      files[#files + 1] = {"README", "no sample"}
    end
    return write(name, tar.archive(files) .. (more or ""))
  end
  local function keys(set)
    local list = {}
    for sample in set:iter() do list[#list + 1] = tonumber(sample.__key__) end
    return list
  end
  setup(function()
    for k = 0, 2 do shard(("w/s-%02d.tar"):format(k), 4 * k, 4) end
    assert(os.execute(("gzip -c %s/w/s-02.tar >%s/w/z.tar.gz"):format(folder, folder)) == 0)
  end)

  it("groups the files of a key and decodes them", function()
    local set = data.WebDataset(folder .. "/w/s-00.tar")
    local sample = set:iter()()
    assert.same({__key__ = "000", cls = 1, txt = "text 0", ["meta.json"] = {v = 0}}, sample)
    local wanted = {fields = {"png;txt", "meta.json", "cls"}, base = 0}
    assert.same({"text 8", {v = 8}, 8}, {data.WebDataset(folder .. "/w/z.tar.gz", wanted):iter()()})
    assert.same({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, keys(data.WebDataset(folder .. "/w/s-{00..02}.tar")))
    assert.same({8, 9, 10, 11, 4, 5, 6, 7},
      keys(data.WebDataset {folder .. "/w/{z.tar.gz,s-01.tar}"}))
    local raw = data.WebDataset(folder .. "/w/s-00.tar", {decode = false}):iter()()
    assert.same({"0", '{"v": 0}'}, {raw.cls, raw["meta.json"]})
    local own = data.WebDataset(folder .. "/w/s-00.tar", {decode = {txt = function(s) return #s end}}):iter()()
    assert.equal(6, own.txt)
    assert.equal("WebDataset(3 shards)", tostring(data.WebDataset(folder .. "/w/s-{00..02}.tar")))
  end)

  it("decodes images through the transform", function()
    local image = lm.arange(12):view(1, 3, 4):to("uint8")
    local png = lm.vision.encode_png(image)
    lm.vision.write_file(folder .. "/one.png", png)
    local bytes = temp.read(folder .. "/one.png")
    local path = write("images.tar", tar.archive {{"a.png", bytes}, {"a.cls", "0"}, {"b.png", bytes:sub(1, -30)},
      {"b.cls", "0"}})
    local x, y = data.WebDataset(path, {fields = {"jpg;png", "cls"}}):iter()()
    assert.same({{3, 3, 4}, "float32", 1}, {{unpack(x.shape)}, x.dtype, y})
    assert.is_true(x:select(1, 1):mul(255):round():eq(image:select(1, 1)):all():item())
    local flat = data.WebDataset(path, {transform = function(v) return v:view(-1) end, on_error = "skip"})
    local next_one = flat:iter()
    assert.same({36, "uint8"}, {next_one().png:numel(), next_one() or "uint8"})
    assert.equal(1, flat:skipped())
    local stream = data.WebDataset(path):iter()
    stream()
    says(path .. ": b.png", stream)
    says("my own", data.WebDataset(path, {transform = function() error "my own" end, on_error = "skip"}):iter())
  end)

  it("reads names of every kind of archive", function()
    local long = ("deep/"):rep(30) .. ("n"):rep(120)
    write("names.tar", tar.member("dir", "", {kind = "5"}) .. tar.gnu_member(long .. ".txt", "gnu")
      .. tar.pax_member("pax/" .. long .. ".txt", "pax") .. tar.member("b.txt", "prefixed", {prefix = "some/folder"})
      .. tar.member("c.txt", "base 256", {size_field = "\128" .. ("\0"):rep(10) .. "\8"})
      .. tar.member("d.txt", "link", {kind = "2", size_field = ("0"):rep(11) .. "\0"}):sub(1, 512)
      .. tar.member("e.txt", "old", {magic = ("\0"):rep(8), kind = "\0"}) .. tar.ending)
    local got = {}
    for key, text in data.WebDataset(folder .. "/names.tar", {decode = false}):iter() do
      got[#got + 1] = {key.__key__, key.txt, text}
    end
    assert.same({{long, "gnu"}, {"pax/" .. long, "pax"}, {"some/folder/b", "prefixed"}, {"c", "base 256"},
      {"e", "old"}}, got)
  end)

  it("reads what tar itself writes", function()
    for i, format in ipairs {"v7", "ustar", "gnu", "pax"} do
      local path = ("%s/format-%s.tar"):format(folder, format)
      local name = i > 2 and ("k"):rep(150) or "k"
      write("f/" .. name .. ".txt", format)
      assert(os.execute(("tar -C %s/f --format=%s -cf %s %s.txt"):format(folder, format, path, name)) == 0)
      assert.same({__key__ = name, txt = format}, data.WebDataset(path):iter()())
    end
  end)

  it("is shared out over workers and ranks: each sample once, by threads as by processes", function()
    local expected = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
    local set = data.WebDataset(folder .. "/w/s-{00..02}.tar", {fields = {"cls", "txt"}, base = 0})
    for _, n in ipairs {0, 1, 2, 3, 8} do
      local got = {}
      local threads = all(set, {num_workers = n, batch_size = 2})
      for _, batch in ipairs(threads) do
        for _, v in ipairs(batch[1]) do got[#got + 1] = v end
      end
      table.sort(got)
      assert.same(expected, got)
      if n == 2 then
        assert.same(threads, all(set, {num_workers = n, batch_size = 2, worker_type = "process"}))
        assert.same(threads, all(set, {num_workers = n, batch_size = 2}))
      end
    end
    for _, parts in ipairs {2, 3, 5} do
      local got = {}
      for part = 0, parts - 1 do
        local mine = data.WebDataset(folder .. "/w/s-{00..02}.tar")
        mine:shard(part, parts)
        for _, key in ipairs(keys(mine)) do got[#got + 1] = key end
      end
      table.sort(got)
      assert.same(expected, got)
    end
    says("part 2 is out of range for 2 parts (parts start at 0)", set.shard, set, 2, 2)
  end)

  it("takes files larger than what is read at a time", function()
    local text = {}
    for i = 1, 40000 do text[i] = ("%08d long line of text\n"):format(i * 7919 % 100003) end
    local whole = table.concat(text):rep(2)
    local path = write("long.tar", tar.archive {{"a.txt", whole}, {"b.bin", whole}, {"b.txt", "last"}})
    assert(os.execute(("gzip -kf %s"):format(path)) == 0)
    for _, shard_path in ipairs {path, path .. ".gz"} do
      local next_one = data.WebDataset(shard_path, {fields = {"txt"}}):iter()
      assert.is_true(next_one() == whole)
      assert.equal("last", next_one())
      assert.is_nil(next_one())
    end
  end)

  it("is shuffled within a buffer, the same for the same seed", function()
    local set = data.WebDataset(folder .. "/w/s-{00..02}.tar", {fields = {"cls"}, shuffle = 4, shuffle_shards = true})
    local function run(seed, how) return all(set, with({batch_size = 3, seed = seed}, how or {})) end
    local first = run(1)
    assert.same(first, run(1))
    assert.not_same(first, run(2))
    local sorted = {}
    for _, batch in ipairs(first) do
      for _, v in ipairs(batch[1]) do sorted[#sorted + 1] = v end
    end
    assert.not_same({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, sorted)
    table.sort(sorted)
    assert.same({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, sorted)
    assert.same(run(1, {num_workers = 2}), run(1, {num_workers = 2, worker_type = "process"}))
    assert.same(run(1), run(1, {num_workers = 1}))
  end)

  it("says what is wrong with a shard or a sample", function()
    local function read(path, opts)
      local n = 0
      for _ in data.WebDataset(path, opts):iter() do n = n + 1 end
      return n
    end
    local whole = tar.archive {{"a.cls", "1"}, {"a.txt", "x"}, {"b.cls", "2"}, {"b.txt", "y"}}
    local function broken(name, text) return write("broken-" .. name .. ".tar", text) end
    local cut = broken("cut", whole:sub(1, 2 * 1024 + 700))
    says(cut .. "': truncated: the tar member at byte 2048 is incomplete", read, cut)
    assert.equal(1, read(cut, {on_error = "skip"}) + 0)
    local unended = broken("unended", whole:sub(1, 4 * 1024))
    says(unended .. "': truncated: the tar member at byte 4096 is incomplete", read, unended)
    local flipped = broken("sum", whole:sub(1, 1024) .. "X" .. whole:sub(1026))
    says(flipped .. "': malformed tar member at byte 1024: wrong checksum of its header", read, flipped)
    local none = broken("none", ("nonsense"):rep(200))
    says(none .. "': malformed tar member at byte 0: wrong checksum of its header; is it a tar archive?", read, none)
    says("': truncated: the tar member at byte 0 is incomplete", read, broken("empty", ""))
    local huge = broken("huge", tar.header("a.txt", 0, {size_field = "\128" .. ("\0"):rep(3) .. ("\255"):rep(8)}))
    says("': malformed tar member at byte 0: its size must be an integer up to 2^60", read, huge)
    local large = broken("large", tar.header("a.txt", 2 ^ 31) .. ("x"):rep(600))
    says("': the tar member at byte 0 is a file of more than 1 GiB, which is not supported", read, large)
    local zipped = folder .. "/broken.tar.gz"
    assert(os.execute(("gzip -c %s/w/s-00.tar | head -c 200 >%s"):format(folder, zipped)) == 0)
    says(zipped .. "': malformed gzip data: unexpected end of file", read, zipped)
    local twice = broken("twice", tar.archive {{"a.cls", "1"}, {"a.CLS", "1"}, {"b.cls", "1"}})
    says("'" .. twice .. "': the sample 'a' has two files .cls", read, twice)
    assert.equal(1, read(twice, {on_error = "skip"}))
    local label = broken("label", tar.archive {{"a.cls", "one"}})
    says("'" .. label .. ": a.cls': a label must be an integer, got 'one'", read, label)
    local json = broken("json", tar.archive {{"a.json", '{"x":'}})
    says("'" .. json .. ": a.json': malformed JSON at byte", read, json)
    says("sample 'a' has no jpg nor png; it has cls, txt", read, broken("lack", whole), {fields = {"jpg;png"}})
    says("cannot open shard '/nowhere/x.tar': No such file or directory", read, "/nowhere/x.tar")
    local many = broken("many", tar.archive {{"a.cls", ("9"):rep(400)}, {"b.cls", "-9007199254740993000"}})
    says("'" .. many .. ": a.cls': a label of 400 digits is too large", read, many)
    assert.equal(0, read(many, {on_error = "skip"}))
    says("must have at most 15 digits", data.WebDataset, "{100000000000000000000..100000000000000016384}")
    says("must have at most 15 digits", data.WebDataset, ("{%s1..3}.tar"):format(("0"):rep(200)))
    says(" must be at most a million shards", data.WebDataset, "{0..1000000}")
    says(" must be at most a million shards", data.WebDataset, ("{a,b}"):rep(40))
    says("braces must be closed and not nested in '{a'", data.WebDataset, "{a")
    says("'{a}' must be a range {000..146} or a list {a,b}", data.WebDataset, "{a}")
    says("at least one shard", data.WebDataset, {})
  end)

  it("leaves out and counts what cannot be read, in workers too", function()
    local bad = {}
    for k = 1, 2 do
      bad[k] = write(("skip-%d.tar"):format(k), tar.archive {{"a.cls", "1"}, {"b.cls", "x"}, {"c.cls", "3"}})
    end
    local set = data.WebDataset(bad, {on_error = "skip", fields = {"cls"}})
    local n = 0
    for _ in set:iter() do n = n + 1 end
    assert.same({4, 2}, {n, set:skipped()})
    assert.same({2, 2}, skipped_by_workers(set))
    local function oh() error "oh" end
    local mine = data.WebDataset(folder .. "/w/s-00.tar", {on_error = "skip", decode = {txt = oh}})
    assert.is_nil(mine:iter()())
    assert.equal(4, mine:skipped())
  end)

  it("leaves nothing out for lack of descriptors", function()
    local script = write("scarce.lua", [[
      local lm, folder = require "luminary", arg[1]
      local web = lm.data.WebDataset(folder .. "/w/s-00.tar", {on_error = "skip"})
      local files = lm.data.ImageFolder(folder .. "/scarce", {on_error = "skip"})
      local _ = web:iter()(), files:get(1) -- loads modules first
      collectgarbage() -- closes no file later
      local held = {}
      for i = 1, 100 do held[i] = io.open "/dev/null" end
      local _, one = pcall(web:iter())
      local _, other = pcall(files.get, files, 1)
      for i = 1, #held do held[i]:close() end
      print(one, other, web:skipped(), files:skipped(), web:iter()().__key__, files:get(1).shape[1])]])
    assert(os.execute(("mkdir -p %s/scarce/a"):format(folder)) == 0)
    lm.vision.write_file(folder .. "/scarce/a/1.png", lm.vision.encode_png(lm.zeros({3, 2, 2}, {dtype = "uint8"})))
    local ok, text = temp.run(folder, ("ulimit -n 50; luajit %s %s"):format(script, folder))
    assert(ok, text)
    local refused = "\t[^\t]*cannot open '%S*"
    assert.matches(refused .. "s%-00.tar': Too many open files" .. refused
      .. "1.png': Too many open files\t0\t0\t%S+\t3\n$", "\t" .. text)
  end)
end)
