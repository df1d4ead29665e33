--- lm.watch: What shows how a training goes: progress bars, logs for TensorBoard and others.
return require("luminary.base.options").strict("watch", {}, {
  progress = {"watch.progress"}, SummaryWriter = {"watch.summary_writer"}, JSONLogger = {"watch.jsonl_logger"},
  CSVLogger = {"watch.csv_logger"}, Logger = {"watch.logger"}, plot = {"watch.plot"},
})
