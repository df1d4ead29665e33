--- A Slurm of one node for specs: slurmctld and slurmd on 127.0.0.1, with configuration and state in a folder of their
--- own, gone after slurm.stop(). Root only, since slurmd is.
---
---   local cluster = slurm.start()                  -- nil and why, where there is no Slurm
---   cluster.env .. " srun -n 2 --overcommit --mpi=none luajit …"
---   cluster:stop()
local ranks, temp, needs = require "spec.support.ranks", require "spec.support.temp", require "spec.support.needs"

local slurm = {}

-- Nothing proves anything to anybody (auth/none), nothing is contained in cgroups, nothing is accounted for. Jobs of
-- clusters beside this one have other numbers, from which ranks derive their port.
local CONF = [[
ClusterName=spec
SlurmctldHost={HOST}(127.0.0.1)
SlurmctldPort={PORT1}
SlurmdPort={PORT2}
FirstJobId={PORT1}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={FOLDER}/state
SlurmdSpoolDir={FOLDER}/spool
SlurmctldPidFile={FOLDER}/slurmctld.pid
SlurmdPidFile={FOLDER}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=2
NodeName={HOST} NodeHostname={HOST} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=specs Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
]]

local function output(command)
  local pipe = io.popen(command .. " 2>/dev/null")
  local text = pipe:read("*a")
  pipe:close()
  return text
end

local Cluster = {}
Cluster.__index = Cluster

--- Starts a cluster that runs jobs, for five minutes at most; nil and a reason where it cannot start one.
function slurm.start()
  local why = needs.slurm()
  if why then return nil, why end
  local folder = temp.folder()
  local values = { FOLDER = folder, HOST = output("uname -n"):match("^[^.\n]*"), PORT1 = ranks.free_port() }
  repeat values.PORT2 = ranks.free_port() until values.PORT2 ~= values.PORT1
  os.execute(("mkdir %s/state %s/spool"):format(folder, folder))
  local conf = temp.write(folder .. "/slurm.conf", (CONF:gsub("{(%w+)}", values)))
  if needs.slurm_version() >= 23 then temp.write(folder .. "/cgroup.conf", "CgroupPlugin=disabled\n") end
  local self = setmetatable({ folder = folder, env = ranks.others .. "SLURM_CONF=" .. conf }, Cluster)
  for _, daemon in ipairs { "slurmctld -c", "slurmd" } do
    local name = daemon:match("^%S+")
    os.execute((ranks.others .. "timeout 300 %s -D -f %s >%s/%s.out 2>&1 </dev/null & echo $! >>%s/pids"):format(daemon,
      conf, folder, name, folder))
  end
  repeat -- repeats until a daemon has ended
    if output(("timeout 5 %s sinfo -h -o %%T"):format(self.env)):match("idle") then return self end
    ranks.sleep(0.1)
  until os.execute(("for p in $(cat %s/pids); do kill -0 $p || exit 1; done 2>/dev/null"):format(folder)) ~= 0
  local text = output(("tail -n 20 %s/*.out"):format(folder))
  self:stop()
  error("the cluster does not come up:\n" .. text)
end

--- Ends it, its daemons and their files. Jobs come first: a step that has no daemon any more waits for one.
function Cluster:stop()
  local function all(what)
    return os.execute(("for p in $(cat %s/pids); do %s; done 2>/dev/null; true"):format(self.folder, what)) == 0
  end
  os.execute(("timeout 5 %s scancel -u root 2>/dev/null"):format(self.env))
  for _ = 1, 100 do
    if output(("timeout 5 %s squeue -h"):format(self.env)) == "" then break end
    ranks.sleep(0.1)
  end
  all "kill $p"
  for _ = 1, 50 do
    if all "kill -0 $p && exit 1" then break end
    ranks.sleep(0.1)
  end
  all "kill -9 $p"
  temp.remove(self.folder)
end

return slurm
