-- Written by scripts/dev/golden/gen_golden.py: expressions, and how PyTorch prints their modules.
return {
  { "nn.Linear(3, 4)", [=[Linear(in_features=3, out_features=4, bias=True)]=] },
  { "nn.Linear(3, 4, {bias = false})", [=[Linear(in_features=3, out_features=4, bias=False)]=] },
  { "nn.Conv2d(3, 8, 3)", [=[Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))]=] },
  { "nn.Conv2d(4, 8, {3, 2}, {stride = 2, padding = {1, 0}, dilation = 2, groups = 4, bias = false})",
[=[
Conv2d(4, 8, kernel_size=(3, 2), stride=(2, 2), padding=(1, 0), dilation=(2, 2), groups=4, bias=False)]=] },
  { "nn.Conv2d(1, 1, 2, {padding = 'same', padding_mode = 'reflect'})",
[=[
Conv2d(1, 1, kernel_size=(2, 2), stride=(1, 1), padding=same, padding_mode=reflect)]=] },
  { "nn.Conv2d(1, 1, 3, {padding = 'valid'})", [=[Conv2d(1, 1, kernel_size=(3, 3), stride=(1, 1), padding=valid)]=] },
  { "nn.Conv2d(1, 1, 3, {padding = 1, bias = false, padding_mode = 'circular'})",
[=[
Conv2d(1, 1, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False, padding_mode=circular)]=] },
  { "nn.BatchNorm1d(8)",
[=[
BatchNorm1d(8, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)]=] },
  { "nn.BatchNorm2d(8, {eps = 0.001, momentum = false, affine = false})",
[=[
BatchNorm2d(8, eps=0.001, momentum=None, affine=False, bias=False, track_running_stats=True)]=] },
  { "nn.BatchNorm2d(8, {momentum = 0.01, track_running_stats = false})",
[=[
BatchNorm2d(8, eps=1e-05, momentum=0.01, affine=True, bias=True, track_running_stats=False)]=] },
  { "nn.LayerNorm(8)", [=[LayerNorm((8,), eps=1e-05, elementwise_affine=True, bias=True)]=] },
  { "nn.LayerNorm({3, 4}, {eps = 1e-6, elementwise_affine = false})",
[=[
LayerNorm((3, 4), eps=1e-06, elementwise_affine=False, bias=False)]=] },
  { "nn.MaxPool2d(2)", [=[MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)]=] },
  { "nn.MaxPool2d({3, 2}, {stride = {2, 1}, padding = 1, ceil_mode = true})",
[=[
MaxPool2d(kernel_size=(3, 2), stride=(2, 1), padding=1, dilation=1, ceil_mode=True)]=] },
  { "nn.MaxPool2d(2, {return_indices = true})",
[=[
MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)]=] },
  { "nn.MaxUnpool2d({3, 2}, {stride = 2, padding = 1})",
[=[
MaxUnpool2d(kernel_size=(3, 2), stride=(2, 2), padding=(1, 1))]=] },
  { "nn.AvgPool2d(2)", [=[AvgPool2d(kernel_size=2, stride=2, padding=0)]=] },
  { "nn.AvgPool2d(3, {stride = 1, padding = 1})", [=[AvgPool2d(kernel_size=3, stride=1, padding=1)]=] },
  { "nn.AdaptiveAvgPool2d(1)", [=[AdaptiveAvgPool2d(output_size=1)]=] },
  { "nn.AdaptiveAvgPool2d({2, 3})", [=[AdaptiveAvgPool2d(output_size=(2, 3))]=] },
  { "nn.ReLU()", [=[ReLU()]=] },
  { "nn.ReLU{inplace = true}", [=[ReLU(inplace=True)]=] },
  { "nn.LeakyReLU()", [=[LeakyReLU(negative_slope=0.01)]=] },
  { "nn.LeakyReLU(0.2, {inplace = true})", [=[LeakyReLU(negative_slope=0.2, inplace=True)]=] },
  { "nn.GELU()", [=[GELU(approximate='none')]=] },
  { "nn.GELU{approximate = 'tanh'}", [=[GELU(approximate='tanh')]=] },
  { "nn.SiLU()", [=[SiLU()]=] },
  { "nn.Tanh()", [=[Tanh()]=] },
  { "nn.Sigmoid()", [=[Sigmoid()]=] },
  { "nn.Softplus()", [=[Softplus(beta=1.0, threshold=20.0)]=] },
  { "nn.Softplus(2.5, 5.5)", [=[Softplus(beta=2.5, threshold=5.5)]=] },
  { "nn.ELU(0.5)", [=[ELU(alpha=0.5)]=] },
  { "nn.SELU()", [=[SELU()]=] },
  { "nn.CELU(0.5, {inplace = true})", [=[CELU(alpha=0.5, inplace=True)]=] },
  { "nn.Mish()", [=[Mish()]=] },
  { "nn.Hardswish()", [=[Hardswish()]=] },
  { "nn.Hardsigmoid()", [=[Hardsigmoid()]=] },
  { "nn.LogSigmoid()", [=[LogSigmoid()]=] },
  { "nn.Softsign()", [=[Softsign()]=] },
  { "nn.Tanhshrink()", [=[Tanhshrink()]=] },
  { "nn.Threshold(0.1, 20.5)", [=[Threshold(threshold=0.1, value=20.5)]=] },
  { "nn.Hardshrink()", [=[Hardshrink(0.5)]=] },
  { "nn.Softshrink(1.5)", [=[Softshrink(1.5)]=] },
  { "nn.GLU()", [=[GLU(dim=-1)]=] },
  { "nn.RReLU(0.1, 0.3)", [=[RReLU(lower=0.1, upper=0.3)]=] },
  { "nn.PReLU()", [=[PReLU(num_parameters=1)]=] },
  { "nn.PReLU(3)", [=[PReLU(num_parameters=3)]=] },
  { "nn.Dropout()", [=[Dropout(p=0.5, inplace=False)]=] },
  { "nn.Dropout(0.25, {inplace = true})", [=[Dropout(p=0.25, inplace=True)]=] },
  { "nn.Identity()", [=[Identity()]=] },
  { "nn.Embedding(10, 3)", [=[Embedding(10, 3)]=] },
  { "nn.CrossEntropyLoss()", [=[CrossEntropyLoss()]=] },
  { "nn.NLLLoss()", [=[NLLLoss()]=] },
  { "nn.MSELoss()", [=[MSELoss()]=] },
  { "nn.BCEWithLogitsLoss()", [=[BCEWithLogitsLoss()]=] },
  { "nn.Sequential()", [=[Sequential()]=] },
  { "nn.ModuleList()", [=[ModuleList()]=] },
  { "nn.Sequential(nn.Conv2d(1, 20, 3), nn.ReLU(), nn.Sequential(nn.AvgPool2d(2), nn.Identity()), nn.Linear(8, 2))",
[=[
Sequential(
  (0): Conv2d(1, 20, kernel_size=(3, 3), stride=(1, 1))
  (1): ReLU()
  (2): Sequential(
    (0): AvgPool2d(kernel_size=2, stride=2, padding=0)
    (1): Identity()
  )
  (3): Linear(in_features=8, out_features=2, bias=True)
)]=] },
  { "Block(3, 8)",
[=[
Block(
  (conv1): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))
  (bn1): BatchNorm2d(8, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)
  (tail): ModuleList(
    (0-2): 3 x Linear(in_features=4, out_features=4, bias=True)
    (3): Linear(in_features=4, out_features=2, bias=True)
  )
)]=] },
  { "nn.Sequential(Block(3, 8, 2), nn.Dropout(0.5))",
[=[
Sequential(
  (0): Block(
    (conv1): Conv2d(3, 8, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1))
    (bn1): BatchNorm2d(8, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)
    (skip): Sequential(
      (0): Conv2d(3, 8, kernel_size=(1, 1), stride=(2, 2), bias=False)
      (1): BatchNorm2d(8, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)
    )
    (tail): ModuleList(
      (0-2): 3 x Linear(in_features=4, out_features=4, bias=True)
      (3): Linear(in_features=4, out_features=2, bias=True)
    )
  )
  (1): Dropout(p=0.5, inplace=False)
)]=] },
}
