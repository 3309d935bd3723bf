-- Lucid's job_submit plugin. Rules and tag: docs/slurm-submit.md.
--
-- It runs under slurmctld's locks: so one small file is read, nothing is started, nobody is asked, and the work does
-- not grow with the number of jobs. Whatever goes wrong in here, the job is taken as its user wrote it: all is decided
-- first, inside pcall, and written to the job last. Lua 5.1 to 5.4.
--
-- It is one file on purpose (docs/decisions/0008-live-slurm.md). Its parts, each below a line that begins with "----":
-- what users are told; what the daemon says; what a job asks for; submission; changes of waiting jobs; what slurmctld
-- calls.

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
-- The same where srun maps what a step asks for to the job's slots (`steps mapped`): what it cannot map.
local SRUN_KEEPS = { "%-%-gpus%-per%-socket", "%-%-gpu%-bind", "%-%-tres%-bind", "%-%-%w+%-per%-gpu" }
-- Variables that the task prolog has to unset in a shared job where srun does not: a script that reads them keeps its
-- GPUs to itself.
local UNSET = { "SLURM_GPUS[^_%w]", "SLURM_GPUS_PER_", "SLURM_TRES_", "SLURM_GRES", "SLURM_%w+_PER_GPU" }

---- What users are told

-- What a job's user reads where it is refused. Each says what to do instead.
local SAYS = {
  shard = "Lucid: only Lucid gives out shards of GPUs. Ask for GPUs (--gres=gpu:1); Lucid shares them where "
    .. "that costs little.",
  address = "Lucid: gpu:g0, gpu:g1, ... name single GPUs, which Lucid chooses. Ask for a number of GPUs (--gres=gpu:1).",
  extra = "Lucid: items in --extra that begin with lucid- are reserved for Lucid. Leave them out.",
  profiling = "Lucid: this partition is for Lucid's measuring runs. Submit to your own partition; Lucid sends new "
    .. "programs here by itself.",
  pool = "Lucid: this partition is for jobs that borrow GPUs of other VCs. Submit to your own partition; Lucid moves "
    .. "jobs here by itself.",
  cron = "Lucid: a job of scrontab cannot queue with the others. Let scrontab run a job without GPUs that calls sbatch.",
  immediate = "Lucid: jobs that want GPUs queue here, so --immediate cannot be met. Leave it out.",
  release = "Lucid: this job is not on hold; Lucid starts it at its turn (lucidctl explain JOB). To stop it, use "
    .. "scontrol hold.",
  admin = "Lucid: an administrator holds this job. Ask them to release it.",
  late = "Lucid: this job was submitted past the queue and cannot be released into it. scancel it and submit it again.",
  request = "Lucid: a waiting job's GPUs cannot be changed here. scancel it and submit it again.",
  size = "Lucid: this job has left the queue for Slurm to start and cannot be made larger. scancel it and submit it again.",
  move = "Lucid: this job has no place in the queue of that partition. scancel it and submit it again with -p.",
  moves = "Lucid: a job waits in one partition here. Name one, or scancel it and submit it again.",
  reservation = "Lucid: this job went past the queue to its reservation. To do without that, scancel it and submit it "
    .. "again.",
}
-- The same where the site refuses what Lucid cannot order (daemon.optout = "refused"), by the word in the tag.
local REFUSES = {
  asked = "Lucid: lucid:off is not allowed on this cluster. Leave it out; lucid:exclusive keeps your GPUs to yourself.",
  partitions = "Lucid: name one partition (-p); Lucid does not choose between several.",
  array = "Lucid: an array may have 1000 tasks at the most. Submit it as several arrays.",
  address = "Lucid: ask for one kind of GPU, by its model (--gres=gpu:a100:1) or by none.",
  socket = "Lucid: ask for GPUs by node or by job (--gres=gpu:1, --gpus=1), not by socket.",
  tasks = "Lucid: say --ntasks and --gpus in place of --ntasks-per-gpu.",
  het = "Lucid: heterogeneous jobs with GPUs are not allowed on this cluster. Submit the parts as jobs of their own.",
  whole = "Lucid: whole nodes have GPUs. Ask for them (--gres=gpu:N) beside --exclusive.",
  request = "Lucid: this request for GPUs cannot be read. Ask for a number of GPUs (--gres=gpu:1).",
}

---- What the daemon says

local function settings()
  local found = { heartbeat = "/run/lucid/heartbeat", stale = 60, route = false, types = {}, exempt = {} }
  local file = io.open(SETTINGS, "r")
  if not file then
    return found
  end
  for line in file:lines() do
    local key, value = line:match("^(%l+)%s+(%S+)%s*$")
    if key == "heartbeat" then
      found.heartbeat = value
    elseif key == "stale" then
      found.stale = tonumber(value) or found.stale
    elseif key == "route" then
      found.route = value == "yes"
    elseif key == "type" then
      found.types[value] = true
    elseif key == "shards" then
      found.users_shards = value == "users"
    elseif key == "steps" then
      found.steps = value == "mapped"
    elseif key == "exempt" then
      found.exempt[tonumber(value) or -1] = true
      found.exempts = true
    end
  end
  file:close()
  return found
