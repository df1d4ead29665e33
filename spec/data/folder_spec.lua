-- DatasetFolder and ImageFolder.
local lm = require "luminary"
local sets = require "spec.support.sets"
local temp = require "spec.support.temp"
local data = lm.data
local write, says, plain, with, same_with_workers, skipped_by_workers, folder =
  sets.write, sets.says, sets.plain, sets.with, sets.same_with_workers, sets.skipped_by_workers, sets.folder
teardown(sets.remove)

describe("a DatasetFolder", function()
  local function open(opts)
    return data.DatasetFolder(folder .. "/tree", with({loader = function(path)
      local file = assert(io.open(path))
      local text = file:read "*a"
      file:close()
      if text == "broken" then error(path .. " is broken") end
      return text
    end}, opts or {}))
  end
  setup(function()
    for _, name in ipairs {"cat/b.txt", "cat/a.TXT", "cat/x/c.txt", "cat/x-y/d.txt", "cat/x/z/e.txt", "cat/note.md",
      "dog/a.txt", "ant/q.txt"} do
      write("tree/" .. name, name)
    end
  end)

  it("has a class for each sub-folder, its files in order", function()
    local set = open {extensions = {"txt"}}
    assert.same({"ant", "cat", "dog"}, set.classes)
    assert.same({ant = 1, cat = 2, dog = 3}, set.class_to_idx)
    local got = {}
    for i = 1, #set do got[i] = set:get(i) end
    assert.same({"ant/q.txt", "cat/a.TXT", "cat/b.txt", "cat/x/c.txt", "cat/x-y/d.txt", "cat/x/z/e.txt", "dog/a.txt"},
      {got[1], got[2], got[3], got[4], got[5], got[6], got[7]})
    assert.same({1, 2, 2, 2, 2, 2, 3}, plain(set.targets))
    assert.same({folder .. "/tree/cat/b.txt", 2}, set.samples[3])
    assert.equal(7, #set.imgs)
    assert.equal(3, select(2, set:get(-1)))
    assert.equal(9, #open() + 1)
    assert.same({0, "ANT/Q.TXT"}, {select(2, open({base = 0}):get(1)), (open({transform = string.upper}):get(1))})
    same_with_workers(set)
  end)

  it("takes what a function says", function()
    local set = open {is_valid_file = function(path) return path:find "a%.%w+$" ~= nil end, allow_empty = true}
    assert.same({"cat/a.TXT", "dog/a.txt"}, {(set:get(1)), (set:get(2))})
    assert.same({2, 3}, plain(set.targets))
    local function no_q(path) return not path:find "q%.txt$" end
    says("no valid file in the classes ant of '" .. folder, open, {is_valid_file = no_q})
    says("no valid file in the classes ant, dog of '" .. folder .. "/tree' (of .md)", open, {extensions = "md"})
  end)

  it("follows links, but not for ever", function()
    assert(os.execute(("mkdir -p %s/linked/a && touch %s/linked/a/1 && ln -s .. %s/linked/a/up && ln -s a %s/linked/b")
      :format(folder, folder, folder, folder)) == 0)
    local set = data.DatasetFolder(folder .. "/linked", {loader = function(path) return path end})
    assert.same({"a", "b"}, set.classes)
    assert.truthy(#set >= 2 and #set < 20)
  end)

  it("says what is wrong", function()
    says("root must be a folder with one folder for each class; '" .. folder .. "/none' is not there",
      data.DatasetFolder, folder .. "/none", {loader = print})
    says("has no folders; each class needs one", data.DatasetFolder, folder .. "/tree/ant", {loader = print})
    says("{loader = function(path) … end}", data.DatasetFolder, folder .. "/tree")
    says("on_error must be one of 'raise', 'skip'", open, {on_error = "ignore"})
  end)

  it("leaves out and counts files that cannot be read", function()
    write("tree/cat/b.txt", "broken")
    local set = open {on_error = "skip", extensions = "txt"}
    says("tree/cat/b.txt is broken", function() return open({extensions = "txt"}):get(3) end)
    assert.same({"cat/x/c.txt", 2}, {set:get(3)})
    assert.equal(1, set:skipped())
    assert.same({1, 1}, skipped_by_workers(set))
    local mistaken = open {on_error = "skip", transform = function() error "my own" end}
    says("my own", mistaken.get, mistaken, 1)
    write("broken/a/1.txt", "broken")
    local hopeless = data.DatasetFolder(folder .. "/broken", {on_error = "skip", loader = function(path)
      error(path .. " is broken")
    end})
    says("cannot read any of its 1 samples; the last error: spec/data/folder_spec.lua:80:", hopeless.get, hopeless, 1)
    write("tree/cat/b.txt", "cat/b.txt")
  end)
end)

describe("an ImageFolder", function()
  local vision = lm.vision
  local function picture(v, channels)
    return lm.full({channels or 3, 6, 8}, v):add_(lm.arange(8)):to("uint8")
  end
  setup(function()
    os.execute(("mkdir -p %s/pictures/a/more %s/pictures/b"):format(folder, folder))
    vision.write_png(picture(10), folder .. "/pictures/a/1.png")
    vision.write_png(picture(20, 1), folder .. "/pictures/a/more/grey.PNG")
    vision.write_jpeg(lm.full({3, 16, 16}, 30):to("uint8"), folder .. "/pictures/b/3.jpg")
    write("pictures/b/notes.txt", "no picture")
  end)

  it("takes images of each format", function()
    local why = require("spec.support.needs").images()
    if why then return pending(why) end
    local root, golden = folder .. "/formats", lm.load "spec/golden/_images.safetensors"
    os.execute(("mkdir -p %s/a"):format(root))
    for name, file in pairs {["1.webp"] = "lossless.webp", ["2.GIF"] = "frames.gif", ["3.bmp"] = "4 bits.bmp",
      ["4.tif"] = "gray.tiff", ["5.tiff"] = "bits.tiff"} do vision.write_file(root .. "/a/" .. name, golden[file]) end
    local set = data.ImageFolder(root)
    assert.equal(5, #set)
    for i, file in ipairs {"lossless.webp", "frames.gif", "4 bits.bmp", "gray.tiff", "bits.tiff"} do
      local want = vision.decode_image(golden[file], {mode = "rgb"}):to "float32":div(255)
      assert.is_true((set:get(i)):equal(want), file)
    end
  end)

  it("gives RGB images and their classes", function()
    local set = data.ImageFolder(folder .. "/pictures")
    assert.same({3, {"a", "b"}}, {#set, set.classes})
    local image, label = set:get(1)
    assert.same({"float32", {3, 6, 8}, 1}, {image.dtype, {unpack(image.shape)}, label})
    assert.is_true(image:eq(picture(10):to("float32"):div(255)):all():item())
    assert.same({3, 6, 8}, {unpack((set:get(2)).shape)})
    assert.near(30 / 255, (set:get(3)):mean():item(), 0.01)
    assert.equal(0, select(2, data.ImageFolder(folder .. "/pictures", {base = 0}):get(1)))
    local two = data.Subset(set, {1, 2})
    same_with_workers(two)
  end)

  it("gives transforms the bytes, or the file itself if they decode it", function()
    local set = data.ImageFolder(folder .. "/pictures", {transform = function(x) return x.dtype, x.shape[1] end})
    assert.same({{"uint8", 3}, 1}, {set:get(2)})
    local Corner = require("luminary.base.class").root("Corner")
    function Corner:init(size) self.size = size end
    function Corner:from_encoded(encoded, opts)
      return encoded:decode {mode = opts.mode, crop = {0, 0, self.size, self.size}}
    end
    local cropping = data.ImageFolder(folder .. "/pictures", {transform = Corner(2), target_transform = function(y)
      return y * 10
    end})
    assert.same({{{{10, 11}, {10, 11}}, {{10, 11}, {10, 11}}, {{10, 11}, {10, 11}}}, 10},
      {plain((cropping:get(1))), select(2, cropping:get(1))})
    assert.same({2, 3, 2, 2}, {unpack((data.DataLoader(cropping, {batch_size = 2}):iter()()).shape)})
  end)

  it("names a file that is broken, or leaves it out and counts it", function()
    local bytes = temp.read(folder .. "/pictures/a/1.png")
    local path = write("half/a/1.png", bytes:sub(1, 60))
    write("half/a/2.png", bytes)
    write("half/b/0.png", "no picture")
    local set = data.ImageFolder(folder .. "/half")
    says(path, set.get, set, 1)
    says("half/b/0.png", set.get, set, 3)
    local tolerant = data.ImageFolder(folder .. "/half", {on_error = "skip"})
    local image, label = tolerant:get(1)
    assert.is_true(image:eq((tolerant:get(2))):all():item())
    assert.same({1, 1}, {label, tolerant:skipped()})
    assert.same({3, 3}, skipped_by_workers(tolerant))
  end)
end)
