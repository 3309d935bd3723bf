-- Lucid's job_submit plugin. Rules and tag: docs/slurm-install.md.
--
-- It runs under slurmctld's locks: so one small file is read, nothing is started, nobody is asked, and the work does
-- not grow with the number of jobs. Whatever goes wrong in here, the job is taken as its user wrote it: all is decided
-- first, inside pcall, and written to the job last. Lua 5.1 to 5.4.

local SETTINGS = "/etc/slurm/lucid.plugin.conf"
local HEARTBEAT_BYTES = 8192
local SCRIPT_BYTES = 65536
local ARRAY_TASKS = 1000
local AHEAD_S = 60 -- a heartbeat from further in the future than this was written by a wrong clock

local NO_VAL = 4294967294
local FIELDS = { node = "tres_per_node", job = "tres_per_job", socket = "tres_per_socket", task = "tres_per_task" }
local ORDER = { "node", "job", "socket", "task" }
-- CPUs and memory by GPU, which slots cannot have: Lucid says them otherwise, and gives them back from the tag.
local PER_GPU = { { "cpg", "cpus_per_tres" }, { "mpg", "mem_per_tres" } }

-- `srun` options that ask a shared job's allocation for GPUs which it holds as slots, and so fail.
local SRUN_ASKS = { "%-%-gres", "%-%-gpus", "%-%-gpu%-bind", "%-%-tres", "%s%-G", "%-%-%w+%-per%-gpu" }
-- Variables that the task prolog has to unset in a shared job: a script that reads them keeps its GPUs to itself.
local UNSET = { "SLURM_GPUS[^_%w]", "SLURM_GPUS_PER_", "SLURM_TRES_", "SLURM_GRES", "SLURM_%w+_PER_GPU" }

local function settings()
  local found = { heartbeat = "/run/lucid/heartbeat", stale = 60, route = false, types = {} }
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

-- What the daemon last wrote, or nil if it has not written lately. It replaces the file as a whole.
local function heartbeat(known, now)
  local file = io.open(known.heartbeat, "r")
  if not file then
    return nil
  end
  local text = file:read(HEARTBEAT_BYTES) or ""
  file:close()
  local written = tonumber(text:match("^time (%d+)\n"))
  if not written or #text == HEARTBEAT_BYTES or now - written > known.stale or written - now > AHEAD_S then
    return nil
  end
  local beat = { modes = {}, most = {}, profiling = text:match("\nprofiling ([%w_.-]+)\n") }
  beat.n_prof = tonumber(text:match("\nn_prof (%d+)\n")) or 0
  for name, gpus in text:gmatch("most ([%w_.-]+) (%d+)\n") do
    beat.most[name] = tonumber(gpus)
  end
  for name, mode in text:gmatch("mode ([%w_.-]+) (%l+)\n") do
    beat.modes[name] = mode
  end
  return beat
end

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

-- Why Lucid has nothing to do with this job, or nil. The order is that of the table in docs/slurm-install.md.
local function untouched(job, request)
  if not request.gpus then
    return "no GPUs"
  elseif not unset(job.het_job_offset) then
    return "heterogeneous"
  elseif job.script == nil or job.script == "" then
    return "interactive"
  elseif job.priority == 0 then
    return "held by its user"
  elseif job.admin_comment and job.admin_comment ~= "" then
    return "admin comment"
  end
  return nil
end

-- Why Slurm alone handles it though its partition is Lucid's: one word, for the tag; or nil.
local function skipped(job, request, now)
  local begin = tonumber(job.begin_time)
  if (" " .. (job.comment or "") .. " "):find("[%s,;]lucid:off[%s,;]") then
    return "asked"
  elseif job.dependency and job.dependency ~= "" then
    return "dependency"
  elseif job.reservation and job.reservation ~= "" then
    return "reservation"
  elseif not unset(begin) and begin > now + AHEAD_S then
    return "begin"
  elseif request.address or request.shard or request.mixed then
    return "address"
  elseif request.fields.socket then
    return "socket" -- what it gets follows from the cores that it is given: nobody can plan that
  elseif not unset(job.ntasks_per_tres) then
    return "tasks" -- any update, a release too, would change its number of tasks (seen on 24.11)
  elseif job.array_inx and tasks_in(job.array_inx) > ARRAY_TASKS then
    return "array"
  end
  return nil
