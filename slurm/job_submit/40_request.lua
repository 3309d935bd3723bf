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
        elseif asked == "" then
          found.counted = true
        elseif asked then
          found.address = true -- a type that is no feature: `gpu:g2:1`, which names one GPU, or a misspelling
          found.single = found.single or asked:match("^g%d+$") ~= nil
        end
        items[#items + 1] = item
      end
      found.untyped[key] = table.concat(items, ",")
    end
  end
  found.mixed = found.mixed or (found.feature and found.counted) -- Slurm refuses a job with and without a type
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

