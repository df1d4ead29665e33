-- dist.init_device_mesh: ranks in a grid, with a process group for each dim.
local several = require "spec.support.several"
local on = several ""

describe("dist.init_device_mesh", function()
  it("arranges the ranks with the last dim's as neighbors, and has a group for each dim", function()
    on.succeeds(4, [[
      local mesh = dist.init_device_mesh("cpu", {2, 2}, {names = {"replicate", "shard"}})
      assert(mesh.ndim == 2 and mesh:size() == 4 and mesh:size(1) == 2 and mesh:size "shard" == 2)
      assert(mesh:get_rank() == rank)
      local place = mesh:get_coordinate()
      assert(place[1] == math.floor(rank / 2) and place[2] == rank % 2)
      assert(mesh:get_local_rank "replicate" == place[1] and mesh["shard"]:get_local_rank() == place[2])
      local sum = lm.tensor {rank}
      dist.all_reduce(sum, {group = mesh["shard"]:get_group()})
      assert(sum:item() == (rank < 2 and 1 or 5))
      sum = lm.tensor {rank}
      dist.all_reduce(sum, {group = mesh:get_group(1)})
      assert(sum:item() == (rank % 2 == 0 and 2 or 4))
      local both = mesh[{"shard", "replicate"}]
      assert(both:get_group(1) == mesh:get_group "shard" and both.mesh_dim_names[2] == "replicate")
      contains(tostring(mesh), ("rank %d = replicate %d, shard %d"):format(rank, place[1], place[2]))
      contains(mesh["shard"]:describe_rank(3), "rank 3 = replicate 1, shard 1")
      contains(message(mesh.describe_rank, mesh, 4), "rank must be from 0 to 3, got 4")
      contains(message(mesh.get_group, mesh), "dim must be one of replicate, shard")
      contains(message(function() return mesh.tensor end), "dim must be one of replicate, shard, got string 'tensor'")
    ]])
  end)

  it("has numbered dims without names, dims of one rank, and one dim with the group of all", function()
    on.succeeds(2, [[
      local mesh = dist.init_device_mesh("cpu", {2, 1})
      assert(mesh:get_group(1) == dist.group.WORLD and mesh:get_group(2).size == 1 and mesh[2]:size() == 1)
      assert(mesh.mesh_dim_names == nil)
      contains(tostring(mesh), "dim 1 = 2, dim 2 = 1")
      contains(message(function() return mesh[3] end), "dim must be from 1 to 2, got 3")
      mesh = dist.init_device_mesh("cpu", {1, 2, 1})
      local alone = mesh:get_group(1)
      assert(alone.size == 1 and alone.ranks[1] == rank and mesh:get_group(3) == alone, "two groups of one rank")
      dist.destroy_process_group(alone)
      assert(dist.init_device_mesh("cpu", {2, 1}):get_group(2) ~= alone)
    ]])
    on.succeeds(1, [[
      local mesh = dist.init_device_mesh("cpu", {1, 1}, {names = {"a", "b"}})
      assert(mesh["a"]:get_group().size == 1 and mesh:get_local_rank "b" == 0)
    ]])
  end)

  it("joins dims in one with a group of their ranks", function()
    on.succeeds(8, [[
      local mesh = dist.init_device_mesh("cpu", {2, 2, 2}, {names = {"shard", "tensor", "context"}})
      local flat = mesh:flatten({"shard", "context"}, "both")
      assert(flat.ndim == 1 and flat:size() == 4 and mesh["both"]:get_group() == flat:get_group())
      assert(mesh[{"tensor", "context"}]:flatten():size() == 4) -- named tensor_context
      local ranks = flat:get_group().ranks
      local t = mesh:get_local_rank "tensor" -- rank 4 s + 2 t + c
      for i, want in ipairs {0, 1, 4, 5} do assert(ranks[i] == want + 2 * t) end
      assert(flat:get_local_rank() == 2 * mesh:get_local_rank "shard" + mesh:get_local_rank "context")
      local hybrid = mesh[{"tensor", "both"}]
      assert(hybrid.ndim == 2 and hybrid.shape[2] == 4 and hybrid:get_group(1) == mesh:get_group "tensor")
      local sum = dist.all_reduce(lm.tensor {rank}, {group = hybrid:get_group "both"})
      assert(sum:item() == 10 + 8 * t)
      contains(flat:describe_rank(6), "rank 6 = shard 1, tensor 1, context 0")
      assert(mesh:flatten({"context", "shard"}, "both"):get_group() == flat:get_group())
      assert(mesh:flatten({1, 2, 3}, "all"):get_group() == dist.group.WORLD)
      contains(message(mesh.flatten, mesh, {"shard", "tensor"}, "both"), "the mesh has a dim 'both' already")
      contains(message(mesh.flatten, mesh, {"shard"}, "tensor"), "the mesh has a dim 'tensor' already")
      contains(message(mesh.flatten, mesh, {"shard"}, "flat"), "cannot be named 'flat'")
      contains(message(mesh.flatten, mesh, {"expert"}), "dim must be one of shard, tensor, context")
      contains(message(function() return mesh[{"shard", "both"}] end), "{shard, both} has shard twice")
    ]])
    local got = on.run(2, [[
      dist.init_device_mesh("cpu", {1, 2}, {names = {"a", "b"}}):flatten({rank == 0 and "a" or "b"}, "c")
    ]])
    assert.matches("mesh differs from rank 0's: here dims {b}; there dims {a}", got[1].output, 1, true)
  end)

  it("refuses shapes and names that fit no mesh", function()
    on.succeeds(2, [[
      contains(message(dist.init_device_mesh, "cpu", {2, 2}), "must be 2, the number of ranks, got 4")
      contains(message(dist.init_device_mesh, "cpu", {2}, {names = {"a", "b"}}), "names")
      contains(message(dist.init_device_mesh, "cpu", {2, 1}, {names = {"a", "a"}}), "names has 'a' twice")
      contains(message(dist.init_device_mesh, "cpu", {2}, {names = {"size"}}), "cannot be named 'size'")
      contains(message(dist.init_device_mesh, "tpu", {2}), "device_type")
      contains(message(dist.init_device_mesh, "cpu", {2}, {names = {""}}), "the name of a dim must not be empty")
      local mesh = dist.init_device_mesh("cpu", {2}, {names = {"data"}})
      contains(message(function() return mesh[{}] end), "DeviceMesh: expected at least one dim, got {}")
      contains(message(mesh.flatten, mesh, {}), "expected at least one dim, got {}")
      contains(message(mesh.flatten, mesh, nil, ""), "DeviceMesh:flatten: the name of a dim must not be empty")
      contains(message(function() mesh.foo = 3 end), "DeviceMesh: cannot set 'foo'; meshes are constant")
    ]])
  end)

  it("refuses GPUs where there are none, also for one rank", function()
    on.succeeds(1, [[
      if not lm.cuda.is_available() then
        contains(message(dist.init_device_mesh, "cuda", {1}), "unavailable device 'cuda': this machine has no CUDA")
      end
    ]])
  end)

  it("fails on all ranks if they differ", function()
    local got = on.run(2, [[
      dist.init_device_mesh("cpu", {2}, {names = {rank == 0 and "shard" or "tensor"}})
    ]])
    for rank = 0, 1 do
      assert.not_equal(0, got[rank].code)
      assert.matches("mesh differs from rank 0's: here names {tensor}; there names {shard}", got[rank].output, 1, true)
    end
  end)

  it("names the places of ranks in the error of a collective that fails", function()
    local got = on.run(4, [[
      local mesh = dist.init_device_mesh("cpu", {2, 2}, {names = {"replicate", "shard"}})
      if rank == 3 then error "lost the data" end
      mesh:call(dist.barrier, {group = mesh:get_group(rank == 2 and 2 or 1)})
      dist.barrier()
    ]])
    assert.matches("(rank 2 = replicate 1, shard 0; rank 3 = replicate 1, shard 1", got[2].output, 1, true)
  end)
end)
