--- Counts the begins and ends of checkpoints' runs: results kept across one are not those that backward recomputes.
return {count = 0}
