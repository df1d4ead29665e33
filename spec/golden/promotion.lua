-- Written by scripts/dev/golden/gen_golden.py: torch.result_type(left, right), a row for each left operand.
return {
  rights = [[
    dims float32, dims float64, dims float16, dims bfloat16, dims int64, dims int32, dims uint8, dims bool, dims
    int16, dims int8, zero_dim float32, zero_dim float64, zero_dim float16, zero_dim bfloat16, zero_dim int64,
    zero_dim int32, zero_dim uint8, zero_dim bool, zero_dim int16, zero_dim int8, number 3, number 0.5]],
  ["dims float32"] = [[
    float32 float64 float32 float32 float32 float32 float32 float32 float32 float32 float32 float32 float32 float32
    float32 float32 float32 float32 float32 float32 float32 float32]],
  ["dims float64"] = [[
    float64 float64 float64 float64 float64 float64 float64 float64 float64 float64 float64 float64 float64 float64
    float64 float64 float64 float64 float64 float64 float64 float64]],
  ["dims float16"] = [[
    float32 float64 float16 float32 float16 float16 float16 float16 float16 float16 float16 float16 float16 float16
    float16 float16 float16 float16 float16 float16 float16 float16]],
  ["dims bfloat16"] = [[
    float32 float64 float32 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16
    bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16]],
  ["dims int64"] = [[
    float32 float64 float16 bfloat16 int64 int64 int64 int64 int64 int64 float32 float64 float16 bfloat16 int64
    int64 int64 int64 int64 int64 int64 float32]],
  ["dims int32"] = [[
    float32 float64 float16 bfloat16 int64 int32 int32 int32 int32 int32 float32 float64 float16 bfloat16 int32
    int32 int32 int32 int32 int32 int32 float32]],
  ["dims uint8"] = [[
    float32 float64 float16 bfloat16 int64 int32 uint8 uint8 int16 int16 float32 float64 float16 bfloat16 uint8
    uint8 uint8 uint8 uint8 uint8 uint8 float32]],
  ["dims bool"] = [[
    float32 float64 float16 bfloat16 int64 int32 uint8 bool int16 int8 float32 float64 float16 bfloat16 int64 int32
    uint8 bool int16 int8 int64 float32]],
  ["dims int16"] = [[
    float32 float64 float16 bfloat16 int64 int32 int16 int16 int16 int16 float32 float64 float16 bfloat16 int16
    int16 int16 int16 int16 int16 int16 float32]],
  ["dims int8"] = [[
    float32 float64 float16 bfloat16 int64 int32 int16 int8 int16 int8 float32 float64 float16 bfloat16 int8 int8
    int8 int8 int8 int8 int8 float32]],
  ["zero_dim float32"] = [[
    float32 float64 float16 bfloat16 float32 float32 float32 float32 float32 float32 float32 float64 float32 float32
    float32 float32 float32 float32 float32 float32 float32 float32]],
  ["zero_dim float64"] = [[
    float32 float64 float16 bfloat16 float64 float64 float64 float64 float64 float64 float64 float64 float64 float64
    float64 float64 float64 float64 float64 float64 float64 float64]],
  ["zero_dim float16"] = [[
    float32 float64 float16 bfloat16 float16 float16 float16 float16 float16 float16 float32 float64 float16 float32
    float16 float16 float16 float16 float16 float16 float16 float16]],
  ["zero_dim bfloat16"] = [[
    float32 float64 float16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 float32 float64 float32
    bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16]],
  ["zero_dim int64"] = [[
    float32 float64 float16 bfloat16 int64 int32 uint8 int64 int16 int8 float32 float64 float16 bfloat16 int64 int64
    int64 int64 int64 int64 int64 float32]],
  ["zero_dim int32"] = [[
    float32 float64 float16 bfloat16 int64 int32 uint8 int32 int16 int8 float32 float64 float16 bfloat16 int64 int32
    int32 int32 int32 int32 int32 float32]],
  ["zero_dim uint8"] = [[
    float32 float64 float16 bfloat16 int64 int32 uint8 uint8 int16 int8 float32 float64 float16 bfloat16 int64 int32
    uint8 uint8 int16 int16 uint8 float32]],
  ["zero_dim bool"] = [[
    float32 float64 float16 bfloat16 int64 int32 uint8 bool int16 int8 float32 float64 float16 bfloat16 int64 int32
    uint8 bool int16 int8 int64 float32]],
  ["zero_dim int16"] = [[
    float32 float64 float16 bfloat16 int64 int32 uint8 int16 int16 int8 float32 float64 float16 bfloat16 int64 int32
    int16 int16 int16 int16 int16 float32]],
  ["zero_dim int8"] = [[
    float32 float64 float16 bfloat16 int64 int32 uint8 int8 int16 int8 float32 float64 float16 bfloat16 int64 int32
    int16 int8 int16 int8 int8 float32]],
}
