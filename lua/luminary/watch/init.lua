--- lm.watch: Shows the progress of a training: progress bars, logs for TensorBoard and others.
return require("luminary.base.options").strict("watch", {}, {
  progress = {"watch.progress"}, SummaryWriter = {"watch.summary_writer"}, JSONLogger = {"watch.jsonl_logger"},
  CSVLogger = {"watch.csv_logger"}, Logger = {"watch.logger"}, plot = {"watch.plot"},
})
