---- Submission

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
  if not name or not (request.gpus or request.shard or whole) then
    return edits, name and "no GPUs" or "partition"
  elseif given(job.admin_comment) and job.admin_comment:sub(1, 6) == "lucid:" then
    return edits, "admin comment" -- an operator's word on this job
  elseif #names == 1 and beat.most[name] and most_on_one(request) > beat.most[name] then
    return edits, "no node is that large" -- Slurm refuses it now; once it is held it does not
  elseif #names == 1 and request.address and not request.single then
    return edits, "nobody has such a GPU" -- the same: the types of packed nodes are models, and addresses of single GPUs
  end
  local theirs = given(job.admin_comment) and " " .. job.admin_comment or "" -- another plugin's: it stays, behind the tag
  local skip = opaque(job, request, names)
  if given(job.reservation) then -- an administrator's grant
    skip = skip == "asked" and skip or "reservation"
    edits[#edits + 1] = { "admin_comment", "lucid:vc=" .. name .. ";skip=" .. skip .. theirs }
    return edits, skip
  elseif skip == "tasks" and not policed then
    edits[#edits + 1] = { "admin_comment", "lucid:vc=" .. name .. ";skip=tasks" .. theirs }
    return edits, skip
  end
  local tasks = 0
  if skip and not unset(job.ntasks_per_tres) then
    tasks = tasks_by_gpu(job, request)
  elseif skip and not unset(job.num_tasks) and not unset(job.ntasks_per_node) then
    tasks = job.num_tasks
  end
  if not tasks then
    return {}, "refused", SAYS.tasks -- the release that must follow a hold would change its number of tasks
  elseif job.cron_job then
    return {}, "refused", SAYS.cron -- Slurm lets nobody update it, so that a hold would never end
  elseif not unset(job.immediate) and job.immediate == 1 then
    return {}, "refused", SAYS.immediate
  end
  local begin, waits, held = begins(job, now), given(job.dependency), job.priority == 0
  local routes = known.route and beat.profiling and not beat.unrouted[name] and job.requeue ~= 0
  routes = routes and gpus_of(job, request) <= beat.n_prof and not (spans(job) or says(job.comment, "stay"))
  local routed = routes and not (skip or begin or waits or held)
  local entry = (routed and "routed=1" or "held=1") .. (waits and ";wait=1" or "") .. (held and ";own=1" or "")
  local park = not (held or routed) and parked_until(job, begin, now)
  entry = entry .. (park and string.format(";park=%d", park) or "")
  local tag = not skip and tag_of(job, request, known, name, entry, begin)
  if not tag then
    skip = skip or "request"
    tag = string.format("lucid:vc=%s;%s;skip=%s;", name, entry, skip) .. (tasks > 0 and "tasks=" .. tasks .. ";" or "")
    tag = tag .. (begin and string.format("begin=%d;", begin) or "") .. "v=2"
  end
  edits[#edits + 1] = { "admin_comment", tag .. theirs }
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