end

-- Why the job must keep its GPUs to itself, in one word, or nil.
local function keeps_its_gpus(job, request, types)
  local features = job.features
  local comment = " " .. (job.comment or "") .. " "
  if comment:find("[%s,;]lucid:exclusive[%s,;]") then
    return "asked"
  elseif request.other then
    return "gres"
  elseif job.requeue == 0 then
    return "requeue"
  elseif job.shared == 0 then
    return "exclusive"
  elseif (job.req_nodes and job.req_nodes ~= "") or (job.exc_nodes and job.exc_nodes ~= "") then
    return "nodes"
  elseif features and features ~= "" and features ~= request.feature and not types[features] then
    return "constraint"
  elseif #job.script > SCRIPT_BYTES then
    return "long"
  end
  local script = job.script:gsub("\\\n", " ")
  for line in script:gmatch("[^\n;&|]+") do
    if line:find("srun", 1, true) then
      for _, pattern in ipairs(SRUN_ASKS) do
        if line:find(pattern) then
          return "srun"
        end
      end
    end
  end
  for _, pattern in ipairs(UNSET) do
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

local function partition_of(job, part_list)
  if job.partition and job.partition ~= "" then
    return job.partition
  end
  for name, partition in pairs(part_list) do
    if partition.flag_default == 1 then
      return name
    end
  end
  return nil
end

