---- Changes of waiting jobs

local function has(tag, item)
  return (";" .. tag:sub(7) .. ";"):find(";" .. item .. ";", 1, true) ~= nil
end

local function tagged(record)
  return (record.admin_comment or ""):match("^lucid:%S*") or "" -- what is behind it is others'
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
    -- Its administrator may have meant it for its user to release (scontrol uhold): Slurm knows, and judges. The words
    -- go when lucidd takes it over.
    return name and { { "begin_time", now + LEASE_S }, { "comment", with_lease(comment, now + LEASE_S) } } or {}
  elseif was_held then
    local left = without_held(comment)
    edits[1] = { "comment", left == "" and " " or left } -- an empty string would leave it as it is
  end
  if is_parked(record, tag) then
    if not (name and owner) then
      edits[#edits + 1] = { "begin_time", now } -- as a release of a held job: it starts
    end
    return edits
  elseif not name or record.priority ~= 0 then
    return edits
  elseif ours and was_held then
    edits[2] = { "priority", NO_VAL }
  elseif owner then
    if ours and (record.restart_cnt or 0) == 0 then
      return nil, SAYS.release
    elseif ours then
      -- It was requeued, and held by its user or by Lucid: which, only the daemon knows. It takes it over from there.
      edits = { { "begin_time", now + LEASE_S }, { "comment", with_lease(comment, now + LEASE_S) } }
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
  local begin = tonumber(job.begin_time)
  if not owner and not unset(begin) and begin ~= 0 then
    -- The daemon, which says when it begins. Nobody holds a job that Slurm does not hold.
    local said = record.comment or ""
    local left = without_lease(said)
    left = record.priority ~= 0 and without_held(left) or left
    return #left < #said and { { "comment", left == "" and " " or left } } or nil
  elseif unset(job.priority) or (has(tag, "held=1") and not has(tag, "v=2")) then
    return nil
  elseif job.priority ~= 0 then
    return released(job, record, tag, beat, owner, now)
  elseif not has(tag, "v=2") then
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
  -- The daemon's own jobs hold single GPUs that are not well.
  local daemon = beat and beat.uid == uid
  local owner = uid ~= 0 and not known.exempt[uid] and not daemon and (known.exempts or uid == record.user_id)
  if owner then
    local names = partitions_of(given(job.partition) and job.partition or record.partition)
    local binds = beat and (record.job_state or 0) % 256 == 0 -- it waits
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

