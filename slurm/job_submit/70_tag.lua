---- The tag and the comment

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

-- A comment with our words. Programs of others may read JSON there: it stays JSON, with a member for each word, which
-- all that look for the word find as in a text.
local function with_words(comment, words)
  local head, tail = comment:match('^(%s*{.*".*)(}%s*)$')
  if head then
    return head .. words:gsub("%S+", '," %0 ":1'):gsub(" ,", ",") .. tail
  end
  return comment:find("%S") and comment .. " " .. words or words
end

-- A comment without one of our words, of which this is the pattern.
local function without(comment, word)
  local left = comment:gsub('," lucid:' .. word .. ' ":1', "")
  left = (" " .. left .. " "):gsub("[%s,;]lucid:" .. word .. "([%s,;])", "%1")
  return (left:gsub("^%s+", ""):gsub("%s+$", ""))
end

-- A comment without the words by which a hold is known, and with them.
local function without_held(comment)
  return without(without(comment, "held"), "admin")
end

local function with_held(comment, by_admin)
  return with_words(without_held(comment), by_admin and "lucid:held lucid:admin" or "lucid:held")
end

-- A comment's word on a change of size: nil where there is none, else the number of tasks that its user said, or "".
local function resized(comment)
  return (" " .. (comment or "") .. " "):match("[%s,;]lucid:resized=?(%d*)[%s,;]")
end

local function with_resized(comment, tasks)
  return with_words(without(comment, "resized=?%d*"), tasks == "" and "lucid:resized" or "lucid:resized=" .. tasks)
end

-- A comment without a release's word on its begin time, and with it.
local function without_lease(comment)
  return without(comment, "lease=%d*")
end

local function with_lease(comment, until_s)
  return with_words(without_lease(comment), string.format("lucid:lease=%d", until_s))
end

-- A comment without cli_filter.lua's word on a deadline.
local function without_deadline(comment)
  return without(comment, "deadline")
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

