---- Where a job queues

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

