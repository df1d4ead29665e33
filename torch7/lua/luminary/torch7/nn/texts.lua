--- Defines the texts of layers and containers, as Torch7 prints them.
local class = require "luminary.torch7.class"
local lists = require "luminary.base.lists"
local tensor = require "luminary.torch7.tensor"

-- Sets the text of nn.name: its class and what text(layer) returns.
local function define(name, text)
  local methods = class.by_name["nn." .. name]
  if methods then methods.__tostring__ = function(self) return class.typename(self) .. text(self) end end
end

define("Leaf", function() return "" end)
for names, row in pairs {
  ["Dropout SpatialDropout VolumetricDropout"] = {"(%f)", "p"}, LeakyReLU = {"(%g)", "negval"},
  ELU = {" (alpha:%f)", "alpha"}, RReLU = {" (l:%f, u:%f)", "lower", "upper"}, SelectTable = {"(%s)", "index"},
  Normalize = {"(%g)", "p"}, Unsqueeze = {"(dim %s)", "pos"}, WhiteNoise = {" mean: %f, std: %f", "mean", "std"},
  ["SpatialZeroPadding SpatialReflectionPadding SpatialReplicationPadding"] = {"(l=%d, r=%d, t=%d, b=%d)", "pad_l",
    "pad_r", "pad_t", "pad_b"},
} do
  for name in names:gmatch "%S+" do
    define(name, function(self)
      return row[1]:format(unpack(lists.map({unpack(row, 2)}, function(field) return self[field] or 0 end)))
    end)
  end
end
define("Reshape", function(self) return "(" .. table.concat(tensor.sizes_from(self.size), "x") .. ")" end)
define("View", function(self) return "(" .. table.concat(tensor.sizes_from(self.size), ", ") .. ")" end)
local function without_bias(self) return self.bias == nil and " without bias" or "" end
for _, name in ipairs {"Linear", "LinearWeightNorm"} do
  define(name, function(self)
    return ("(%d -> %d)%s"):format(self.weight:size(2), self.weight:size(1), without_bias(self))
  end)
end
for name, dims in pairs {BatchNormalization = 2, SpatialBatchNormalization = 4, VolumetricBatchNormalization = 5} do
  define(name, function(self) return (" (%dD) (%d)"):format(dims, self.running_mean:nElement()) end)
end

-- Layers over windows: sizes, steps, padding, dilation and adjustment in the order of time, width and height.
local function fields(self, prefix, usual)
  local list, unusual = {}, false
  for axis in ("TWH"):gmatch "." do
    local v = self[prefix .. axis]
    if v then list[#list + 1], unusual = v, unusual or v ~= usual end
  end
  return unusual and ", " .. table.concat(list, ",") or "", list
end
for name in ("Convolution ConvolutionMM DepthWiseConvolution DilatedConvolution FullConvolution MaxPooling " ..
  "AveragePooling DilatedMaxPooling"):gmatch "%S+" do
  local is_pooling = name:find "Pooling"
  for _, space in ipairs {"Spatial", "Volumetric"} do
    define(space .. name, function(self)
      local _, kernel = fields(self, "k")
      local padding = fields(self, "pad", 0)
      local text = table.concat(kernel, "x") .. fields(self, "d", not is_pooling and padding == "" and 1 or nil)
        .. padding .. (name:find "Dilated" and fields(self, "dilation") or fields(self, "adj", 0))
      if is_pooling then return "(" .. text .. ")" end
      return ("(%d -> %d, %s)%s"):format(self.nInputPlane, self.nOutputPlane, text,
        space == "Spatial" and without_bias(self) or "")
    end)
  end
end

-- Containers draw their modules.
local function numbered(self)
  return table.concat(lists.map(self.modules, function(module, i)
    return ("  (%d): %s\n"):format(i, (tostring(module):gsub("\n", "\n  ")))
  end))
end
define("Container", function(self) return " {\n" .. numbered(self) .. "}" end)
define("Sequential", function(self)
  local numbers = lists.map(self.modules, function(_, i) return ("(%d) -> "):format(i) end)
  return (" {\n  [input -> %soutput]\n%s}"):format(table.concat(numbers), numbered(self))
end)
for _, name in ipairs {"Concat", "ConcatTable", "Parallel", "ParallelTable"} do
  define(name, function(self)
    local lines = lists.map(self.modules, function(module, i)
      local bar = i < #self.modules and "|" or " "
      return ("\n    %s`-> (%d): %s"):format(bar, i, (tostring(module):gsub("\n", "\n    " .. bar .. "    ")))
    end)
    return " {\n  input" .. table.concat(lines) .. "\n     ... -> output\n}"
  end)
end
define("Decorator", function(self) return " @ " .. tostring(self.modules[1]) end)
