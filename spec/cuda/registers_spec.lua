-- Needs of each kernel by ptxas for sm_90, from the table of scripts/dev/kernel_registers, which scripts/test --long
-- makes: registers, of which 65,536 are shared by a multiprocessor's threads (at 64 each half of its 2,048 are
-- resident), and bytes of local memory, which are spills and arrays that are indexed.
local path = os.getenv "LM_FAKE_CUDA_REGISTERS"
if not path then return end

-- A pattern of names as the compiler mangles them, the most registers and bytes of local memory. The first that fits
-- holds; for all others it is REST. A kernel that needs less lowers its bound; one that needs more, for a reason alone.
local REST = {64, 0}
local bounds = {
  {"lm_attention_mma_of_queries", 168, 0}, -- 16 rows' results and scores in registers, of these as of the next ones
  {"lm_attention_mma_", 248, 0},
  {"lm_attention_of_", 255, 8},          -- a tile of scores and two of gradients in registers
  {"lm_attention_forward", 254, 0},
  {"cub.*radix", 128, 0},
  {"lm_columns_sums", 128, 48},           -- eight columns' two sums, and two packs in flight
  {"lm_columns_map", 128, 0},
  {"lm_planes_sums", 128, 0},
  {"lm_layer_rows", 120, 8},
  {"lm_entropy_backward", 119, 56},
  {"lm_entropy_forward", 96, 80},        -- ptxas aims at two blocks for float32, which (512, 1) would give 89 and none
  {"lm_seams_map", 100, 0},
  {"grad_igamma", 116, 40},              -- lgamma, a power and exp in one
  {"gamma", 80, 96},                     -- a table of coefficients
  {"lm_row_.*sinc?[I_]", 64, 40},        -- the slow path of large angles, as of the next two
  {"lm_row_.*cos[I_]", 64, 40},
  {"lm_row_.*tan[I_]", 64, 40},
  {"normal", 48, 40},
  {"cauchy", 48, 40},
  {"lm_pointwise_flat", 80, 32},
  {"lm_pointwise_strided", 68, 0},
  {"lm_reduce_rows.*load_short", 80, 144}, -- eight numbers a load, an index or a wide total for each
  {"lm_reduce_rows.*load_f32", 80, 0},
  {"lm_reduce_rows", 80, 80},
  {"lm_reduce_cols.*deviation", 80, 32},
  {"lm_reduce_", 80, 0},
  {"lm_scan_recurrenceId", 117, 0},      -- pairs of float64
  {"lm_scan_", 88, 0},
  {"lm_softmax_", 124, 0},
  {"lm_grid_.*ILi2ELi3E", 68, 1280},     -- cubic samples of volumes
  {"lm_grid_", 158, 0},                  -- cubic samples of images, with 16 weights
  {"lm_sample_kernel", 126, 40},         -- Poisson and binomial, by rejection
  {"lm_sample_indices", 22, 16},
  {"lm_pooling_", 72, 0},
  {"lm_plan_kernel", 48, 112},
  {"lm_index_sum_tiles", 76, 0},
  {"lm_optim_kernel.*_elementd", 86, 8}, -- float64
  {"lm_optim_kernel", 74, 0},
  {"lm_conv_", 72, 0},
  {"lm_ctc_backward", 65, 0},
  {"lm_block_linear_", 96, 0},           -- sums of eight rows, and a run's integers and scales
  {"lm_paged_attention_", 100, 0},       -- products of a key with eight heads' queries, or a value's sums for them
}

describe("a kernel's registers", function()
  local kernels, used = {}, {}
  for line in io.lines(path) do
    local name, registers, bytes = line:match "^(%S+) (%d+) (%d+) %d+$"
    assert(name, line)
    local bound = REST
    for _, each in ipairs(bounds) do
      if name:find(each[1]) then
        bound, used[each] = {each[2], each[3]}, true
        break
      end
    end
    kernels[#kernels + 1] = {name, tonumber(registers), tonumber(bytes), unpack(bound)}
  end

  it("and local memory are within their bounds", function()
    local above = {}
    for _, k in ipairs(kernels) do
      if k[2] > k[4] or k[3] > k[5] then
        above[#above + 1] = ("%s: %d registers of %d, %d bytes of %d"):format(k[1], k[2], k[4], k[3], k[5])
      end
    end
    assert.equal("", table.concat(above, "\n"))
    assert.is_true(#kernels > 1000)
  end)

  it("have no bound that holds for none", function()
    for _, each in ipairs(bounds) do assert.is_true(used[each], each[1]) end
  end)
end)
