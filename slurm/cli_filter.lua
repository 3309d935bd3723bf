-- Lucid's cli_filter plugin, on hosts where people type sbatch, salloc and srun.
--
-- Each GPU's type is its address (g0, g1, ...), so a model that people ask for (gpu:a100:1) is a node feature. The
-- plugin job_submit.lua turns one into the other for every job; but the commands also leave what was typed in the
-- job's environment (SLURM_GPUS=a100:1), where an inner srun reads it again. So it is best turned before it is sent.
--
-- lucid: maps steps. In a job that holds slots in place of whole GPUs, an srun that asks for GPUs, on its line or by the
-- variables that sbatch left, asks for as many of the job's slots. task_prolog looks for the words before this sentence:
-- where it finds them, it leaves the variables as plain Slurm has them. A step that slots cannot serve is refused.
-- Whatever goes wrong in here, the command goes on as it was typed. Lua 5.1 to 5.4.

local SETTINGS = "/etc/slurm/lucid.plugin.conf"
local OPTIONS = { "gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "tres-per-task" }

local function known_types()
  local types = {}
  local file = io.open(SETTINGS, "r")
  if file then
    for line in file:lines() do
      local name = line:match("^type%s+(%S+)%s*$")
      if name then
        types[name] = true
      end
    end
    file:close()
  end
  return types
end

-- One item without its type, and the type: "gpu:a100:2" is "gpu:2", "a100:2" is "2", "a100" is "1".
local function split_type(option, item, types)
  local head, rest = item:match("^(gres[/:]gpu:)(.+)$")
  if not head then
    head, rest = item:match("^(gpu:)(.+)$")
  end
  if not head then
    if option == "gres" or option == "tres-per-task" then
      return item, nil
    end
    head, rest = "", item
  end
  local name, count = rest:match("^([^:=]+)[:=](%d+)$")
  name = name or rest
  if not types[name] then
    return item, nil
  end
  return head .. (count or "1"), name
end

-- Is an item a number of GPUs without a type: "gpu:2", or "2" in an option for GPUs alone?
local function is_count(option, item)
  local rest = item:match("^gres[/:]gpu(.*)$") or item:match("^gpu(.*)$")
  if not rest then
    return option:find("^gpus") and item:find("^0*[1-9]%d*$")
  end
  return rest == "" or rest:find("^[:=]0*[1-9]%d*$")
end

local function decide(options)
  local types = known_types()
  local edits = {}
  local step = options["type"] == "srun" and os.getenv("SLURM_JOB_ID") -- asks by its job's variables, too
  local feature, counted
  for _, option in ipairs(OPTIONS) do
    local text = options[option]
    if type(text) == "string" and text ~= "" then
      local items = {}
      for item in text:gmatch("[^,]+") do
        local plain, name = split_type(option, item, types)
        if name and feature and feature ~= name then
          return {} -- two models in one job: left to Slurm, which says so
        end
        feature = name or feature
        counted = counted or not step and is_count(option, item)
        if feature and counted then
          return {} -- the same: a model in one place, and a number without one in another
        end
        items[#items + 1] = plain
      end
      local made = table.concat(items, ",")
      if made ~= text then
        edits[#edits + 1] = { option, made }
      end
    end
  end
  if feature then
    local before = options["constraint"]
    if before == nil or before == "" then
      edits[#edits + 1] = { "constraint", feature }
    elseif before ~= feature then
      if before:find("|", 1, true) and not before:find("[%[(]") then
        before = "(" .. before .. ")"
      end
      edits[#edits + 1] = { "constraint", before .. "&" .. feature }
    end
  end
  return edits
end

-- Steps in slots. A slot of a job is one GPU of its one node, so each number stays what it was.

local function given(text)
  return type(text) == "string" and text ~= ""
end

-- What stands for a number of GPUs that srun is not to ask for: Slurm finds no item between commas, and writes them
-- into the step's environment, where task_prolog counts them. An empty text would lose the number.
local function unasked(count)
  return string.rep(",", count)
end

-- GPUs in a list such as "gpu:2,tmp:1", the list with slots in their place, and whether it says "none".
local function in_shards(text)
  local count, items = nil, {}
  for item in (text or ""):gmatch("[^,]+") do
    local head, rest = item:match("^(gres[/:])gpu(.*)$")
    if not head then
      head, rest = "", item:match("^gpu(.*)$")
    end
    if rest and (rest == "" or rest:find("^[:=]")) then
      count = (count or 0) + (tonumber(rest:match("[:=](%d+)$")) or (rest:find("%d$") and 0) or 1)
      item = head .. "shard" .. (rest:find("%d$") and rest or rest .. ":1")
    end
    items[#items + 1] = item
  end
  return count, table.concat(items, ",")
end

-- Was an option given at all, typed or by a variable? Its value does not say so where it is a number.
local function is_set(options, name)
  return slurm.json_cli_options(options):find('"' .. name .. '":', 1, true) ~= nil
end

local function variable(name)
  return tonumber(os.getenv(name) or "")
end

-- GPUs of the whole step, by node and by job. Slurm reads both from its variables as well; what is typed goes first.
local function gpus_asked(options)
  local gpus, by_node = tonumber(options["gpus"] or ""), tonumber(options["gpus-per-node"] or "")
  local edits = {}
  for _, pair in ipairs({ { "gpus", gpus }, { "gpus-per-node", by_node } }) do
    if pair[2] then
      edits[#edits + 1] = { pair[1], unasked(pair[2]) }
    end
  end
  if gpus and gpus ~= variable("SLURM_GPUS") and by_node == variable("SLURM_GPUS_PER_NODE") then
    by_node = nil
  end
  return edits, gpus, by_node
end

-- GPUs of each task, and --tres-per-task with slots in their place. Slurm then binds each task to its own.
local function by_task(options)
  local count, text = in_shards(options["tres-per-task"])
  local typed = tonumber(options["gpus-per-task"] or "")
  if typed and typed ~= count then
    local items = { "gres/shard=" .. typed }
    for item in text:gmatch("[^,]+") do
      items[#items + 1] = not item:find("^gres[/:]shard") and item or nil
    end
    count, text = typed, table.concat(items, ",")
  end
  return count, text, typed
end

-- Slots of the job in which the step is to run; nil where it holds none. Within the job its environment tells, unless a
-- program (Snakemake) took Slurm's variables out. There, and from elsewhere (srun --jobid), Slurm is asked, and only about
-- a step that says something of GPUs.
local function slots_of(options)
  local job, ours = options["jobid"] or "", os.getenv("SLURM_JOB_ID") or ""
  local here = not job:find("^%d+$") or job == "0" or job == ours
  if options["type"] ~= "srun" or (here and ours == "") then
    return nil
  elseif here and (os.getenv("SLURM_SHARDS_ON_NODE") or os.getenv("SLURM_GPUS_ON_NODE")) then
    return variable("SLURM_SHARDS_ON_NODE")
  end
  job = here and (ours:match("^%d+$") or "0") or job
  local told = slurm.json_cli_options(options)
  for _, word in ipairs({ "gres", "gpu", "tres" }) do
    if told:find('"[%w-]*' .. word .. '[%w-]*":') then
      local pipe = io.popen("LC_ALL=C timeout 10 squeue -h -t R -j " .. job .. " -O tres-alloc:512 2>/dev/null")
      local held = pipe and pipe:read("*a") or ""
      return tonumber(held:match("gres/shard=(%d+)")), pipe and pipe:close()
    end
  end
  return nil
end

-- How the tasks are bound, said for slots; nil where that cannot be. Of slots Slurm binds but per_task and none, and
-- reads no further than these words: what it cannot do stands behind "none=", for task_prolog. `one`: of a single GPU.
local function bound(bind, one)
  local items = {}
  for item in bind:gmatch("[^+]+") do
    local way = item:lower():match("^gres/gpu:(.+)$") or ""
    local loud = way:match("^verbose,") or ""
    way = way:sub(#loud + 1)
    if way:find("^closest") and not one then
      return nil
    elseif way:find("^single:%d+$") or way:find("^mas?[pk][_gpu]*:") or way:find("^closest") then
      way = "none=" .. way
    end
    items[#items + 1] = way ~= "" and "gres/shard:" .. loud .. way or item
  end
  return table.concat(items, "+")
end

-- What no slot can be asked for: once it was typed, nothing takes it out of the step again.
local function unmapped(options)
  for _, name in ipairs({ "cpus-per-gpu", "mem-per-gpu", "gpus-per-socket" }) do
    local inherited = os.getenv("SLURM_" .. name:upper():gsub("-", "_"))
    if is_set(options, name) and (not inherited or (name == "cpus-per-gpu" and options[name] ~= inherited)) then
      return "--" .. name
    end
  end
  return nil
end

local REFUSAL = "Lucid: this job shares its GPUs, and no step of it can have %s. Leave it out, or submit the job with "
  .. "--comment=lucid:exclusive."

local function map_step(options)
  local slots = slots_of(options)
  if not slots or slots < 1 then
    return {}
  elseif unmapped(options) then
    return {}, REFUSAL:format(unmapped(options))
  end
  local edits, gpus, by_node = gpus_asked(options)
  local asked, gres = in_shards(options["gres"])
  local per_task, tres, typed = by_task(options)
  local tasks = tonumber(options["ntasks"] or "") or 1
  local cpus, memory = variable("SLURM_CPUS_PER_GPU"), os.getenv("SLURM_MEM_PER_GPU")
  local nothing = gres:lower() == "none" or gres:lower() == "gres/none"
  if nothing and cpus and (gpus or by_node or per_task) then
    return {} -- Slurm refuses it: CPUs by GPU, and no GPU
  elseif nothing and (memory or cpus) then
    asked, gres = gpus or slots, "shard:" .. (gpus or slots) -- Slurm gives it GPUs all the same
  end
  by_node = not (typed and cpus) and by_node or nil
  local count = asked or by_node or (not per_task and gpus or nil)
  if asked then
    edits[#edits + 1] = { "gres", gres }
  elseif count and not nothing then
    edits[#edits + 1] = { "gres", (gres == "" and "" or gres .. ",") .. "shard:" .. count }
  end
  local bind = options["tres-bind"]
  for _, name in ipairs({ "ntasks-per-gpu", "ntasks-per-tres" }) do
    local each = is_set(options, name) and tonumber(options[name])
    if each then
      if cpus then
        return {}, REFUSAL:format("--" .. name .. " beside SLURM_CPUS_PER_GPU") -- Slurm takes no CPUs by task there
      end
      bind = given(bind) and bind or "gres/gpu:single:" .. each
      tasks = math.max(tasks, each * (count or slots))
      edits[#edits + 1] = { "ntasks", string.format("%d", tasks) }
      -- Of this number Slurm sends 16 bits: those that stand for "not said". task_prolog finds what was said above them.
      edits[#edits + 1] = { name, string.format("%d", 65536 * each + 65534) }
    end
  end
  if given(bind) then
    local made = bound(bind, (count or slots) == 1)
    if not made then
      return {}, REFUSAL:format("--gpu-bind=closest")
    end
    edits[#edits + 1] = { "tres-bind", made }
  end
  if typed then
    edits[#edits + 1] = { "gpus-per-task", "" }
  end
  -- CPUs and memory by GPU can be emptied only by others that are said. Memory 0 is that of the job, which its slots
  -- share out: Slurm refuses a step of a certain memory where another has it still, in place of letting it wait.
  if memory and not is_set(options, "mem") and not is_set(options, "mem-per-cpu") then
    edits[#edits + 1] = { "mem", "0" }
  end
  if cpus and not is_set(options, "cpus-per-task") and not tres:find("cpu", 1, true) then
    local all = cpus * (gpus or by_node or (per_task and per_task * tasks) or asked or slots)
    -- With a colon, so that task_prolog knows it from what a user typed, which Slurm writes with an equals sign.
    local each = string.format("cpu:%d", math.max(1, math.floor(all / math.max(1, tasks))))
    tres = tres == "" and each or tres .. "," .. each
    per_task = per_task or 0
    if not is_set(options, "ntasks") and not is_set(options, "ntasks-per-node") then
      edits[#edits + 1] = { "ntasks", string.format("%d", tasks) } -- else as many as the CPUs are good for
    end
  end
  if per_task then
    edits[#edits + 1] = { "tres-per-task", tres }
  end
  return edits
end

-- job_submit.lua parks a job with a begin time, and Slurm refuses one after its deadline, which it does not show there.
-- So the comment tells of the deadline; job_submit.lua takes the word out again.
local function tell_deadline(options)
  local deadline, comment = options["deadline"], options["comment"]
  if options["type"] == "srun" and os.getenv("SLURM_JOB_ID") then
    return {} -- a step
  elseif not given(deadline) or not deadline:find("^%d") then
    return {}
  end
  return { { "comment", given(comment) and comment .. " lucid:deadline" or "lucid:deadline" } }
end

function slurm_cli_setup_defaults()
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options)
  for _, step in ipairs({ decide, map_step, tell_deadline }) do
    local fine, edits, refusal = pcall(step, options)
    if fine and refusal then
      slurm.log_error("%s", refusal)
      return slurm.ERROR
    elseif fine then
      pcall(function()
        for _, edit in ipairs(edits) do
          options[edit[1]] = edit[2]
        end
      end)
    end
  end
  return slurm.SUCCESS
end

function slurm_cli_post_submit()
  return slurm.SUCCESS
end
