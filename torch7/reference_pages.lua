--- Lists the reference pages for names that luminary.torch7 adds to Luminary's libraries, in the form of
--- scripts/dev/reference_pages.lua. "Module:getParameters" is a method added to a class of Luminary.
return {
  {file = "torch7-nn", title = "luminary.torch7: layers and methods of modules", {"Methods of modules", [[
    Module:getParameters Module:zeroGradParameters Module:evaluate Sequential:add Sequential:get]]},
    {"Tables of tensors", [[
      nn. Concat ConcatTable ParallelTable JoinTable SplitTable SelectTable NarrowTable FlattenTable CAddTable CSubTable
      CMulTable CDivTable CMaxTable CMinTable]]},
    {"Of one tensor", [[
      nn. View Reshape Transpose Select Narrow Squeeze Unsqueeze Sum Mean Max Min AddConstant MulConstant]]}},
  {file = "torch7-optim", title = "luminary.torch7: optimizers as functions", {"", [[
    optim. sgd adam adadelta adagrad adamax asgd lbfgs nag rmsprop rprop lswolfe checkgrad]]}},
  {file = "torch7-tools", title = "luminary.torch7: tools", {"", "lm.CmdLine optim.ConfusionMatrix optim.Logger"},
    {"Methods of lm.Timer", "Timer:resume"}},
}