-- The tag: what the daemon, the release script and an administrator need to know. Its values are names and numbers
-- that were checked: no user can put a separator or a quote into it.
local function tag_of(job, request, types, name, entry)
  local tag = { "vc=" .. name, entry }
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
  local alone = keeps_its_gpus(job, request, types)
  if alone then
    tag[#tag + 1] = "share=0;why=" .. alone
  end
  if job.requeue == 0 then
    tag[#tag + 1] = "requeue=0"
  elseif job.requeue == 1 or (" " .. (job.comment or "") .. " "):find("[%s,;]lucid:restart[%s,;]") then
    tag[#tag + 1] = "restart=1" -- its user said so: JobRequeue of slurm.conf alone leaves requeue unset here
  end
  if (" " .. (job.comment or "") .. " "):find("[%s,;]lucid:cold[%s,;]") then
    tag[#tag + 1] = "cold=1"
  end
  if (" " .. (job.comment or "") .. " "):find("[%s,;]lucid:amp[%s,;]") then
    tag[#tag + 1] = "amp=1"
  end
  tag[#tag + 1] = "v=2" -- holds of users and administrators show in the comment: slurm_job_modify
  return "lucid:" .. table.concat(tag, ";")
end

-- What to write into the job: a list of {field, value}, and a word on why.
local function decide(job, part_list, now)
  local known = settings()
  local request = read_request(job, known.types)
  local edits = {}
  if request.feature and not request.mixed then
    -- Not a matter of the daemon: a GPU's type is its address here, so a model's name can only be a feature.
    edits[#edits + 1] = { "features", with_feature(job.features, request.feature) }
    for key, text in pairs(request.untyped) do
      if request.fields[key] then
        edits[#edits + 1] = { FIELDS[key], text }
      end
    end
  end
  local reason = untouched(job, request)
  if reason then
    return edits, reason
  end
  local beat = heartbeat(known, now)
  if not beat then
    return edits, "no fresh heartbeat"
  end
  local name = partition_of(job, part_list)
  if not name or beat.modes[name] ~= "pack" then
    return edits, "partition"
  end
  if beat.most[name] and most_on_one(request) > beat.most[name] then
    return edits, "no node is that large" -- Slurm refuses it now; once it is held it does not
  end
  local skip = skipped(job, request, now)
  if skip then
    edits[#edits + 1] = { "admin_comment", "lucid:vc=" .. name .. ";skip=" .. skip }
    return edits, skip
  end
  local routed = known.route and beat.profiling and job.requeue ~= 0 and gpus_of(job, request) <= beat.n_prof
  local tag = tag_of(job, request, known.types, name, routed and "routed=1" or "held=1")
  if not tag then
    return edits, "request"
  end
  edits[#edits + 1] = { "admin_comment", tag }
  local per_task = request.untyped.task and request.untyped.task:match("gpu[:=]?(%d*)")
  if per_task then
    -- For the task prolog: 26.05 forgets GPUs a task once the request has become slots.
    edits[#edits + 1] = { "environment", { "LUCID_GPUS_PER_TASK", per_task == "" and "1" or per_task } }
  end
  edits[#edits + 1] = routed and { "partition", beat.profiling } or { "priority", 0 }
  return edits, routed and "routed" or "held"
end

-- lucid-release asks, from any host, whether a lucidd lives: slurmctld is where that matters, and what it says here no
-- user can write. The answer is the heartbeat's time and this host's; nothing is submitted.
local function answer()
  local file = io.open(settings().heartbeat, "r")
  local text = file and file:read(HEARTBEAT_BYTES) or ""
  if file then
    file:close()
  end
  slurm.log_user("lucid-alive heartbeat=%s now=%d", text:match("^time (%d+)\n") or "0", os.time())
end

function slurm_job_submit(job, part_list, submit_uid)
  if job.comment == "lucid:alive" then
    pcall(answer)
    return slurm.ERROR
  end
  local fine, edits, reason = pcall(decide, job, part_list, os.time())
  if not fine then
    slurm.log_error("lucid: job taken as it was written: %s", tostring(edits))
    return slurm.SUCCESS
  end
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
  if reason == "held" or reason == "routed" then
    pcall(wake, settings(), os.time())
  end
  slurm.log_debug("lucid: uid %s: %s", tostring(submit_uid), tostring(reason))
  return slurm.SUCCESS
end

local HELD = "lucid:held"

-- The comment without the word, and with it.
local function without_held(comment)
  local left = (" " .. comment .. " "):gsub("([%s,;])lucid:held([%s,;])", "%2")
  return (left:gsub("^%s+", ""):gsub("%s+$", ""))
end

local function with_held(comment)
  local rest = without_held(comment)
  return rest == "" and HELD or rest .. " " .. HELD
end

-- Lucid's own hold and a user's look the same to Slurm, once a job is held. So a hold by anybody but the daemon is noted
-- in the job's comment, and a release takes the note away: the job is Lucid's again then, in Lucid's order. The daemon
-- sets a begin time in the same update in which it holds, which no `scontrol hold` does.
local function hold_or_release(job, record, now)
  local tag, comment = record.admin_comment or "", job.comment or record.comment or ""
  if tag:sub(1, 6) ~= "lucid:" or not tag:find(";v=2", 1, true) or unset(job.priority) then
    return nil
  end
  if job.priority == 0 then
    local begin = tonumber(job.begin_time)
    return (unset(begin) or begin == 0) and { { "comment", with_held(comment) } } or nil
  end
  if not (" " .. comment .. " "):find("[%s,;]lucid:held[%s,;]") then
    return nil
  end
  local left = without_held(comment)
  local edits = { { "comment", left == "" and " " or left } } -- an empty string would leave it as it is
  local beat, name = heartbeat(settings(), now), tag:match("^lucid:vc=([^;]+)")
  if beat and beat.modes[name] == "pack" and record.priority == 0 then
    edits[2] = { "priority", NO_VAL }
    wake(settings(), now)
  end
  return edits
end

function slurm_job_modify(job, record)
  local fine, edits = pcall(hold_or_release, job, record, os.time())
  if not fine then
    slurm.log_error("lucid: change taken as it was written: %s", tostring(edits))
    return slurm.SUCCESS
  end
  for _, edit in ipairs(edits or {}) do
    local wrote, problem = pcall(function()
      job[edit[1]] = edit[2]
    end)
    if not wrote then
      slurm.log_error("lucid: a field could not be written: %s", tostring(problem))
    end
  end
  return slurm.SUCCESS
end

return slurm.SUCCESS
