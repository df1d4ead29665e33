--- Pooling over windows of x [N, C, …] or [C, …]. Sizes are a number, or as many as there are dims of places.
local F = require "luminary.nn.functional"
local layer = require "luminary.nn.define_layer"
local options = require "luminary.base.options"
local printed = require "luminary.nn.print_values"
local sizes = require "luminary.nn.functional.sizes"

local list, pooling = layer.entries()

-- A size as it was given, checked.
local function as_given(n, least)
  local of = sizes.of(n, least)
  return function(who, name, v) return of(who, name, v) and v end
end
local function kept(n)
  local of = sizes.kept(n)
  return function(who, name, v)
    local all = of(who, name, v)
    return type(v) == "table" and all or v
  end
end
-- One that prints as it was given.
local function number(who, name, v) return options.arg(who, name, v, "number") end
local images = {"lines [N, C, L]", "images [N, C, H, W]", "volumes [N, C, D, H, W]"}

for n = 1, 3 do
  local d, of = ("%dd"):format(n), images[n]
  local kernel_size, stride = {"kernel_size", as_given(n, 1)}, {"stride", as_given(n, 1), from = "kernel_size"}
  local padding, ceil_mode = {"padding", as_given(n, 0), 0}, {"ceil_mode", "boolean", false}
  local prints = "kernel_size={kernel_size}, stride={stride}, padding={padding}"

  pooling("MaxPool" .. d) {
    takes = {kernel_size},
    options = {stride, padding, {"dilation", as_given(n, 1), 1}, {"return_indices", "boolean", false}, ceil_mode},
    call = F["max_pool" .. d], prints = prints .. ", dilation={dilation}, ceil_mode={ceil_mode}",
    help = "the largest in each window of " .. of
      .. "; with return_indices two results, the second where each is in its plane, from 1",
  }

  pooling("MaxUnpool" .. d) {
    takes = {{"kernel_size", sizes.of(n, 1)}},
    options = {{"stride", sizes.of(n, 1), from = "kernel_size"}, {"padding", sizes.of(n, 0), 0}},
    forward = function(self, x, indices, output_size)
      return F["max_unpool" .. d](x, indices, self.kernel_size,
        {stride = self.stride, padding = self.padding, output_size = output_size})
    end,
    prints = prints,
    help = ("zeros with x at the places that nn.MaxPool%s(…, {return_indices = true}) gave: unpool(x, indices "
      .. "[, output_size])"):format(d),
  }

  local avg = {stride, padding, ceil_mode, {"count_include_pad", "boolean", true}}
  if n > 1 then avg[5] = {"divisor_override", "integer"} end
  if n == 1 then avg[1], avg[2] = {"stride", sizes.of(1, 1), from = "kernel_size"}, {"padding", sizes.of(1, 0), 0} end
  pooling("AvgPool" .. d) {
    takes = {n == 1 and {"kernel_size", sizes.of(1, 1)} or kernel_size}, options = avg,
    call = F["avg_pool" .. d], prints = prints,
    help = n == 1 and "means of the windows of " .. of
      or "means of the windows of " .. of .. ", or sums divided by divisor_override, if there is one",
  }

  pooling("LPPool" .. d) {
    takes = {{"norm_type", number}, kernel_size}, options = {{"stride", as_given(n, 1)}, ceil_mode},
    call = F["lp_pool" .. d],
    prints = "norm_type={norm_type}, kernel_size={kernel_size}, stride={stride}, ceil_mode={ceil_mode}",
    help = "(the sum of x^p)^(1 / p) in each window of " .. of .. ", p = norm_type",
  }

  local output_size = {"output_size", kept(n)}
  pooling("AdaptiveAvgPool" .. d) {
    takes = {output_size}, call = F["adaptive_avg_pool" .. d], prints = "output_size={output_size}",
    help = "means over as many windows as output_size says, of " .. of,
  }
  pooling("AdaptiveMaxPool" .. d) {
    takes = {output_size, {"return_indices", "boolean", false}}, call = F["adaptive_max_pool" .. d],
    prints = "output_size={output_size}",
    help = "the largest in as many windows as output_size says, of " .. of,
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
  call = F.fractional_max_pool2d, help = "F.fractional_max_pool2d",
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