end

-- Tells the daemon that there is something to look at, by the time of change of a small file beside the heartbeat, which
-- is slurmctld's own. It is never made here: where it is not there, or not writable, the daemon finds the job by itself.
local function wake(known, now)
  local file = io.open((known.heartbeat:gsub("[^/]+$", "wake")), "r+")
  if file then
    file:write(string.format("%d\n", now))
    file:close()
  end
end

-- The heartbeat file's text, empty where there is none, and the digits of its time, or nil.
local function beat_text(known)
  local file = io.open(known.heartbeat, "r")
  local text = file and file:read(HEARTBEAT_BYTES) or ""
  if file then
    file:close()
  end
  return text, text:match("^time (%d+)\n")
end

-- What the daemon last wrote, or nil if it has not written lately. It replaces the file as a whole.
local function heartbeat(known, now)
  local text, digits = beat_text(known)
  local written = tonumber(digits)
  if not written or #text == HEARTBEAT_BYTES or now - written > known.stale or written - now > AHEAD_S then
    return nil
  end
  local beat = { modes = {}, most = {}, unrouted = {}, profiling = text:match("\nprofiling ([%w_.-]+)\n") }
  beat.pool = text:match("\npool ([%w_.-]+)\n")
  beat.n_prof = tonumber(text:match("\nn_prof (%d+)\n")) or 0
  beat.optout = text:match("\noptout (%l+)\n") or "free"
  for name, gpus in text:gmatch("most ([%w_.-]+) (%d+)\n") do
    beat.most[name] = tonumber(gpus)
  end
  for name, mode in text:gmatch("mode ([%w_.-]+) (%l+)\n") do
    beat.modes[name] = mode
  end
  for name in text:gmatch("\nunrouted ([%w_.-]+)") do
    beat.unrouted[name] = true
  end
  return beat
end

---- What a job asks for

-- One GPU item of a request: its type ("" for none), or nil if it is no GPU.
local function gpu_type(item)
  local rest = item:match("^gres[/:]gpu(.*)$")
  if not rest then
    return nil
  end
  if rest == "" or rest:match("^[:=]%d+$") then
    return ""
  end
  return rest:match("^:([%w_.-]+)[:=]%d+$") or rest:match("^:([%w_.-]+)$") or "?"
end

