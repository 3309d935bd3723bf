-- Lucid's cli_filter plugin, on hosts where people type sbatch, salloc and srun.
--
-- Each GPU's type is its address (g0, g1, ...), so a model that people ask for (gpu:a100:1) is a node feature. The
-- plugin job_submit.lua turns one into the other for every job; but the commands also leave what was typed in the
-- job's environment (SLURM_GPUS=a100:1), where an inner srun reads it again. So it is best turned before it is sent.
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

local function decide(options)
  local types = known_types()
  local edits = {}
  local feature
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

function slurm_cli_setup_defaults()
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options)
  local fine, edits = pcall(decide, options)
  if fine then
    pcall(function()
      for _, edit in ipairs(edits) do
        options[edit[1]] = edit[2]
      end
    end)
  end
  return slurm.SUCCESS
end

function slurm_cli_post_submit()
  return slurm.SUCCESS
end
