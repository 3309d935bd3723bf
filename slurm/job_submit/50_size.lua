---- How long and how wide a job is, and what it cannot share

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

-- The part of a script's line in which options of srun may stand: what stands before srun, and its own words, up to the
-- first that is neither an option nor may be the value of one. Of other lines those that make a list of words. No comment,
-- and nothing that is only printed.
local function options_in(line)
  line = line:gsub("^%s*#.*", ""):gsub("%s#.*", "") .. " "
  local first = line:match("^%s*(%S*)")
  if first == "echo" or first == "printf" then
    return ""
  end
  local before, typed = line:match("^(.*)%f[%w_-]srun%f[^%w_-](.*)$")
  if not typed then
    for _, pattern in ipairs({ "[%w_]+%+?=", "%l+%s+[%w_]+%+?=", "%l+%s+%-%a+%s+[%w_]+%+?=", "[\"']*%-" }) do
      if line:find("^%s*" .. pattern) then
        return line
      end
    end
    return ""
  end
  local words, value = { before }, false
  for word in typed:gmatch("%S+") do
    local option = word:find("^[\"']?[-$]")
    if not (option or value) then
      break
    end
    words[#words + 1] = word
    value = option and not word:find("[$=]")
  end
  return table.concat(words, " ") .. " "
end

local function has_any(text, patterns)
  for _, pattern in ipairs(patterns) do
    if text:find(pattern) then
      return true
    end
  end
  return false
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
  elseif features and features:find("[|()%[%]*!]") then
    return "constraint" -- more than a list of features; the daemon knows which features every node has
  elseif #job.script > SCRIPT_BYTES then
    return "long"
  elseif known.steps and request.fields.task and given(job.cpus_per_tres) then
    return "variables" -- beside GPUs by task, srun cannot be told CPUs in place of CPUs by GPU
  end
  local script = job.script:gsub("\\\n", " ")
  for line in script:gmatch("[^\n;&|]+") do
    local words = options_in(line)
    if has_any(words, known.steps and SRUN_KEEPS or SRUN_ASKS) then
      return "srun"
    elseif known.steps and has_any(words, SET_KEEPS) then
      return "variables"
    end
  end
  if not known.steps and has_any(script .. "\n", UNSET) then
    return "variables"
  end
  -- Said of the whole job, or where it was submitted: its steps inherit it.
  local fine, way = pcall(function()
    local inherited = job.environment
    return (job.tres_bind or "") .. (inherited["SLURM_GPU_BIND"] or "") .. (inherited["SLURM_TRES_BIND"] or "")
  end)
  return fine and (known.steps and way:find("closest") or not known.steps and way ~= "") and "variables" or nil
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

