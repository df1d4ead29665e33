-- scripts/imagenet.lua as a user runs it, on a few small images.
local lm = require "luminary"
local temp = require "spec.support.temp"
local ranks = require "spec.support.ranks"

local folder = temp.during(setup, teardown)
setup(function()
  local ok, text = temp.run(folder, ("luajit scripts/dev/gen_image_folder.lua --out %s/images --images 40 --val 30 "
    .. "--size 48x36"):format(folder))
  assert(ok, text)
end)

local script = "scripts/imagenet.lua"
local small = " --image-size 32 --workers 1 --no-accel --threads 1"
local dummy = " --arch mobilenet_v2 --dummy --dummy-images 12 --batch-size 4" .. small

local function place(name)
  local path = folder .. "/" .. name
  os.execute("mkdir -p " .. path)
  return path
end

local function run(command, ...) return temp.run(folder, (command:format(...))) end

local function train(output, options)
  local ok, text = run("luajit %s --output %s/%s %s", script, folder, output, options) -- the script makes the folder
  assert(ok, text)
  return text
end

local function read(name) return temp.read(folder .. "/" .. name) end

describe("imagenet.lua #lua #full", function()
  it("trains, tests and prints as the example does, and keeps the last checkpoint and the best", function()
    local text = train("plain", dummy .. " --epochs 2 --print-freq 2 --lr 0.01 --log " .. folder .. "/plain.log")
    local line = "\tTime +[%d.]+ %( *[%d.]+%)\tData +[%d.]+ %( *[%d.]+%)\tLoss %d%.%d%d%d%de[+-]%d%d "
      .. "%(%d%.%d+e[+-]%d%d%)\tAcc@1 +[%d.]+ %( *[%d.]+%)\tAcc@5 +[%d.]+ %( *[%d.]+%)\n"
    for epoch = 0, 1 do
      for _, batch in ipairs {1, 3} do
        assert.matches(("Epoch: %%[%d%%]%%[%d/3%%]"):format(epoch, batch) .. line, text)
      end
    end
    assert.is_nil(text:find("[2/3]", 1, true))
    assert.matches("Test: %[1/1%]" .. line .. " %*   Acc@1 [%d.]+ Acc@5 [%d.]+\n$", text)
    local saved, best = lm.load(folder .. "/plain/checkpoint.safetensors"), 0
    assert.same({step = 6, epoch = 2, batch = 0}, saved.position)
    for top1 in read("plain.log"):gmatch '"top1":([%d.]+)' do best = math.max(best, tonumber(top1)) end
    assert.equal(best, saved.best)
    assert.equal(best > 0, temp.exists(folder .. "/plain/model_best.safetensors"))
    -- The file holds what was reported of the last epoch.
    local told = text:match " %*   Acc@1 [%d.]+ Acc@5 [%d.]+\n$"
    local again = train("plain", ("%s --evaluate --resume %s/plain/checkpoint.safetensors --log %s/again.log"):format(
      dummy, folder, folder))
    assert.equal(told, again:match " %*   Acc@1 [%d.]+ Acc@5 [%d.]+\n$")
    local function loss(log) return read(log):match '.*"test_loss":([%d.e+-]+)' end
    assert.equal(loss "plain.log", loss "again.log")
  end)

  it("goes on, within an epoch too, in the same bytes as one never stopped #unsanitized", function()
    local how = dummy .. " --epochs 2 --schedule cosine --warmup 0.5 --label-smoothing 0.1 --amp --lr 0.02"
    train("whole", how .. " --log " .. folder .. "/whole.log")
    train("part", how .. " --max-steps 4 --log " .. folder .. "/part.log")
    train("part", "--dummy --dummy-images 12 --no-accel --threads 1 --workers 0 --auto-resume --log " .. folder
      .. "/part.log")
    assert(read "whole/checkpoint.safetensors" == read "part/checkpoint.safetensors", "the checkpoints differ")
    assert.equal(read "whole.log", read "part.log")
    local rates = {}
    for rate in read("whole.log"):gmatch '"lr":([%d.e-]+)' do rates[#rates + 1] = tonumber(rate) end
    assert.equal(6, #rates)
    assert.near(0.02 / 3, rates[1], 1e-7) -- the first of two steps of warm-up
    assert.near(0.02, rates[3], 1e-7)
    assert.near(0.01 * (1 + math.cos(math.pi * 3 / 4)), rates[6], 1e-7)
  end)

  it("computes in low precision with --amp alone", function()
    local losses = {}
    for _, amp in ipairs {"", "--amp"} do
      train("precise", dummy .. " --max-steps 1 --log " .. folder .. "/precise.log " .. amp)
      losses[#losses + 1] = tonumber(read "precise.log":match '"loss":([%d.]+)')
      local saved = lm.load(folder .. "/precise/checkpoint.safetensors")
      assert.equal(amp == "--amp", saved.run.amp)
      assert.same({}, saved.scaler) -- bfloat16 needs none
    end
    assert.not_equal(losses[1], losses[2])
    assert.near(losses[1], losses[2], 0.3) -- 4 samples, normalized by their own statistics
  end)

  it("drops the learning rate to a tenth as often as it is told to, warm-up or not #unsanitized", function()
    for _, warmup in ipairs {0, 1} do
      train("rates", dummy .. (" --epochs 3 --step-size 2 --warmup %d --lr 0.01 --log %s/rates.log"):format(warmup,
        folder))
      local rates = {}
      for rate in read("rates.log"):gmatch '"lr":([%d.e-]+)' do rates[#rates + 1] = tonumber(rate) end
      assert.near(warmup == 0 and 0.01 or 0.0025, rates[1], 1e-9)
      assert.near(0.01, rates[6], 1e-9)
      assert.near(0.001, rates[7], 1e-9)
      assert.near(0.001, rates[9], 1e-9)
    end
  end)

  it("trains on folders of files by two ranks, and one has their checkpoint's numbers", function()
    local ok, text = run("luajit bin/luminary run --nproc 2 %s --data %s/images --arch mobilenet_v2 --batch-size 8 "
      .. "--epochs 1 --lr 0.01 --output %s %s", script, folder, place "two", small)
    assert(ok, text)
    assert.matches("Epoch: %[0%]%[5/5%]", text)
    local top1, top5 = text:match " %*   Acc@1 ([%d.]+) Acc@5 ([%d.]+)"
    assert(tonumber(top5) >= tonumber(top1) and tonumber(top5) > 0, text)
    local again = train("two", ("--data %s/images --evaluate --resume %s/two/checkpoint.safetensors --no-accel"):format(
      folder, folder))
    assert.matches((" *   Acc@1 %s Acc@5 %s"):format(top1, top5), again, 1, true)
    assert.equal(10, lm.load(folder .. "/two/checkpoint.safetensors").model["classifier.1.weight"].shape[1])
  end)

  it("lets a rank be killed: all restart from the last checkpoint and end the same #unsanitized", function()
    local how = ("bin/luminary run --nproc 2 --max-restarts 1 %s %s --epochs 3 --save-every 1 --auto-resume "
      .. "--output "):format(script, dummy)
    local ok, text = run("luajit %s%s", how, place "calm")
    assert(ok, text)
    ok, text = run([[luajit %s%s --log %s/killed.log & run=$!
      for i in $(seq 1200); do grep -qs '"step":2}' %s/killed.log && break; sleep 0.05; done
      kill -9 $(cat /proc/$run/task/$run/children | awk '{print $2}'); wait $run]], how, place "killed", folder, folder)
    assert(ok, text)
    assert.matches("was killed by SIGKILL", text)
    assert.matches("=> loaded checkpoint '[^']*killed/checkpoint.safetensors' %(epoch [012], batch [12]%)", text)
    assert(read "calm/checkpoint.safetensors" == read "killed/checkpoint.safetensors", "the checkpoints differ")
  end)

  it("splits batches over devices of one process, and begins with given weights", function()
    local path = folder .. "/weights.safetensors"
    lm.manual_seed(5)
    local given = lm.models.mobilenet_v2()
    lm.save(path, given:state_dict())
    local text = train("split", dummy .. " --max-steps 1 --lr 0 --weight-decay 0 --data-parallel --devices cpu:0,cpu:1 "
      .. "--pretrained " .. path)
    assert.matches("Epoch: %[0%]%[1/3%]", text)
    local saved = lm.load(folder .. "/split/checkpoint.safetensors").model
    for name, p in given:named_parameters() do assert(saved[name]:equal(p), name) end
  end)

  it("goes on for more epochs than were planned, and begins with the weights of a checkpoint #unsanitized", function()
    local last = " --resume " .. folder .. "/longer/checkpoint.safetensors"
    train("longer", dummy .. " --epochs 1 --step-size 1")
    train("longer", dummy .. " --epochs 2" .. last)
    train("planned", dummy .. " --epochs 2 --step-size 1")
    local longer, planned = lm.load(folder .. "/longer/checkpoint.safetensors"),
      lm.load(folder .. "/planned/checkpoint.safetensors")
    for name, p in pairs(planned.model) do assert(longer.model[name]:equal(p), name) end
    local text = train("given", dummy .. " --evaluate --pretrained " .. folder .. "/longer/checkpoint.safetensors")
    local other = train("other", dummy .. " --evaluate" .. last)
    assert.equal(other:match " %* .*", text:match " %* .*")
  end)

  it("tells once that its log cannot be written, and trains on #lua", function()
    local text = train("full", dummy .. " --max-steps 2 --log /dev/full")
    local _, count = text:gsub("cannot write '/dev/full': No space left on device", "")
    assert.equal(1, count)
    assert.matches("Epoch: %[0%]", text)
  end)

  it("names what it does not know, and what does not go together #lua", function()
    local kept, other = folder .. "/kept.safetensors", folder .. "/other.safetensors"
    lm.save(kept, {run = {arch = "resnet18", schedule = "cosine", epochs = 1}, position = {}})
    lm.save(other, lm.models.mlp():state_dict())
    local has_images = "--data " .. folder .. "/images "
    for given, message in pairs {
      ["--arch resnet19"] = "--arch: 'resnet19' is none of alexnet, ", ["--arch lenet"] = "--arch: 'lenet' is none of",
      ["--arch gpt2"] = "--arch: 'gpt2' is none of",
      ["--dummy --output /dev/null"] = "--output: cannot write '/dev/null/checkpoint.safetensors': Not a directory",
      ["--sync-bn --data-parallel"] = "--sync-bn: is for ranks",
      ["--schedule linear"] = "--schedule: 'linear' is none of constant, cosine, step",
      ["--label-smoothing 2"] = "--label-smoothing 2: 1 at most", ["--bathc-size 4"] = "--batch-size",
      ["--no-accel --device cpu"] = "--no-accel and --device: one of the two",
      ["--warmup 100"] = "--warmup 100: there are 90 epochs",
      ["images"] = "unrecognized argument 'images'; a folder of data follows --data",
      ["--gpu 0"] = "--gpu: --device cuda:0 is that",
      ["--multiprocessing-distributed"] = "luminary run --nproc",
      [has_images .. "--pretrained /nowhere"] = "--pretrained: cannot open '/nowhere'",
      [has_images .. "--pretrained " .. other] = "--pretrained: load_state_dict: for ResNet",
      ["--devices cpu:0"] = "--devices: is for --data-parallel",
      ["--data /nowhere"] = "imagenet.lua: --data: ImageFolder: root",
      ["--resume /nowhere"] = "imagenet.lua: --resume: cannot open '/nowhere'",
      ["--auto-resume --resume x"] = "--auto-resume and --resume: one of the two",
      ["--arch resnet50 --resume " .. kept] = "--arch resnet50 does not go with",
      ["--epochs 2 --resume " .. kept] = "--epochs 2 does not go with",
      ["--resume " .. other] = "is no checkpoint of this script",
      ["--data " .. folder .. "/images/train"] = "images/train/train",
    } do
      local ok, text = run("luajit %s %s", script, given)
      assert(not ok, given .. ": " .. text)
      assert.matches(message, text, 1, true)
      assert.matches("imagenet.lua: --help lists the options\n", text, 1, true)
      assert(not text:find("traceback", 1, true) and not text:find("usage:", 1, true), text)
    end
    local images, odd = folder .. "/images", folder .. "/odd"
    local copy = "env -u LD_PRELOAD cp %s/disc/*.jpg %s && "
    local ok, text = run("mkdir -p %s/train/a %s/val/b && " .. copy .. copy .. "luajit %s --data %s", odd, odd,
      images .. "/train", odd .. "/train/a", images .. "/val", odd .. "/val/b", script, odd)
    assert.is_false(ok)
    assert.matches("--data: train/ has 1 classes and val/ 1, or of other names", text, 1, true)
    ok, text = run("RANK=0 WORLD_SIZE=2 MASTER_PORT=%d luajit %s --timeout 1", ranks.free_port(), script)
    assert.is_false(ok)
    assert.matches("init_process_group: [^\n]*rank 1", text)
  end)
end)
