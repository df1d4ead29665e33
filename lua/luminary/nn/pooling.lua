--- Defines pooling over windows of x [N, C, …] or [C, …]. Sizes are a number for all dims, or a list with one for each.
local F = require "luminary.nn.functional"
local layer = require "luminary.nn.define_layer"
local options = require "luminary.base.options"
local printed = require "luminary.nn.print_values"
local signature = require "luminary.base.signature"
require "luminary.nn.functional.sizes" -- defines the kinds of its arguments

local list, pooling = layer.entries()

local inputs = {"an input [N, C, L]", "an input [N, C, H, W]", "an input [N, C, D, H, W]"}
local windows = "(kernel_size: SIZES(N, 1), {stride = kernel_size, padding: SIZES(N, 0) = 0, "

for n = 1, 3 do
  local d, input = n .. "d", inputs[n]

  -- Adds an entry under the signature of a name with d. SIZES: those that print shows as passed, or all n of them.
  local function add_pooling(text, entry, shows_all)
    text = text:gsub("%(", d .. "(", 1):gsub("%f[%w]N%f[%W]", n)
    text = text:gsub("SIZES", shows_all and "sizes" or "sizes_as_given")
    entry.help = entry.help:format(input)
    pooling(text)(entry)
  end

  add_pooling("MaxPool" .. windows .. "dilation: SIZES(N, 1) = 1, return_indices = false, ceil_mode = false})", {
    call = F["max_pool" .. d], prints = "kernel_size stride padding dilation ceil_mode",
    help = "Applies max pooling to %s.",
  })
  add_pooling("MaxUnpool" .. windows .. "})", {
    forward = signature.of("MaxUnpool(x, indices, output_size: any?)", function(self, x, indices, output_size)
      return F["max_unpool" .. d](x, indices, self.kernel_size, self.stride, self.padding, output_size)
    end),
    prints = "kernel_size stride padding",
    help = ("Computes a partial inverse of nn.MaxPool%s, in which all elements that are no maxima are 0."):format(d),
  }, true)
  add_pooling("AvgPool" .. windows .. "ceil_mode = false, count_include_pad = true"
    .. (n > 1 and ", divisor_override: integer})" or "})"), {
    call = F["avg_pool" .. d], prints = "kernel_size stride padding", help = "Applies average pooling to %s.",
  }, n == 1)
  add_pooling("LPPool(norm_type: real, kernel_size: SIZES(N, 1), {stride: SIZES(N, 1), ceil_mode = false})", {
    call = F["lp_pool" .. d], prints = "norm_type kernel_size stride ceil_mode",
    help = "Applies power-average pooling to %s.",
  })
  add_pooling("AdaptiveAvgPool(output_size: output_sizes_as_given(N))", {
    call = F["adaptive_avg_pool" .. d], help = "Applies average pooling to %s with an output of the given size.",
  })
  add_pooling("AdaptiveMaxPool(output_size: output_sizes_as_given(N), return_indices = false)", {
    call = F["adaptive_max_pool" .. d], help = "Applies max pooling to %s with an output of the given size.",
  })
end

for n = 2, 3 do
  local name = ("FractionalMaxPool%dd"):format(n)
  pooling((name .. [[(kernel_size: sizes_as_given(N, 1), {output_size, output_ratio, return_indices = false,
    _random_samples: tensor})]]):gsub("N", n)) {
    after_init = function(self)
      if (self.output_size == nil) == (self.output_ratio == nil) then
        options.fail("%s: pass either output_size or output_ratio", name)
      end
      if self._random_samples then -- a buffer, as in PyTorch
        self:register_buffer("_random_samples", self._random_samples)
      end
    end,
    call = F[("fractional_max_pool%dd"):format(n)],
    help = ("Applies max pooling over windows at random positions to %s."):format(inputs[n]),
  }
end

local classes = layer.classes(list)
for n = 1, 3 do
  for _, name in ipairs {"AdaptiveAvgPool", "AdaptiveMaxPool"} do
    classes[name .. n .. "d"].extra_repr = function(self)
      return "output_size=" .. printed.number_or_tuple(self.output_size):gsub("%-1", "None")
    end
  end
end
return classes
