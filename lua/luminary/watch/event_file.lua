--- event_file: Writes TensorBoard's event files: TFRecord files of protocol buffers. Schemas:
--- tensorboard/compat/proto/*.proto, tensorboard/plugins/hparams/{api,plugin_data}.proto.
local bit = require "bit"
local core = require "luminary.core"
local characters = require "luminary.base.characters"
local class = require "luminary.base.class"
local hostname = require "luminary.base.hostname"
local little_endian = require("luminary.file_formats.source").little_endian
local log_file = require "luminary.watch.log_file"
local ffi = require "ffi"

ffi.cdef "int lm_watch_pid(void) __asm__(\"getpid\");"

-- ---- protocol buffers

local doubles, floats = ffi.typeof "double[?]", ffi.typeof "float[?]"

local function varint(n)
  if n >= 0 and n < 128 then return string.char(n) end
  local bytes, rest = {}, ffi.cast("uint64_t", ffi.cast("int64_t", n)) -- negative integers take 10 bytes
  repeat
    local low = tonumber(rest % 128)
    rest = rest / 128
    bytes[#bytes + 1] = string.char(rest > 0 and low + 128 or low)
  until rest == 0
  return table.concat(bytes)
end

local function delimited(bytes) return varint(#bytes) .. bytes end

-- Wire types; each kind has one, and the writer of a value.
local VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
local kinds = {
  int = {VARINT, varint},
  bool = {VARINT, function(v) return v and "\1" or "\0" end},
  double = {FIXED64, function(v) return ffi.string(doubles(1, v), 8) end}, -- all supported machines are little-endian
  float = {FIXED32, function(v) return ffi.string(floats(1, v), 4) end},
  bytes = {DELIMITED, delimited},
  string = {DELIMITED, function(v) return delimited(characters.as_utf8(v)) end},
}

-- Writers of lists of numbers, which share one key.
local packed = {
  double = function(list) return ffi.string(doubles(#list, list), 8 * #list) end,
  float = function(list) return ffi.string(floats(#list, list), 4 * #list) end,
}

-- Returns encode(name, message), the bytes of a message in Protocol Buffers' wire format
-- (protobuf.dev/programming-guides/encoding). The schema has the fields of each message: NAME = {field = {number,
-- kind}}, where kind is double, float, int, bool, bytes, string or the name of a message; "[]" makes a list of it.
-- Strings are converted to UTF-8, since readers reject others. Fields that are nil are omitted. Integers have at most
-- 53 bits.
local function encoder(schema)
  local sorted, encode = {}, nil -- maps a message to its fields, by number
  for name, fields in pairs(schema) do
    sorted[name] = {}
    for field, row in pairs(fields) do
      local kind, list = row[2]:match "^(%w+)(%[?%]?)$"
      table.insert(sorted[name], {field = field, number = row[1], kind = kind, is_list = list ~= ""})
    end
    table.sort(sorted[name], function(a, b) return a.number < b.number end)
  end

  local function add(out, row, value)
    local kind = kinds[row.kind]
    out[#out + 1] = varint(row.number * 8 + (kind and kind[1] or DELIMITED))
    out[#out + 1] = kind and kind[2](value) or delimited(encode(row.kind, value))
  end

  function encode(name, message)
    local out = {}
    for _, row in ipairs(sorted[name]) do
      local value = message[row.field]
      if value ~= nil and row.is_list and packed[row.kind] then
        out[#out + 1] = varint(row.number * 8 + DELIMITED)
        out[#out + 1] = delimited(packed[row.kind](value))
      elseif value ~= nil then
        for _, each in ipairs(row.is_list and value or {value}) do add(out, row, each) end
      end
    end
    return table.concat(out)
  end
  return encode
end

-- ---- messages

local event_file = {}

--- Returns the bytes of a message: encode("Event", {step = 3, …}).
event_file.encode = encoder {
  Event = {
    wall_time = {1, "double"}, step = {2, "int"}, file_version = {3, "bytes"}, graph_def = {4, "bytes"},
    summary = {5, "Summary"}, session_log = {7, "SessionLog"},
  },
  SessionLog = {status = {1, "int"}},
  Summary = {value = {1, "Value[]"}},
  Value = {
    tag = {1, "string"}, simple_value = {2, "float"}, image = {4, "Image"}, histo = {5, "Histogram"},
    tensor = {8, "Tensor"}, metadata = {9, "Metadata"},
  },
  Image = {height = {1, "int"}, width = {2, "int"}, colorspace = {3, "int"}, encoded_image_string = {4, "bytes"}},
  Histogram = {
    min = {1, "double"}, max = {2, "double"}, num = {3, "double"}, sum = {4, "double"}, sum_squares = {5, "double"},
    bucket_limit = {6, "double[]"}, bucket = {7, "double[]"},
  },
  Tensor = {
    dtype = {1, "int"}, shape = {2, "Shape"}, float_val = {5, "float[]"}, double_val = {6, "double[]"},
    string_val = {8, "bytes[]"},
  },
  Shape = {dim = {2, "Dim[]"}},
  Dim = {size = {1, "int"}},
  Metadata = {plugin_data = {1, "PluginData"}},
  PluginData = {plugin_name = {1, "string"}, content = {2, "bytes"}},
  -- hyperparameters
  HParams = {
    version = {1, "int"}, experiment = {2, "Experiment"}, session_start_info = {3, "SessionStart"},
    session_end_info = {4, "SessionEnd"},
  },
  Experiment = {hparam_infos = {4, "HParamInfo[]"}, metric_infos = {5, "MetricInfo[]"}},
  HParamInfo = {name = {1, "string"}, type = {4, "int"}, domain_discrete = {5, "Values"}},
  Values = {values = {1, "AnyValue[]"}},
  AnyValue = {number_value = {2, "double"}, string_value = {3, "string"}, bool_value = {4, "bool"}},
  MetricInfo = {name = {1, "MetricName"}},
  MetricName = {tag = {2, "string"}},
  SessionStart = {hparams = {1, "HParamEntry[]"}},
  HParamEntry = {key = {1, "string"}, value = {2, "AnyValue"}},
  SessionEnd = {status = {1, "int"}},
  -- graphs
  GraphDef = {node = {1, "Node[]"}, versions = {4, "Versions"}},
  Versions = {producer = {1, "int"}},
  Node = {name = {1, "string"}, op = {2, "string"}, input = {3, "string[]"}, attr = {5, "AttrEntry[]"}},
  AttrEntry = {key = {1, "bytes"}, value = {2, "Attr"}},
  Attr = {list = {1, "AttrList"}, s = {2, "bytes"}},
  AttrList = {shape = {7, "Shape[]"}},
}

-- ---- records: length, its checksum, bytes, their checksum (tensorflow/core/lib/io/record_writer.h)

-- Returns the checksum as stored: rotated, plus a constant, since bytes with their checksum have a constant checksum.
local function masked_crc(bytes)
  local crc = bit.ror(bit.tobit(core.crc32c(bytes, 0)), 15)
  return little_endian(bit.tobit(crc + 0xa282ead8), 4)
end

--- Returns the bytes of a record in a file.
function event_file.record(bytes)
  local length = little_endian(#bytes, 8)
  return length .. masked_crc(length) .. bytes .. masked_crc(bytes)
end

-- ---- files

local opened = 0 -- files of this process, for distinct names

--- Returns the machine's name for names of files and folders.
function event_file.host() return hostname() or "localhost" end

local EventFile = class.root "EventFile"

function EventFile:init(folder, max_queue, flush_secs, suffix)
  local now = log_file.wall_time()
  local path = ("%s/events.out.tfevents.%010d.%s.%d.%d%s"):format(folder, now, event_file.host(),
    ffi.C.lm_watch_pid(), opened, suffix)
  opened = opened + 1
  self.file, self.max_queue, self.queued = log_file.open("SummaryWriter", path, false, flush_secs), max_queue, 0
  self:add({file_version = "brain.Event:2"}, nil, now)
end

function EventFile:add(event, step, time)
  event.wall_time, event.step = time or log_file.wall_time(), step
  self.file:write(event_file.record(event_file.encode("Event", event)))
  self.queued = self.queued + 1
  if self.queued > self.max_queue then self:flush() end
end

function EventFile:flush()
  self.queued = 0
  self.file:flush()
end

function EventFile:close() self.file:close() end

event_file.open = EventFile
return event_file
