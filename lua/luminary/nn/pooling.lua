--- Pooling over windows of x [N, C, …] or [C, …]. Sizes are a number for all dims, or a list with one for each.
local F = require "luminary.nn.functional"
local layer = require "luminary.nn.define_layer"
local options = require "luminary.base.options"
local printed = require "luminary.nn.print_values"
local sizes = require "luminary.nn.functional.sizes"

local list, pooling = layer.entries()

-- sizes.of, but with the value as it was passed, which print shows.
local function as_given(n, min)
  local of = sizes.of(n, min)
  return options.kind(options.kind_text(of), function(who, name, v) return of(who, name, v) and v end)
end
-- sizes.kept, but a number stays one.
local function kept(n)
  local of = sizes.kept(n)
  return options.kind(options.kind_text(of), function(who, name, v)
    local all = of(who, name, v)
    return type(v) == "table" and all or v
  end)
end
-- A function instead of the word "number", for which print would show "2.0" for 2.
local number = options.kind("number", function(who, name, v) return options.arg(who, name, v, "number") end)
local inputs = {"an input [N, C, L]", "an input [N, C, H, W]", "an input [N, C, D, H, W]"}

for n = 1, 3 do
  local d, input = ("%dd"):format(n), inputs[n]
  local kernel_size, stride = {"kernel_size", as_given(n, 1)}, {"stride", as_given(n, 1), from = "kernel_size"}
  local padding, ceil_mode = {"padding", as_given(n, 0), 0}, {"ceil_mode", "boolean", false}
  local prints = "kernel_size={kernel_size}, stride={stride}, padding={padding}"

  pooling("MaxPool" .. d) {
    takes = {kernel_size},
    options = {stride, padding, {"dilation", as_given(n, 1), 1}, {"return_indices", "boolean", false}, ceil_mode},
    call = F["max_pool" .. d], prints = prints .. ", dilation={dilation}, ceil_mode={ceil_mode}",
    help = "Applies max pooling to " .. input .. ".",
  }

  pooling("MaxUnpool" .. d) {
    takes = {{"kernel_size", sizes.of(n, 1)}},
    options = {{"stride", sizes.of(n, 1), from = "kernel_size"}, {"padding", sizes.of(n, 0), 0}},
    forward = function(self, x, indices, output_size)
      return F["max_unpool" .. d](x, indices, self.kernel_size,
        {stride = self.stride, padding = self.padding, output_size = output_size})
    end,
    prints = prints,
    help = ("Computes a partial inverse of nn.MaxPool%s, in which all elements that are no maxima are 0."):format(d),
  }

  local avg = {stride, padding, ceil_mode, {"count_include_pad", "boolean", true}}
  if n > 1 then avg[5] = {"divisor_override", "integer"} end
  if n == 1 then avg[1], avg[2] = {"stride", sizes.of(1, 1), from = "kernel_size"}, {"padding", sizes.of(1, 0), 0} end
  pooling("AvgPool" .. d) {
    takes = {n == 1 and {"kernel_size", sizes.of(1, 1)} or kernel_size}, options = avg,
    call = F["avg_pool" .. d], prints = prints,
    help = "Applies average pooling to " .. input .. ".",
  }

  pooling("LPPool" .. d) {
    takes = {{"norm_type", number}, kernel_size}, options = {{"stride", as_given(n, 1)}, ceil_mode},
    call = F["lp_pool" .. d],
    prints = "norm_type={norm_type}, kernel_size={kernel_size}, stride={stride}, ceil_mode={ceil_mode}",
    help = "Applies power-average pooling to " .. input .. ".",
  }

  local output_size = {"output_size", kept(n)}
  pooling("AdaptiveAvgPool" .. d) {
    takes = {output_size}, call = F["adaptive_avg_pool" .. d], prints = "output_size={output_size}",
    help = "Applies average pooling to " .. input .. " with an output of the given size.",
  }
  pooling("AdaptiveMaxPool" .. d) {
    takes = {output_size, {"return_indices", "boolean", false}}, call = F["adaptive_max_pool" .. d],
    prints = "output_size={output_size}",
    help = "Applies max pooling to " .. input .. " with an output of the given size.",
  }
end

pooling "FractionalMaxPool2d" {
  takes = {{"kernel_size", as_given(2, 1)}},
  options = {
    {"output_size", "any"}, {"output_ratio", "any"}, {"return_indices", "boolean", false},
    {"_random_samples", "tensor"},
  },
  made = function(self)
    if (self.output_size == nil) == (self.output_ratio == nil) then
      options.fail("FractionalMaxPool2d: pass either output_size or output_ratio")
    end
  end,
  call = F.fractional_max_pool2d,
  help = "Applies max pooling over windows at random positions to an input [N, C, H, W].",
}

local classes = layer.classes(list)
for n = 1, 3 do
  for _, name in ipairs {"AdaptiveAvgPool", "AdaptiveMaxPool"} do
    classes[name .. n .. "d"].extra_repr = function(self)
      return "output_size=" .. printed.number_or_tuple(self.output_size):gsub("%-1", "None")
    end
  end
end
return classes
