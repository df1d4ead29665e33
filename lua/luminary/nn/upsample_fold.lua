--- Defines layers that resize inputs, and convert their windows to columns.
local F = require "luminary.nn.functional"
local layer = require "luminary.nn.define_layer"
local printed = require "luminary.nn.print_values"

local list, resampling = layer.entries()

local function floats(v)
  if type(v) ~= "table" then return printed.float(v) end
  local texts = {}
  for i, each in ipairs(v) do texts[i] = printed.float(each) end
  return printed.tuple(texts)
end

local function print_upsample(self)
  local text = self.size ~= nil and "size=" .. printed.number_or_tuple(self.size)
    or "scale_factor=" .. floats(self.scale_factor)
  return ("%s, mode='%s'"):format(text, self.mode)
end

resampling [[Upsample(size: any?, scale_factor: any?, mode = "nearest", align_corners: boolean?,
  recompute_scale_factor: boolean?)]] {
  forward = function(self, x)
    return F.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor)
  end,
  help = "Upsamples an input [N, C, L], [N, C, H, W] or [N, C, D, H, W] to a size or by a factor.",
}
for name, mode in pairs {UpsamplingNearest2d = "nearest", UpsamplingBilinear2d = "bilinear"} do
  local method = mode == "nearest" and "by nearest neighbors" or "by bilinear interpolation with align_corners"
  resampling(name .. "(size: any?, scale_factor: any?)") {
    made = function(self) self.mode, self.align_corners = mode, mode == "bilinear" or nil end,
    forward = function(self, x)
      return F.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)
    end,
    help = ("Upsamples an input [N, C, H, W] %s."):format(method),
  }
end

local columns = "kernel_size: size, dilation: size = 1, padding: size = 0, stride: size = 1)"
resampling("Unfold(" .. columns) {
  call = F.unfold, prints = "kernel_size dilation padding stride",
  help = "Extracts the sliding windows of an input [N, C, H, W] as columns.",
}
resampling("Fold(output_size: size, " .. columns) {
  call = F.fold, prints = "output_size kernel_size dilation padding stride",
  help = "Combines columns, as of nn.Unfold, into a tensor of sliding windows added up.",
}

local classes = layer.classes(list)
for _, name in ipairs {"Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d"} do
  classes[name].extra_repr = print_upsample
end
return classes
