-- Lucid's job_submit plugin. Rules and tag: docs/submission.md.
--
-- It runs under slurmctld's locks: so one small file is read, nothing is started, nobody is asked, and the work does
-- not grow with the number of jobs. Whatever goes wrong in here, the job is taken as its user wrote it: all is decided
-- first, inside pcall, and written to the job last. Lua 5.1 to 5.4.
--
-- slurmctld loads one file, on purpose (docs/decisions/0008-live-slurm.md). It is written as parts, each of which uses
-- only what those before it define, and `lucidctl slurm install` joins them.

local SETTINGS = "/etc/slurm/lucid.plugin.conf"
local HEARTBEAT_BYTES = 8192
local SCRIPT_BYTES = 65536
local ARRAY_TASKS = 1000
local AHEAD_S = 60 -- a heartbeat from further in the future than this was written by a wrong clock
local LEASE_S = 300 -- so long a new job waits for the daemon to take it over; then Slurm starts it by itself

local NO_VAL = 4294967294
local FIELDS = { node = "tres_per_node", job = "tres_per_job", socket = "tres_per_socket", task = "tres_per_task" }
local ORDER = { "node", "job", "socket", "task" }
-- CPUs and memory by GPU, which slots cannot have: Lucid says them otherwise, and gives them back from the tag.
local PER_GPU = { { "cpg", "cpus_per_tres" }, { "mpg", "mem_per_tres" } }

-- `srun` options that ask a shared job's allocation for GPUs which it holds as slots, and so fail.
local SRUN_ASKS = { "%-%-gres", "%-%-gpus", "%-%-gpu%-bind", "%-%-tres", "%s%-G", "%-%-%w+%-per%-gpu" }
-- The same where srun maps what a step asks for to the job's slots (`steps mapped`): what it cannot map. Found in the
-- words of an srun, and in lists of words that a script makes for one.
local SRUN_KEEPS = {
  "%-%-gpus%-per%-socket[%s=\"')]", "%-%-cpus%-per%-gpu[%s=\"')]", "%-%-mem%-per%-gpu[%s=\"')]",
  "%-%-[gt][pr][ue]s?%-bind[%s=]%S*closest",
}
local SET_KEEPS = { "SLURM_GPUS_PER_SOCKET", "SLURM_GPU_BIND=%S*closest", "SLURM_TRES_BIND=%S*closest" }
-- Variables that the task prolog has to unset in a shared job where srun does not: a script that reads them keeps its
-- GPUs to itself.
local UNSET = { "SLURM_GPUS[^_%w]", "SLURM_GPUS_PER_", "SLURM_TRES_", "SLURM_GRES", "SLURM_%w+_PER_GPU" }