-- What is asked for, in all four places: GPUs or not, types that are node features here, other generic resources.
local function read_request(job, types)
  local found = { gpus = false, other = false, shard = false, fields = {}, untyped = {} }
  for _, key in ipairs(ORDER) do
    local text = job[FIELDS[key]]
    if type(text) == "string" and text ~= "" then
      local items = {}
      for item in text:gmatch("[^,]+") do
        local asked = gpu_type(item)
        if asked and item:match("[:=]0+$") then
          asked = nil -- no GPU, said in so many words
        end
        if asked then
          found.gpus = true
          found.fields[key] = true
        elseif item:match("^gres[/:]shard") then
          found.shard = true
          found.slot = found.slot or item:match("^gres[/:]shard[:=]g%d+") ~= nil
        elseif item:match("^gres[/:]") then
          found.other = true
        end
        if asked and types[asked] then
          if found.feature and found.feature ~= asked then
            found.mixed = true
          end
          found.feature = asked
          item = item:gsub(":" .. asked:gsub("%p", "%%%0"), "", 1)
        elseif asked and asked ~= "" then
          found.address = true -- a type that is no feature: `gpu:g2:1`, which names one GPU, or a misspelling
          found.single = found.single or asked:match("^g%d+$") ~= nil
        end
        items[#items + 1] = item
      end
      found.untyped[key] = table.concat(items, ",")
    end
  end
  return found
end

local function with_feature(features, feature)
  if features == nil or features == "" then
    return feature
  end
  if features == feature then
    return features
  end
  if features:find("|", 1, true) and not features:find("[%[(]") then
    features = "(" .. features .. ")"
  end
  return features .. "&" .. feature
end

local function tasks_in(array)
  local count = 0
  for first, rest in array:gsub("%%.*$", ""):gmatch("(%d+)([^,]*)") do
    local last, step = rest:match("^%-(%d+):?(%d*)")
    count = count + (last and math.floor((last - first) / (tonumber(step) or 1)) + 1 or 1)
  end
  return count
end

local function unset(number)
  return number == nil or number == NO_VAL or number == 65534
end

local function given(text)
  return type(text) == "string" and text ~= ""
end

-- Does a comment opt in to be resized? Only at submission: the job's environment is made then.
local function opts_in(comment)
  return (" " .. (comment or "")):find("[%s,;]lucid:elastic=%d") ~= nil
end

-- Does a comment have lucid:WORD as a word of its own?
local function says(comment, word)
  return (" " .. (comment or "") .. " "):find("[%s,;]lucid:" .. word .. "[%s,;]") ~= nil
end

-- What only Slurm can work out about a job: its request is never changed. One word, for the tag; or nil.
local function opaque(job, request, names)
  if says(job.comment, "off") then
    return "asked"
  elseif #names > 1 then
    return "partitions"
  elseif not unset(job.het_job_offset) then
    return "het"
  elseif not given(job.script) then
    return "interactive"
  elseif request.address or request.shard or request.mixed then
    return "address"
  elseif request.fields.socket then
    return "socket" -- what it gets follows from the cores that it is given: nobody can plan that
  elseif not unset(job.ntasks_per_tres) then
    return "tasks" -- any update, a release too, would change its number of tasks (seen on 24.11)
  elseif job.array_inx and tasks_in(job.array_inx) > ARRAY_TASKS then
    return "array"
  elseif not request.gpus then
    return "whole"
  end
  return nil
end

local function begins(job, now)
  local begin = tonumber(job.begin_time)
  return not unset(begin) and begin > now and begin or nil
end

-- The begin time with which a job is parked. slurmctld judges a job that may begin later as it judges any other, and
-- refuses what no node can give; a held job it does not judge. The user's own begin time stays where it lies further
-- ahead. nil for a job with a deadline: Slurm refuses one that could not begin before it, and does not show deadlines
-- here. cli_filter.lua, or the script, tells that there is one.
local function parked_until(job, begin, now)
  local script = "\n" .. (job.script or "")
  if says(job.comment, "deadline") or script:find("\n#SBATCH[^\n]*%-%-deadline") then
    return nil
  end
  return math.max(begin or 0, now + LEASE_S)
end

-- Why the job must keep its GPUs to itself, in one word, or nil.
local function keeps_its_gpus(job, request, known)
  local features = job.features
  if says(job.comment, "exclusive") then
    return "asked"
  elseif request.other then
    return "gres"
  elseif job.requeue == 0 then
    return "requeue"
  elseif job.shared == 0 then
    return "exclusive"
  elseif (job.req_nodes and job.req_nodes ~= "") or (job.exc_nodes and job.exc_nodes ~= "") then
    return "nodes"
  elseif features and features ~= "" and features ~= request.feature and not known.types[features] then
    return "constraint"
  elseif #job.script > SCRIPT_BYTES then
    return "long"
  elseif known.steps and request.fields.task and given(job.cpus_per_tres) then
    return "variables" -- beside GPUs by task, srun cannot be told CPUs in place of CPUs by GPU
  end
  local script = job.script:gsub("\\\n", " ")
  for line in script:gmatch("[^\n;&|]+") do
    if line:find("srun", 1, true) then
      for _, pattern in ipairs(known.steps and SRUN_KEEPS or SRUN_ASKS) do
        if line:find(pattern) then
          return "srun"
        end
      end
    end
  end
  for _, pattern in ipairs(known.steps and {} or UNSET) do
    if (script .. "\n"):find(pattern) then
      return "variables"
    end
  end
  return nil
end

-- GPUs of the whole job, as far as can be told here: what it takes to stand by N_prof.
local function gpus_of(job, request)
  local total = 0
  for key, text in pairs(request.untyped) do
    for item in text:gmatch("[^,]+") do
      local count = gpu_type(item) == "" and (tonumber(item:match("(%d+)$")) or 1) or 0
      if key == "node" and not unset(job.min_nodes) then
        count = count * math.max(job.min_nodes, 1)
      elseif key == "task" and not unset(job.num_tasks) then
        count = count * math.max(job.num_tasks, 1)
      end
      total = math.max(total, count)
    end
  end
  return total
end

-- Does it take as many nodes as there are, between two numbers (-N1-2)?
local function spans(job)
  return not unset(job.max_nodes) and not unset(job.min_nodes) and job.max_nodes ~= job.min_nodes
end

-- Tasks of a job that asks for so many by GPU (--ntasks-per-gpu), where its GPUs can be counted here; else nil. At any
-- update, a release too, Slurm works that number out anew, by nodes in place of GPUs (seen on 24.11), unless it is said,
-- or the number of nodes is open: 0.
local function tasks_by_gpu(job, request)
  local gpus = 0
  if spans(job) then
    return 0
  end
  for _, key in ipairs({ "job", "node" }) do
    for item in (request.untyped[key] or ""):gmatch("[^,]+") do
      if gpu_type(item) == "" then
        gpus = gpus + (tonumber(item:match("(%d+)$")) or 1)
      end
    end
    if gpus > 0 and key == "node" and not unset(job.min_nodes) then
      gpus = gpus * math.max(job.min_nodes, 1)
    end
    if gpus > 0 then
      return gpus * job.ntasks_per_tres
    end
  end
  return nil
end

-- The most GPUs that the job asks for on any one node, as far as that is said.
local function most_on_one(request)
  local most = 0
  for _, key in ipairs({ "node", "task" }) do
    for item in (request.untyped[key] or ""):gmatch("[^,]+") do
      if gpu_type(item) == "" then
        most = math.max(most, tonumber(item:match("(%d+)$")) or 1)
      end
    end
  end
  return most
end

-- The partitions that a list names, or the default one.
local function partitions_of(text, part_list)
  local names = {}
  for name in (text or ""):gmatch("[^,]+") do
    names[#names + 1] = name
  end
  if #names == 0 then
    for name, partition in pairs(part_list or {}) do
      if partition.flag_default == 1 then
        names[1] = name
      end
    end
  end
  return names
end

-- The first of them that is packed.
local function packed(names, beat)
  for _, name in ipairs(names) do
    if beat.modes[name] == "pack" then
      return name
    end
  end
  return nil
end

-- What a user reads who names a partition into which only Lucid moves jobs, unless it is a VC, too; nil otherwise.
local function for_lucid(names, beat)
  for _, name in ipairs(names) do
    if name == beat.profiling and not beat.modes[name] then
      return SAYS.profiling
    elseif name == beat.pool and not beat.modes[name] then
      return SAYS.pool
    end
  end
  return nil
end

-- Where a waiting job queues: its partitions, or its VC while it stands in the pool's partition.
local function queues_in(record, tag, beat)
  local names = partitions_of(record.partition)
  if beat and #names == 1 and names[1] == beat.pool and not beat.modes[names[1]] then
    names[1] = tag:match("vc=([%w_.-]+)") or names[1]
  end
  return names
end

-- What the job has of nodes, tasks, CPUs and GPUs on plain Slurm at the least, as far as can be told here. `here`: GPUs
-- on each node. The task prolog sends a start that gives less back.
local function least(job, request)
  local nodes, tasks = job.min_nodes, job.num_tasks
  nodes = not unset(nodes) and nodes > 0 and nodes or 1
  local per_node = not unset(job.ntasks_per_node) and job.ntasks_per_node > 0 and job.ntasks_per_node or nil
  if not unset(tasks) and per_node and not unset(job.max_nodes) then
    tasks = math.min(tasks, per_node * math.max(job.max_nodes, nodes))
  elseif unset(tasks) then
    tasks = per_node and per_node * nodes or 1
  end
  -- With tasks by GPU Slurm itself may give fewer CPUs than it reckoned with (seen on 24.11).
  local cpus = not unset(job.min_cpus) and unset(job.ntasks_per_tres) and job.min_cpus or 0
  local here = most_on_one({ untyped = { node = request.untyped.node } })
  return string.format("nodes=%d,tasks=%d,cpus=%d,gpus=%d,here=%d", nodes, tasks, cpus, gpus_of(job, request), here)
end

-- For the task prolog, as variables of the job's environment.
local function noted(job, request)
  local edits = {}
  if not opts_in(job.comment) then
    edits[1] = { "environment", { "LUCID_LEAST", least(job, request) } }
  end
  if unset(job.min_mem_per_node) and unset(job.min_mem_per_cpu) and not given(job.mem_per_tres) then
    -- Its memory is a default's. By GPU it becomes memory by node in slots, which plain Slurm would not have told it.
    edits[#edits + 1] = { "environment", { "LUCID_MEM_DEFAULT", "new" } }
  end
  if given(job.tres_per_task) and job.tres_per_task:find("^[%w_./:=,-]+$") then
    -- What sbatch wrote: 26.05 forgets it once the request has become slots.
    edits[#edits + 1] = { "environment", { "LUCID_TRES_PER_TASK", job.tres_per_task } }
  end
  return edits
end

-- The tag: what the daemon, the release script and an administrator need to know. Its values are names and numbers
-- that were checked: no user can put a separator or a quote into it.
local function tag_of(job, request, known, name, entry, begin)
  local tag = { "vc=" .. name, entry }
  if begin then
    tag[#tag + 1] = string.format("begin=%d", begin)
  end
  for _, key in ipairs(ORDER) do
    local text = request.untyped[key]
    if text then
      if not text:match("^[%w_./:=,-]+$") then
        return nil
      end
      tag[#tag + 1] = key .. "=" .. text
    end
  end
  for _, pair in ipairs(PER_GPU) do
    local text = job[pair[2]]
    if type(text) == "string" and text ~= "" then
      if not text:match("^[%w_./:=,-]+$") then
        return nil
      end
      tag[#tag + 1] = pair[1] .. "=" .. text
    end
  end
  if request.feature then
    tag[#tag + 1] = "type=" .. request.feature
  end
  if given(job.req_nodes) then
    tag[#tag + 1] = "nodes=1"
  end
  local alone = keeps_its_gpus(job, request, known)
  if alone then
    tag[#tag + 1] = "share=0;why=" .. alone
  end
  if job.requeue == 0 then
    tag[#tag + 1] = "requeue=0"
  elseif job.requeue == 1 or says(job.comment, "restart") then
    tag[#tag + 1] = "restart=1" -- its user said so: JobRequeue of slurm.conf alone leaves requeue unset here
  end
  if says(job.comment, "cold") then
    tag[#tag + 1] = "cold=1"
  end
  if says(job.comment, "amp") then
    tag[#tag + 1] = "amp=1"
  end
  if opts_in(job.comment) then
    tag[#tag + 1] = "elastic=1"
    if not unset(job.max_nodes) then
      tag[#tag + 1] = string.format("most=%d", job.max_nodes) -- of --nodes; later Slurm's own number says less
    end
  end
  if says(job.comment, "turns") then
    tag[#tag + 1] = "turns=1"
  end
  if not unset(job.num_tasks) and not unset(job.ntasks_per_node) then
    -- At any update Slurm works the number of tasks out anew, by nodes and tasks per node, unless it is said.
    tag[#tag + 1] = string.format("tasks=%d", job.num_tasks)
  end
  tag[#tag + 1] = "v=2" -- holds of users and administrators show in the comment: slurm_job_modify
  return "lucid:" .. table.concat(tag, ";")
end

local function with_words(comment, words)
  return comment:find("%S") and comment .. " " .. words or words
end

-- A comment without the words by which a hold is known, and with them.
local function without_held(comment)
  local left = (" " .. comment .. " "):gsub("[%s,;]lucid:held([%s,;])", "%1"):gsub("[%s,;]lucid:admin([%s,;])", "%1")
  return (left:gsub("^%s+", ""):gsub("%s+$", ""))
end

local function with_held(comment, by_admin)
  return with_words(without_held(comment), by_admin and "lucid:held lucid:admin" or "lucid:held")
end

-- A comment's word on a change of size: nil where there is none, else the number of tasks that its user said, or "".
local function resized(comment)
  return (" " .. (comment or "") .. " "):match("[%s,;]lucid:resized=?(%d*)[%s,;]")
end

local function with_resized(comment, tasks)
  local left = (" " .. comment .. " "):gsub("[%s,;]lucid:resized=?%d*([%s,;])", "%1")
  left = left:gsub("^%s+", ""):gsub("%s+$", "")
  return with_words(left, tasks == "" and "lucid:resized" or "lucid:resized=" .. tasks)
end

-- A comment without cli_filter.lua's word on a deadline.
local function without_deadline(comment)
  local left = (" " .. comment .. " "):gsub("[%s,;]lucid:deadline([%s,;])", "%1")
  return (left:gsub("^%s+", ""):gsub("%s+$", ""))
end

-- What nobody may write but Lucid and administrators, whether or not the daemon lives: pairs may be running still.
local function reserved(job, request, known, names, beat)
  if given(job.extra) and (";" .. job.extra):find("[%s,;]lucid%-") then
    return SAYS.extra
  elseif request.shard and (request.slot or not known.users_shards or (beat and packed(names, beat))) then
    return SAYS.shard
  elseif request.single then
    return SAYS.address
  end
  return nil
end

---- Submission

-- Where opt-outs are free: why Lucid has nothing to do with this job, or nil.
local function untouched(job, request)
  if not request.gpus then
    return "no GPUs"
  elseif not unset(job.het_job_offset) then
    return "heterogeneous"
  elseif not given(job.script) then
    return "interactive"
  elseif job.priority == 0 then
    return "held by its user"
  end
  return nil
end

-- Where opt-outs are free: why Slurm alone handles it though its partition is Lucid's; or nil.
local function skipped(job, request, now)
  if says(job.comment, "off") then
    return "asked"
  elseif given(job.dependency) then
    return "dependency"
  end
  return begins(job, now) and "begin" or nil
end

-- What to write into the job: a list of {field, value}, a word on why, and what its user is told if it is refused.
local function decide(job, part_list, uid, now)
  local known = settings()
  local request = read_request(job, known.types)
  local beat = heartbeat(known, now)
  local names = partitions_of(job.partition, part_list)
  local policed = uid ~= 0 and not known.exempt[uid]
  local edits = {}
  if says(job.comment, "deadline") then
    edits[1] = { "comment", without_deadline(job.comment) }
  end
  if request.feature and not request.mixed then
    -- Not a matter of the daemon: a GPU's type is its address here, so a model's name can only be a feature.
    edits[#edits + 1] = { "features", with_feature(job.features, request.feature) }
    for key, text in pairs(request.untyped) do
      if request.fields[key] then
        edits[#edits + 1] = { FIELDS[key], text }
      end
    end
  end
  local refusal = policed and reserved(job, request, known, names, beat)
  if refusal then
    return {}, "refused", refusal
  elseif not beat then
    return edits, "no fresh heartbeat"
  elseif policed and for_lucid(names, beat) then
    return {}, "refused", for_lucid(names, beat)
  end
  local name = packed(names, beat)
  local whole = job.shared == 0 -- Slurm gives it all GPUs of its nodes, whether or not it asks for any
  local free = beat.optout == "free"
  if not name or not (request.gpus or request.shard or whole) then
    return edits, name and "no GPUs" or "partition"
  elseif given(job.admin_comment) then
    return edits, "admin comment"
  elseif #names == 1 and beat.most[name] and most_on_one(request) > beat.most[name] then
    return edits, "no node is that large" -- Slurm refuses it now; once it is held it does not
  elseif #names == 1 and request.address and not request.single then
    return edits, "nobody has such a GPU" -- the same: the types of packed nodes are models, and addresses of single GPUs
  end
  local reason = free and (#names > 1 and "partition" or untouched(job, request))
  if reason then
    return edits, reason
  end
  local skip = free and skipped(job, request, now) or opaque(job, request, names)
  if given(job.reservation) then
    skip, free = skip == "asked" and skip or "reservation", true -- an administrator's grant
  end
  if skip and free then
    edits[#edits + 1] = { "admin_comment", "lucid:vc=" .. name .. ";skip=" .. skip }
    return edits, skip
  elseif skip == "tasks" and not policed then
    edits[#edits + 1] = { "admin_comment", "lucid:vc=" .. name .. ";skip=tasks" }
    return edits, skip
  end
  local tasks = 0
  if skip and not unset(job.ntasks_per_tres) then
    tasks = tasks_by_gpu(job, request)
  elseif skip and not unset(job.num_tasks) and not unset(job.ntasks_per_node) then
    tasks = job.num_tasks
  end
  if not tasks then
    return {}, "refused", REFUSES.tasks -- the release that must follow a hold would change its number of tasks
  elseif job.cron_job then
    return {}, "refused", SAYS.cron -- Slurm lets nobody update it, so that a hold would never end
  elseif not unset(job.immediate) and job.immediate == 1 then
    return {}, "refused", SAYS.immediate
  end
  local begin, waits, held = begins(job, now), given(job.dependency), job.priority == 0
  local routes = known.route and beat.profiling and not beat.unrouted[name] and job.requeue ~= 0
  routes = routes and gpus_of(job, request) <= beat.n_prof and not spans(job)
  local routed = routes and not (skip or begin or waits or held)
  local entry = (routed and "routed=1" or "held=1") .. (waits and ";wait=1" or "") .. (held and ";own=1" or "")
  local park = not (held or routed) and parked_until(job, begin, now)
  entry = entry .. (park and string.format(";park=%d", park) or "")
  local tag = not skip and tag_of(job, request, known, name, entry, begin)
  if not tag then
    skip = skip or "request"
    if policed and beat.optout == "refused" and REFUSES[skip] then
      return {}, "refused", REFUSES[skip]
    end
    tag = string.format("lucid:vc=%s;%s;skip=%s;", name, entry, skip) .. (tasks > 0 and "tasks=" .. tasks .. ";" or "")
    tag = tag .. (begin and string.format("begin=%d;", begin) or "") .. "v=2"
  end
  edits[#edits + 1] = { "admin_comment", tag }
  local per_task = not skip and request.untyped.task and request.untyped.task:match("gpu[:=]?(%d*)")
  if per_task then
    -- For the task prolog: 26.05 forgets GPUs a task once the request has become slots.
    edits[#edits + 1] = { "environment", { "LUCID_GPUS_PER_TASK", per_task == "" and "1" or per_task } }
  end
  local fine, notes = pcall(noted, job, request)
  for _, edit in ipairs(fine and notes or {}) do
    edits[#edits + 1] = edit
  end
  if opts_in(job.comment) then
    edits[#edits + 1] = { "environment", { "LUCID_ELASTIC", "1" } } -- for the task prolog: its size may change
  end
  if held then
    edits[#edits + 1] = { "comment", with_held(without_deadline(job.comment or "")) } -- its user's: it waits until they release it
  elseif routed then
    edits[#edits + 1] = { "partition", beat.profiling }
  elseif park then
    edits[#edits + 1] = { "begin_time", park }
  else
    edits[#edits + 1] = { "priority", 0 }
  end
  return edits, routed and "routed" or "held"
end

---- Changes of waiting jobs

local function has(tag, item)
  return (";" .. tag:sub(7) .. ";"):find(";" .. item .. ";", 1, true) ~= nil
end

local function tagged(record)
  local tag = record.admin_comment or ""
  return tag:sub(1, 6) == "lucid:" and tag or ""
end

local function changes_request(job)
  for _, key in ipairs(ORDER) do
    if type(job[FIELDS[key]]) == "string" then
      return true
    end
  end
  return false
end

-- May it wait with a begin time that Lucid set? Slurm does not show a waiting job's begin time here. `first_s`: only
-- within its first lease, the end of which is in the tag; later it may have left the queue.
local function is_parked(record, tag, first_s)
  local park = tonumber(tag:match(";park=(%d+)"))
  local waits = has(tag, "held=1") and record.priority ~= 0 and (record.job_state or 0) % 256 == 0
  return waits and park ~= nil and (first_s == nil or park > first_s)
end

-- A release by whoever may: what to change, and what its user is told if it is refused.
local function released(job, record, tag, beat, owner, now)
  local comment = job.comment or record.comment or ""
  local was_held = says(comment, "held") or says(comment, "admin")
  local ours = has(tag, "held=1") or has(tag, "routed=1")
  local name = beat and packed(queues_in(record, tag, beat), beat)
  local edits = {}
  if owner and says(record.comment, "admin") then
    return nil, SAYS.admin
  elseif was_held then
    local left = without_held(comment)
    edits[1] = { "comment", left == "" and " " or left } -- an empty string would leave it as it is
  end
  if is_parked(record, tag) then
    if not (name and owner and beat.optout ~= "free") then
      edits[#edits + 1] = { "begin_time", now } -- as a release of a held job: it starts
    end
    return edits
  elseif not name or record.priority ~= 0 then
    return edits
  elseif ours and was_held then
    edits[2] = { "priority", NO_VAL }
  elseif owner and beat.optout ~= "free" then
    if ours and (record.restart_cnt or 0) == 0 then
      return nil, SAYS.release
    elseif ours then
      -- It was requeued, and held by its user or by Lucid: which, only the daemon knows. It takes it over from there.
      edits[#edits + 1] = { "begin_time", now + LEASE_S }
    elseif tag ~= "" and not given(record.resv_name) then
      -- One without a tag came while no lucidd decided: it is Slurm's, like all that came then.
      local asks = read_request(record, {})
      return edits, (asks.gpus or asks.shard) and SAYS.late or nil
    end
  end
  return edits
end

-- Lucid's own hold and a user's look the same to Slurm, once a job is held. So a hold by anybody but the daemon is noted
-- in the job's comment (an administrator's as such), and a release takes the note away: the job is Lucid's again then, in
-- Lucid's order. The daemon sets a begin time in the same update in which it holds, which no `scontrol hold` does.
-- AdminComment cannot be changed here: Slurm asks whether its user may, and an operator may not.
local function hold_or_release(job, record, tag, beat, owner, now)
  if unset(job.priority) or (has(tag, "held=1") and not has(tag, "v=2")) then
    return nil
  elseif job.priority ~= 0 then
    return released(job, record, tag, beat, owner, now)
  end
  local begin = tonumber(job.begin_time)
  if not has(tag, "v=2") or (not owner and not unset(begin) and begin ~= 0) then
    return nil
  end
  local edits = { { "comment", with_held(job.comment or record.comment or "", not owner) } }
  if is_parked(record, tag) and (unset(begin) or begin == 0) then
    -- The lease is over: once it is released, with no lucidd about, it waits for its user's begin time alone.
    edits[2] = { "begin_time", math.max(tonumber(tag:match(";begin=(%d+)")) or 0, now) }
  end
  return edits
end

-- Why a user may not change a waiting job so, or nil: no change takes a job past the queue.
local function forbidden(job, record, tag, beat, now)
  local moves = given(job.partition) and job.partition ~= record.partition
  local names = moves and partitions_of(job.partition) or queues_in(record, tag, beat)
  local ours = has(tag, "held=1")
  local queues = ours and (record.priority == 0 or given(record.curr_dependency) or is_parked(record, tag, now))
  local asked = read_request(record, {})
  local orders = tag ~= "" or asked.gpus or asked.shard -- a job without GPUs goes where it likes
  if moves and for_lucid(names, beat) then
    return for_lucid(names, beat)
  elseif not packed(names, beat) then
    return nil
  elseif moves and orders and #names > 1 then
    return SAYS.moves
  elseif moves and orders and not queues then
    return SAYS.move
  elseif changes_request(job) then
    return SAYS.request
  elseif says(job.comment, "off") and beat.optout == "refused" then
    return REFUSES.asked
  elseif queues then
    return nil
  elseif job.reservation ~= nil and (has(tag, "skip=reservation") or (job.reservation == "" and tag ~= "")) then
    return SAYS.reservation
  elseif not (unset(job.min_nodes) and unset(job.num_tasks)) and asked.gpus then
    return SAYS.size
  elseif not unset(job.shared) and job.shared == 0 then
    return SAYS.size
  end
  return nil
end

local SIZES = { "num_tasks", "min_nodes", "min_cpus", "pn_min_cpus", "cpus_per_task", "ntasks_per_node" }

-- Does somebody else than the daemon change how large a job is? The daemon says when it starts in the same update, or
-- takes away what was asked by GPU.
local function changes_size(job)
  local starts = not unset(job.begin_time) and tonumber(job.begin_time) ~= 0
  local sized = changes_request(job) and not (job.cpus_per_tres or job.mem_per_tres)
  for _, key in ipairs(SIZES) do
    sized = sized or not unset(job[key])
  end
  return sized and not starts
end

-- Slurm shows a change of a heterogeneous job once for each part, with what was written into it for the part before:
-- the number of tasks that was said last.
local said = {}

local function change(job, record, uid, now)
  local known = settings()
  local beat, tag = heartbeat(known, now), tagged(record)
  local owner = uid ~= 0 and not known.exempt[uid] and (known.exempts or uid == record.user_id)
  if owner then
    local names = partitions_of(given(job.partition) and job.partition or record.partition)
    local binds = beat and beat.optout ~= "free" and (record.job_state or 0) % 256 == 0 -- it waits
    local refusal = reserved(job, read_request(job, known.types), known, names, beat)
      or (binds and forbidden(job, record, tag, beat, now))
    if refusal then
      return nil, refusal
    end
  end
  local edits, refusal = hold_or_release(job, record, tag, beat, owner, now)
  if refusal then
    return nil, refusal
  end
  edits = edits or {}
  if owner and job.comment and unset(job.priority) and says(record.comment, "admin") then
    edits[1] = { "comment", with_held(job.comment, true) }
  end
  local begin = tonumber(job.begin_time)
  if owner and not unset(begin) and begin ~= 0 and is_parked(record, tag) and unset(job.priority) then
    edits[#edits + 1] = { "priority", 0 } -- the begin time is its user's from here on; a hold keeps it in the queue
  end
  if owner and tag ~= "" then
    pcall(wake, known, now)
  end
  -- A user's change makes Slurm work the tasks out as on plain Slurm: what was said before that is no longer true.
  local size = has(tag, "held=1") and resized(record.comment)
  if has(tag, "held=1") and changes_size(job) then
    size = unset(job.num_tasks) and "" or string.format("%d", job.num_tasks)
  elseif size and owner then
    size = ""
  end
  local tasks, het = tonumber(size or tag:match(";tasks=(%d+)")), tonumber(record.het_job_id) or 0
  local left = het ~= 0 and said.het == het and said.at == now and said.tasks == job.num_tasks
  if (left or (tasks and unset(job.num_tasks))) and unset(job.min_nodes) and (record.job_state or 0) % 256 == 0 then
    edits[#edits + 1] = { "num_tasks", tasks or NO_VAL } -- else Slurm would work it out anew, and otherwise
    said = { het = het, at = now, tasks = tasks }
  end
  local comment = job.comment or record.comment or ""
  for _, edit in ipairs(edits) do
    comment = edit[1] == "comment" and edit[2] or comment -- a hold's words stay
  end
  if size and resized(comment) ~= size then
    edits[#edits + 1] = { "comment", with_resized(comment, size) } -- for lucidd and the task prolog
  end
  return edits
end

---- What slurmctld calls

local function write(job, edits)
  local wrote, problem = pcall(function()
    for _, edit in ipairs(edits) do
      if edit[1] == "environment" then
        job.environment[edit[2][1]] = edit[2][2]
      else
        job[edit[1]] = edit[2]
      end
    end
  end)
  if not wrote then
    slurm.log_error("lucid: a field could not be written: %s", tostring(problem))
  end
end

local function refuse(words)
  slurm.log_user("%s", words)
  return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
end

-- lucid-release asks, from any host, whether a lucidd lives: slurmctld is where that matters, and what it says here no
-- user can write. The answer is the heartbeat's time and this host's; nothing is submitted.
local function answer()
  local _, digits = beat_text(settings())
  slurm.log_user("lucid-alive heartbeat=%s now=%d", digits or "0", os.time())
end

function slurm_job_submit(job, part_list, submit_uid)
  if job.comment == "lucid:alive" then
    pcall(answer)
    return slurm.ERROR
  end
  local fine, edits, reason, refusal = pcall(decide, job, part_list, submit_uid, os.time())
  if not fine then
    slurm.log_error("lucid: job taken as it was written: %s", tostring(edits))
    return slurm.SUCCESS
  elseif refusal then
    slurm.log_info("lucid: uid %s: refused: %s", tostring(submit_uid), refusal)
    return refuse(refusal)
  end
  write(job, edits)
  if reason == "held" or reason == "routed" then
    pcall(wake, settings(), os.time())
  end
  slurm.log_debug("lucid: uid %s: %s", tostring(submit_uid), tostring(reason))
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, _, modify_uid)
  local fine, edits, refusal = pcall(change, job, record, modify_uid, os.time())
  if not fine then
    slurm.log_error("lucid: change taken as it was written: %s", tostring(edits))
    return slurm.SUCCESS
  elseif refusal then
    return refuse(refusal)
  end
  write(job, edits)
  return slurm.SUCCESS
end

return slurm.SUCCESS
