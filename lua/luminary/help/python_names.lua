--- Names that every Python program has, and what Lua has in their place: for errors about globals of a script, and
--- about lm.NAME.
local constants = "Python's True, False and None are true, false and nil"
local dict = "a dict is {name = value}, and t[key] = value sets one of its values"
local names = {
  range = "for i = 1, n do … end; lm.arange(1, n) is a tensor", len = "#x", str = "tostring(x)",
  int = "math.floor(x)", float = "tonumber(x)", bool = "x ~= nil and x ~= false",
  enumerate = "for i, v in ipairs(list) do … end", zip = "for i = 1, #a do … a[i], b[i] … end", abs = "math.abs(x)",
  round = "math.floor(x + 0.5)", pow = "a ^ b", max = "math.max(a, b)", min = "math.min(a, b)",
  divmod = "math.floor(a / b), a % b", sum = "for _, v in ipairs(list) do s = s + v end; of a tensor x:sum()",
  all = "of a tensor x:all():item()", any = "of a tensor x:any():item()",
  sorted = "table.sort(list, f) sorts in place; of a tensor x:sort()",
  reversed = "for i = #list, 1, -1 do … list[i] … end; of a tensor x:flip(1)",
  map = "for i, v in ipairs(list) do out[i] = f(v) end", filter = "for _, v in ipairs(list) do if … then … end end",
  list = "a list is {1, 2, 3}", tuple = "a tuple is a list, {1, 2}, or several values",
  set = "a set is {name = true}", dict = dict, OrderedDict = dict, defaultdict = dict,
  Counter = "t[key] = (t[key] or 0) + 1 counts; of a tensor x:bincount()",
  isinstance = "module:is(nn.Linear), type(x), lm.is_tensor(x)", type = "type(x), a string",
  callable = 'type(x) == "function"', super = "Base.init(self, …) calls the method of the class that is extended",
  getattr = "x[name]", setattr = "x[name] = v", hasattr = "x[name] ~= nil",
  iter = "for v in f do … end calls f until it returns nil", lambda = "function(x) return … end",
  partial = "function(x) return f(a, x) end", input = "io.read()", open = "io.open(path)", exit = "os.exit(code)",
  quit = "os.exit(code)", sys = "arg has the command line, os.exit(code) ends, io.stderr:write(text) writes",
  time = "lm.time() is seconds; os.time()", datetime = 'os.date "%Y-%m-%d"',
  random = "lm.rand(n), lm.randperm(n), math.random()", pickle = "lm.save, lm.load",
  json = "lm.watch.JSONLogger and lm.data.JSONLinesDataset write and read JSON lines",
  copy = "x:clone(), net:clone()", glob = "lm.paths.files(folder, pattern)",
  Path = "paths are strings; lm.paths has functions of them", argparse = "arg[1], arg[2], … are the command line",
  logging = "lm.watch has loggers; io.stderr:write(text)",
  tqdm = "lm.watch.progress.new(total) makes a bar; bar:over(loader:epoch(1)) iterates with it",
  plt = "lm.watch.plot draws curves and images", pd = "lm.data.CSVDataset reads tables",
  np = "lm has what numpy would be used for: np.zeros((2, 3)) is lm.zeros(2, 3)",
  numpy = "lm has what numpy would be used for; x:totable() is a list",
  torchvision = "lm.vision, lm.models and lm.data have its parts", True = constants, False = constants,
  None = constants, try = "local ok, result = pcall(f, …)",
  self = "self is there in functions with a colon: function Net:forward(x)", __init__ = 'function Net:init(…) … end',
  inf = "math.huge", nan = "0 / 0",
}
return names
