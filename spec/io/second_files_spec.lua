-- Files that a file names: they are in its folder, also after symbolic links are followed.
local lm = require "luminary"
local files = require "spec.support.onnx_files"
local needs = require "spec.support.needs"
local temp = require "spec.support.temp"

describe("a file that another file names", function()
  local root, folder
  before_each(function()
    root = temp.folder()
    folder = root .. "/model"
    assert(temp.execute(("mkdir %s %s/inner %s/blobs"):format(folder, folder, root)) == 0)
    temp.write(root .. "/secret", ("\0\0\128\63"):rep(2))
    temp.write(folder .. "/inside", ("\0\0\0\64"):rep(2))
    lm.save(root .. "/secret.safetensors", {w = lm.ones(2)})
    lm.save(folder .. "/inside.safetensors", {w = lm.full({2}, 2)})
    for name, target in pairs {
      link = "../secret", up = "..", away = root, chain = "link", loop = "loop", near = "inside",
      ["inner/back"] = "../inside", dangling = "../none",
      ["link.safetensors"] = "../secret.safetensors", ["near.safetensors"] = "inside.safetensors",
    } do
      assert(temp.execute(("ln -s %s %s/%s"):format(target, folder, name)) == 0)
    end
  end)
  after_each(function() temp.remove(root) end)

  -- Returns what the model in `at` adds from the file `location`.
  local function external(at, location)
    local weight = {name = "w", data_type = 1, dims = {2}, data_location = 1}
    weight.external_data = {{key = "location", value = location}}
    lm.core.onnx_write(at, {ir_version = 8, opset_import = {{version = 17}}, graph = {
      name = "g", node = files.nodes {{"Add", "x w", "y"}}, input = {files.info "x"}, output = {files.info "y"},
      initializer = {weight},
    }})
    return lm.onnx.load(at)(lm.zeros(2)):totable(), lm.load(at).w:totable()
  end

  it("is read for an ONNX model only from the model's folder", function()
    if needs.onnx() then return pending(needs.onnx()) end
    for _, name in ipairs {"inside", "near", "inner/back", "./inside"} do
      local called, loaded = external(folder .. "/m.onnx", name)
      assert.same({{2, 2}, {2, 2}}, {called, loaded})
    end
    for _, name in ipairs {"link", "up/secret", "away/secret", "chain", "inner/../link", "../secret", root .. "/secret"}
    do
      assert.error_matches(function() external(folder .. "/m.onnx", name) end,
        "m.onnx': 'w': external data must be in a file beside the model, got '")
    end
    assert.error_matches(function() external(folder .. "/m.onnx", "link") end, "got 'link %-> /.*/secret'")
    for _, name in ipairs {"loop", "dangling", "none"} do
      assert.error_matches(function() external(folder .. "/m.onnx", name) end, "cannot open '.*" .. name)
    end
    local here = lm.paths.cwd() -- a path without a folder
    local program = temp.write(root .. "/relative.lua", [[
      local ok, why = pcall(require("luminary").onnx.load, arg[1])
      print(ok, (tostring(why):gsub("\n.*", "")))]])
    assert.error_matches(function() external(folder .. "/m.onnx", "link") end, "beside the model")
    local pipe = io.popen(("cd %s && LUA_PATH='%s/lua/?.lua;%s/lua/?/init.lua;;' luajit %s m.onnx 2>&1"):format(folder,
      here, here, program))
    local text = pipe:read "*a"
    pipe:close()
    assert.matches("false\t.*beside the model", text)
  end)

  it("is read from beside the target of a link, as in the cache of Hugging Face's hub", function()
    if needs.onnx() then return pending(needs.onnx()) end
    pcall(external, root .. "/blobs/1", "data") -- the data is not there yet
    temp.write(root .. "/blobs/2", ("\0\0\64\64"):rep(2))
    assert(temp.execute(("cd %s && ln -s ../blobs/1 linked.onnx && ln -s ../blobs/2 data"):format(folder)) == 0)
    assert.same({3, 3}, lm.onnx.load(folder .. "/linked.onnx")(lm.zeros(2)):totable())
    temp.write(root .. "/blobs/3", '{"weight_map": {"w": "near.safetensors", "v": "blob.safetensors"}}')
    lm.save(root .. "/blobs/4.safetensors", {v = lm.ones(1)})
    assert(temp.execute(("cd %s && ln -s ../blobs/3 m.safetensors.index.json && ln -s ../blobs/4.safetensors "
      .. "blob.safetensors"):format(folder)) == 0)
    assert.same({1}, lm.load(folder .. "/m.safetensors.index.json").v:totable())
  end)

  it("is a shard only in the folder of its index", function()
    local index = folder .. "/model.safetensors.index.json"
    local function load(name)
      temp.write(index, ('{"weight_map": {"w": "%s"}}'):format(name))
      return lm.load(index).w:totable(), lm.load(folder).w:totable()
    end
    assert.same({2, 2}, (load "near.safetensors"))
    assert.error_matches(function() load "link.safetensors" end,
      "malformed index: its shard 'link.safetensors %-> .*/secret.safetensors' is not in its folder")
  end)

  it("is a shard of a checkpoint only in its folder", function()
    local path = folder .. "/state.ckpt"
    local about = require "luminary.checkpoint.files"
    local shards = about.shards_of(path,
      {luminary_checkpoint = '{"shards": ["inside.safetensors", "near.safetensors"]}'})
    assert.same({folder .. "/inside.safetensors", folder .. "/near.safetensors"}, shards)
    local outside = {luminary_checkpoint = '{"shards": ["link.safetensors"]}'}
    assert.error_matches(function() about.shards_of(path, outside) end,
      "state.ckpt': malformed checkpoint: its shard 'link.safetensors %-> .*/secret.safetensors' is not in its folder")
    assert.error_matches(function() about.shards_of(path, {luminary_checkpoint = '{"shards": [".."]}'}) end,
      "is not in its folder")
  end)
end)
