-- CSVDataset.
local lm = require "luminary"
local sets = require "spec.support.sets"
local data = lm.data
local write, says, plain, same_with_workers, folder =
  sets.write, sets.says, sets.plain, sets.same_with_workers, sets.folder
teardown(sets.remove)

describe("a CSVDataset", function()
  it("gives numbers, labels, targets and texts", function()
    local path = write("a.csv", '\239\187\191a,b,"na,me",y\r\n1,2.5,"x ""q""\r\n z",cat\r\n\r\n-3e2, 4 ,,dog\n'
      .. ".5,+7.,é,cat")
    local set = data.CSVDataset(path, {label = "y", text = "na,me"})
    assert.equal(3, #set)
    assert.same({"a", "b", "na,me", "y"}, set.columns)
    local x, y, text = set:get(1)
    assert.same({{1, 2.5}, 1, 'x "q"\r\n z'}, {plain(x), y, text})
    assert.same({{-300, 4}, 2, ""}, {plain((set:get(2))), select(2, set:get(2))})
    assert.same({{0.5, 7}, 1, "é"}, {plain((set:get(3))), select(2, set:get(3))})
    assert.same({"cat", "dog"}, set.classes)
    assert.same({cat = 1, dog = 2}, set.class_to_idx)
    same_with_workers(set)
  end)

  it("gathers what has no texts", function()
    local path = write("b.csv", "10;1;2\n9;3;4\n10;5;6\n")
    local set = data.CSVDataset(path, {header = false, delimiter = ";", features = {3}, label = 1, target = 2})
    assert.same({"9", "10"}, set.classes) -- as numbers
    local x, y, z = set:get_batch(lm.tensor({3, 2}, {dtype = "int64"}))
    assert.same({{{6}, {4}}, {2, 1}, {5, 3}}, {plain(x), plain(y), plain(z)})
    assert.same({3, 1}, {select(2, set:get(2)) + 2, (select(3, set:get(1))):item()})
    same_with_workers(set)
    local two = data.CSVDataset(path, {header = false, delimiter = ";", target = {3, 1}, base = 0,
      transform = function(row) return row * 10 end, target_transform = function(t) return t:sum():item() end})
    assert.same({{10}, 12}, {plain((two:get(1))), select(2, two:get(1))})
    same_with_workers(two)
    local test = data.CSVDataset(write("b2.csv", "10;1;2\n"), {header = false, delimiter = ";", label = 1, base = 0,
      classes = set.classes})
    assert.equal(1, select(2, test:get(1)))
    assert(os.execute(("gzip -c %s >%s.gz"):format(path, path)) == 0)
    assert.equal(3, #data.CSVDataset(path .. ".gz", {header = false, delimiter = ";"}))
  end)

  it("reads numbers as the C library does", function()
    local list = {}
    math.randomseed(5)
    for i = 1, 400 do
      local v = (math.random() - 0.5) * 10 ^ math.random(-30, 30)
      local text = ("%." .. math.random(0, 20) .. ({"e", "f", "g"})[i % 3 + 1]):format(v)
      list[i] = tonumber(text) == math.huge and "0" or text
    end
    for _, text in ipairs {"1e-50", "123456789012345678901234567890", "0.1", "16777217", "3.4028234e38", "-0", "00012",
      "1e22", "1e23", "9007199254740993", "4e-324", "inf", "-inf"} do
      list[#list + 1] = text
    end
    local set = data.CSVDataset(write("n.csv", table.concat(list, "\n")), {header = false})
    for i, text in ipairs(list) do
      local expected = text == "inf" and math.huge or text == "-inf" and -math.huge or tonumber(text)
      assert.equal(lm.tensor({expected}):item(), set.features[{i, 1}], text)
    end
    local ways = 'pass {categorical = "<column>"} or {label = "<column>"} to read values as classes, '
      .. '{text = "<column>"} as strings'
    for text in ("1,5 0x10 1e e5 1.2.3 --1 1;2 4e38 1e999 + . 1_0 infin"):gmatch "%S+" do
      says("expected a float32 number, got '" .. text .. "'; " .. ways,
        data.CSVDataset, write("n.csv", '"' .. text .. '"\n'), {header = false})
    end
  end)

  it("names line and column of what is wrong", function()
    local function read(text, opts) return data.CSVDataset(write("bad.csv", text), opts) end
    local path = folder .. "/bad.csv"
    says(path .. "': line 3, column 2 ('b'): expected a float32 number, got the missing value ''; "
      .. 'pass {missing = "nan"} to read it as NaN', read, "a,b\n1,2\n3,\n")
    says(path .. "': line 4, column 1 ('a'): expected a float32 number, got 'x'; pass {categorical = \"<column>\"}",
      read, 'a,b\n"1",2\n\nx,4\n')
    says(path .. "': line 3: expected 2 fields as in the first line, got 3", read, "a,b\n1,2\n3,4,5\n")
    says(path .. "': line 2: expected 2 fields as in the first line, got 1", read, "a,b\n1\n")
    says(path .. "': line 2, column 2: a quote in an unquoted field", read, 'a,b\n1,2"\n')
    says(path .. "': line 3, column 1: a quoted field must end with a quote", read, 'a,b\n1,2\n"3,\n4\n')
    says(path .. "': line 1, column 1: a quoted field must end with a quote", read, '"a"x,b\n1,2\n')
    says(path .. "': line 4, column 2: 'z' is not one of the classes 'x', 'y'", read, 'a,b\n1,"x"\n2,"y"\n3,z\n',
      {label = "b", classes = {"x", "y"}})
    says("has no lines", read, "\n\r\n")
    says(path .. "' has no column 'c'; did you mean 'a'? columns are a, b", read, "a,b\n1,2\n", {features = {"c"}})
    says("did you mean 'label'?", read, "label,b\n1,2\n", {label = "lable"})
    says("columns 1 to 2, got 3", read, "a,b\n1,2\n", {label = 3})
    says("two columns of", read, "a,a\n1,2\n", {label = "a"})
    says("columns have no names with header = false", read, "1,2\n", {label = "a", header = false})
    says("column 1 is listed twice", read, "a,b\n1,2\n", {features = {1, "a"}})
    says("delimiter must be one character", read, "1,2\n", {delimiter = "ab"})
    says("missing must be one of 'error', 'nan', got string 'skip'", read, "1,2\n", {missing = "skip"})
    says("label must be one column", read, "1,2\n", {label = {1, 2}})
  end)

  it("takes missing numbers as NaN, or leaves out rows with errors, by option", function()
    local text = "a,b,c\n1,2,x\n,NA,x\n3,oops,y\n4\n5, nan ,z\n"
    local set = data.CSVDataset(write("m.csv", text), {text = "c", missing = "nan", on_error = "skip"})
    assert.same({3, 2}, {#set, set:skipped()})
    local row = plain((set:get(2)))
    assert.is_true(row[1] ~= row[1] and row[2] ~= row[2])
    assert.same({5, "z"}, {set:get(3)[1], select(2, set:get(3))})
    local strict = data.CSVDataset(folder .. "/m.csv", {label = "c", on_error = "skip", classes = {"y", "z"}})
    assert.same({0, 5}, {#strict, strict:skipped()})
  end)

  it("reads large tables by several threads to the same end", function()
    local lines = {"x,y,name"}
    for i = 1, 60000 do lines[#lines + 1] = ("%d,%.3f,\"n %d\""):format(i, i / 8, i) end
    lines[40001] = "bad,1,x"
    local text = table.concat(lines, "\n")
    says("line 40001, column 1 ('x'): expected a float32 number, got 'bad'", data.CSVDataset, write("large.csv", text),
      {text = "name"})
    local set = data.CSVDataset(folder .. "/large.csv", {text = "name", on_error = "skip"})
    assert.same({59999, 1}, {#set, set:skipped()})
    local x, name = set:get(40000)
    assert.same({{40001, 40001 / 8}, "n 40001"}, {plain(x), name})
  end)

  describe("with categorical columns", function()
    local TRAIN = "city,age,size,kind\nRome,30,10,a\nOslo,40,9,b\nRome,50,9,a\n"

    it("has codes from 1 beside the features, by sorted values", function()
      local set = data.CSVDataset(write("k.csv", TRAIN), {label = "kind", categorical = {"city", "size"}})
      assert.same({city = {"Oslo", "Rome"}, size = {"9", "10"}}, set.categories) -- sizes as numbers
      assert.same({2, 2}, set.cardinalities)
      local x, codes, label = set:get(1)
      assert.same({{30}, {2, 2}, 1}, {plain(x), plain(codes), label})
      assert.equal("int64", codes.dtype)
      local xs, cs, ys = set:get_batch(lm.tensor({3, 2}, {dtype = "int64"}))
      assert.same({{{50}, {40}}, {{2, 1}, {1, 1}}, {1, 2}}, {plain(xs), plain(cs), plain(ys)})
      same_with_workers(set)
    end)

    it("codes another file by the lists of the first; other values are errors, skipped or the last code", function()
      local train = data.CSVDataset(write("k.csv", TRAIN), {label = "kind", categorical = {"city", "size"}})
      local path = write("new.csv", "city,age,size,kind\nRome,1,9,a\nParis,2,10,b\n,3,11,b\n")
      local function options(more)
        local o = {label = "kind", categorical = {"city", "size"}, categories = train.categories, text = "age"}
        for name, value in pairs(more) do o[name] = value end
        return o
      end
      says("line 3, column 1: 'Paris' is not one of the categories of 'city': 'Oslo', 'Rome'", data.CSVDataset, path,
        options {})
      local set = data.CSVDataset(path, options {on_error = "skip"})
      assert.same({1, 2}, {#set, set:skipped()})
      local codes, label, age = set:get(1)
      assert.same({{2, 1}, 1, "1"}, {plain(codes), label, age})
      set = data.CSVDataset(path, options {unknown = "code"})
      assert.same({{{2, 1}, {3, 2}, {3, 3}}, {3, 3}}, {plain(set.codes), set.cardinalities})
      assert.same({2, 2}, train.cardinalities)
    end)

    it("takes columns by number, and lists of values as they are given", function()
      local path = write("plain.csv", "b,1\na,2\n")
      local set = data.CSVDataset(path, {header = false, categorical = 1, categories = {{"b", "a"}}, target = 2})
      assert.same({{1}, {2}}, plain(set.codes))
      assert.same({1, 2}, plain(set.targets))
      assert.same({{"b", "a"}}, set.categories)
    end)

    it("refuses lists that fit no column", function()
      local path = write("k.csv", TRAIN)
      says("categories: 'age' is not a column of categorical", data.CSVDataset, path,
        {categorical = "city", categories = {age = {}}})
      says("categories of 'city': 'Rome' is listed twice", data.CSVDataset, path,
        {categorical = "city", categories = {city = {"Rome", "Rome"}}})
      says("has no column 'town'", data.CSVDataset, path, {categorical = "town"})
      says("unknown must be one of 'error', 'code', got string 'x'", data.CSVDataset, path,
        {categorical = "city", unknown = "x"})
    end)
  end)
end)
