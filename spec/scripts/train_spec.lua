-- scripts/train_ddp.lua as a user runs it, on a data set small enough for a spec.
local lm = require "luminary"
local ranks, temp = require "spec.support.ranks", require "spec.support.temp"
local images = require "spec.support.images"

local folder
setup(function()
  folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir " .. folder) == 0)
  images.write(folder, 3072, 64) -- 12 steps an epoch
end)
teardown(function() os.execute("rm -rf " .. folder) end)

local function train(options)
  local out = folder .. "/out"
  if not options:find("--data", 1, true) then options = options .. " --data " .. folder end
  local code = os.execute(("luajit scripts/train_ddp.lua %s >%s 2>&1 </dev/null"):format(options, out))
  return code == 0, temp.read(out)
end

local function losses(path)
  local list = {}
  for loss, step in temp.read(path):gmatch '"loss":([^,}]+),[^\n]-"step":(%d+)' do
    list[tonumber(step)] = tonumber(loss)
  end
  return list
end

describe("train_ddp.lua #lua", function()
  for _, model in ipairs { "mlp", "lenet" } do
    it("trains " .. model .. ": the loss falls" .. (model == "lenet" and " #unsanitized" or ""), function()
      local log = folder .. "/" .. model .. ".log"
      local ok, text = train(("--model %s --batch-size 64 --max-steps 60 --log %s"):format(model, log))
      assert(ok, text)
      local list = losses(log)
      assert.equal(60, #list)
      assert(list[60] < 0.7 * list[1], ("loss %g at first, %g at last"):format(list[1], list[60]))
      assert(temp.read(log):match('"test_accuracy":[01]'), temp.read(log))
    end)
  end

  it("trains resnet18: the loss falls #unsanitized", function()
    local log = folder .. "/resnet.log"
    local ok, text = train(("--model resnet18 --batch-size 8 --max-steps 8 --lr 0.02 --log %s"):format(log))
    assert(ok, text)
    local list = losses(log)
    assert(list[8] < list[1], ("loss %g at first, %g at last"):format(list[1], list[8]))
  end)

  it("resumed, ends in the same bytes as uninterrupted #unsanitized", function()
    local whole, part, log = folder .. "/whole.st", folder .. "/part.st", folder .. "/part.log"
    local common = "--model lenet --batch-size 64 --seed 3 --epochs 1 "
    local ok, text = train(common .. "--max-steps 12 --save " .. whole .. " --log " .. folder .. "/whole.log")
    assert(ok, text)
    ok, text = train(common .. "--max-steps 7 --save " .. part .. " --log " .. log)
    assert(ok, text)
    ok, text = train(common .. "--max-steps 12 --resume " .. part .. " --save " .. part .. " --log " .. log)
    assert(ok, text)
    assert(temp.read(whole) == temp.read(part), "the checkpoints differ")
    local a, b = losses(folder .. "/whole.log"), losses(log)
    for k = 1, 12 do assert.equal(a[k], b[k]) end
  end)

  local clipped
  for _, amp in ipairs { "autocast", "O1", "O2" } do
    local tag = amp == "autocast" and "" or " #unsanitized" -- sanitizers would see the same again
    it("trains with --amp " .. amp .. " and --clip, and resumes from a checkpoint in the same bytes" .. tag, function()
      local whole, part, log = folder .. "/whole.st", folder .. "/part.st", folder .. "/" .. amp .. ".log"
      local common = "--model lenet --batch-size 32 --epochs 1 --clip 0.5 "
      local ok, text = train(common .. "--max-steps 5 --save " .. whole .. " --log " .. log .. " --amp " .. amp)
      assert(ok, text)
      ok, text = train(common .. "--max-steps 3 --save " .. part .. " --amp " .. amp)
      assert(ok, text)
      ok, text = train("--max-steps 5 --resume " .. part .. " --save " .. part)
      assert(ok, text)
      assert(temp.read(whole) == temp.read(part), "the checkpoints differ")
      clipped = clipped or train(common .. "--max-steps 5 --log " .. folder .. "/plain.log")
      local low, plain = losses(log), losses(folder .. "/plain.log")
      for k = 1, 5 do
        assert(math.abs(low[k] - plain[k]) < 0.02 * plain[k], ("step %d: %g, %g"):format(k, low[k], plain[k]))
      end
    end)
  end

  -- Each of these goes 3 and 2 steps, and 5.
  for _, how in ipairs {
    "--optimizer AdamW --schedule warmup --ema 0.5", "--optimizer lamb --lr 0.02 --schedule onecycle --amp autocast",
    "--optimizer Adafactor --schedule cosine --ema 0.9 --amp O2",
    "--optimizer rmsprop --momentum 0.5 --schedule linear --ema 0.9 --dtype bfloat16",
  } do
    it("trains with " .. how .. ", and goes on from a checkpoint in the same bytes #unsanitized", function()
      local whole, part = folder .. "/whole.st", folder .. "/part.st"
      local common = "--model mlp --batch-size 512 --epochs 1 " .. how
      local ok, text = train(common .. " --max-steps 5 --save " .. whole)
      assert(ok, text)
      assert.equal(how:find "ema" ~= nil, text:find "average of the weights: test accuracy [01]%.%d+\n" ~= nil)
      ok, text = train(common .. " --max-steps 3 --save " .. part)
      assert(ok, text)
      local first = lm.load(part)
      ok, text = train("--epochs 1 --max-steps 5 --resume " .. part .. " --save " .. part)
      assert(ok, text)
      assert(temp.read(whole) == temp.read(part), "the checkpoints differ")
      local saved = lm.load(whole)
      assert.not_equal(first.optimizer.param_groups[1].lr, saved.optimizer.param_groups[1].lr)
      if saved.average then
        assert.equal(5, saved.average.n_averaged:item())
        local now, kept = saved.model["1.weight"], saved.average["module.1.weight"]
        assert.equal("float32", kept.dtype)
        assert.is_false(kept:equal(now:float()))
      end
    end)
  end

  it("keeps the optimizer and schedule of the checkpoint, and begins an average when asked #unsanitized", function()
    local path = folder .. "/kept.st"
    local common = "--model mlp --batch-size 512 --max-steps 2 "
    local ok, text = train(common .. "--optimizer adam --schedule cosine --epochs 1 --save " .. path)
    assert(ok, text)
    for _, other in ipairs { "--optimizer SGD", "--schedule constant", "--epochs 2", "--lr 7" } do
      ok, text = train("--resume " .. path .. " " .. other)
      assert(not ok and text:find("does not go with", 1, true), other .. ": " .. text)
    end
    ok, text = train("--max-steps 3 --ema 0.5 --resume " .. path .. " --save " .. path)
    assert(ok, text)
    assert.equal(1, lm.load(path).average.n_averaged:item())
  end)

  it("has schedules of all epochs' steps #unsanitized", function()
    local function cosine(x) return (1 + math.cos(math.pi * x)) / 2 end
    local rates = { -- for --lr 1, after the fifth of six steps
      constant = 1, step = 0.01, multistep = 0.01, linear = 1 / 6, cosine = cosine(5 / 6), warmup = cosine(4 / 5),
      onecycle = 1 / 25e4,
    }
    for name, rate in pairs(rates) do
      local path = folder .. "/rates.st"
      local ok, text = train("--model mlp --batch-size 512 --epochs 1 --lr 1 --max-steps 5 --schedule " .. name
        .. " --save " .. path)
      assert(ok, text)
      assert.near(rate, lm.load(path).optimizer.param_groups[1].lr, 1e-12)
    end
  end)

  it("updates depend on seed and global batch only: the number of threads changes nothing but rounding", function()
    local one, two = folder .. "/one.log", folder .. "/two.log"
    assert(train("--model mlp --dtype float64 --max-steps 5 --threads 1 --log " .. one))
    assert(train("--model mlp --dtype float64 --max-steps 5 --threads 2 --log " .. two))
    local a, b = losses(one), losses(two)
    for k = 1, 5 do assert(math.abs(a[k] - b[k]) <= 1e-12 * math.abs(a[k])) end
  end)

  it("names what it does not know #lua", function()
    local ok, text = train("--modle lenet")
    assert(not ok)
    assert.matches("%-%-model", text)
    ok, text = train("--model lenett")
    assert(not ok)
    assert.matches("lenet", text)
    ok, text = train("--data /nonexistent --max-steps 1")
    assert(not ok)
    assert.matches("/nonexistent", text)
    ok, text = train("--amp O4")
    assert(not ok)
    assert.matches("%-%-amp: 'O4' is none of off, autocast, O1 and O2", text)
    for given, message in pairs {
      ["--optimizer adamm"] = "%-%-optimizer: 'adamm' is none of adabelief, adadelta, adafactor, .*, sgd",
      ["--optimizer lbfgs"] = "%-%-optimizer: 'lbfgs' is none of",
      ["--optimizer muon"] = "%-%-optimizer muon: Muon: parameter 2 must be 2%-d, got a tensor %[256%]",
      ["--optimizer adam --momentum 0.5"] = "%-%-momentum: Adam has none",
      ["--schedule cosin"] = "%-%-schedule: 'cosin' is none of constant, cosine, ",
      ["--max-steps 1 --save /tmp/a.pt"] = "%-%-save: checkpoint: path must not end in .pt",
      ["--ema 1.5"] = "%-%-ema 1.5: a decay is from 0 to 1",
    } do
      ok, text = train("--model mlp " .. given)
      assert(not ok)
      assert.matches(message, text)
    end
    ok, text = train("--help")
    assert(ok)
    assert.matches("%-%-resume", text)
  end)

  it("says which process did not come", function()
    local port = ranks.free_port()
    local code = os.execute(([[
      RANK=0 WORLD_SIZE=2 MASTER_PORT=%d luajit scripts/train_ddp.lua --timeout 1 >%s/out 2>&1
    ]]):format(port, folder))
    assert(code ~= 0)
    assert.matches("init_process_group: [^\n]*rank 1", temp.read(folder .. "/out"))
  end)
end)

describe("train_amp_ddp.lua #lua", function()
  it("trains on two processes, in O2 and O1, with a scale that stays or is found #unsanitized", function()
    local all = {}
    for _, how in ipairs { "O0", "O2", "O1", "O1 --loss-scale dynamic" } do
      local log = folder .. "/amp.log"
      local code = os.execute(("MASTER_PORT=%d luajit scripts/train_amp_ddp.lua --opt-level %s --max-steps 6 "
        .. "--batch-size 32 --data %s --log %s >%s/out 2>&1"):format(ranks.free_port(), how, folder, log,
          folder))
      assert(code == 0, temp.read(folder .. "/out"))
      all[#all + 1] = losses(log)
      assert.equal(6, #all[#all])
      for k = 1, 6 do assert(math.abs(all[#all][k] - all[1][k]) < 0.02 * all[1][k], how .. ", step " .. k) end
    end
    for k = 1, 6 do assert.equal(all[3][k], all[4][k]) end -- powers of two leave no trace
  end)
end)

describe("hogwild.lua", function()
  local function hogwild(options)
    local command = "luajit scripts/hogwild.lua --data %s %s"
    return temp.run(folder, command:format(folder, options))
  end

  for _, method in ipairs { "process", "thread" } do
    local tag = method == "process" and " #unsanitized" or ""
    it("trains one model by two of method " .. method .. ", and the parent has it" .. tag, function()
      local path = folder .. "/hogwild.st"
      local ok, text = hogwild(("--processes 2 --method %s --model mlp --epochs 6 --lr 0.05 --log-interval 40 "
        .. "--save %s"):format(method, path))
      assert(ok, text)
      for i = 0, 1 do assert.matches(("process %d  epoch 1  step 40/288  loss "):format(i), text, 1, true) end
      assert.matches("\n36864 samples in [%d.]+ s: %d+ samples/s by 2 " .. method, text)
      local accuracy = tonumber(text:match "\ntest accuracy ([%d.]+)\n$")
      assert(accuracy > 0.8, text)
      local net = dofile("scripts/models.lua").mlp()
      net:load_state_dict(lm.load(path))
      local set = lm.data.FashionMNIST { root = folder, train = false }
      local x, labels = set:get_batch(lm.arange(1, 65, { dtype = "int64" }))
      assert.near(accuracy, net(x):argmax(2):eq(labels):sum():item() / 64, 1e-4)
    end)
  end

  it("writes its lines as they come, into a file too", function()
    local out = folder .. "/hogwild.out"
    os.execute(("exec luajit scripts/hogwild.lua --data %s --processes 1 --model mlp --epochs 100000 "
      .. "--log-interval 500 > %s 2>&1 & job=$!; for i in $(seq 1200); do grep -q loss %s && break; sleep 0.05; done; "
      .. "kill $job"):format(folder, out, out))
    local lines = select(2, temp.read(out):gsub("process 0 .-\n", ""))
    assert(lines >= 1 and lines < 20, lines) -- a full buffer has some hundred, which take long
  end)

  it("names what it does not know", function()
    for given, message in pairs {
      ["--model vgg"] = "--model: 'vgg' is none of lenet, mlp, resnet18",
      ["--method fork"] = "--method: 'fork' is neither process nor thread",
      ["--processes 0"] = "--processes must be an integer of at least 1", ["--data /nowhere"] = "/nowhere",
      ["--max-steps 1 --save /dev/null/x"] = "hogwild.lua: --save: cannot write '/dev/null/x': Not a directory",
      ["--max-steps 1 --save /tmp"] = "hogwild.lua: --save: /tmp is a folder",
    } do
      local ok, text = hogwild(given)
      assert.is_false(ok)
      assert.matches(message, text, 1, true)
    end
  end)
end)

describe("the version", function()
  it("is a string", function() assert.is_string(lm.version) end)
end)
