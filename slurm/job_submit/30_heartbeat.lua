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
  beat.uid = tonumber(text:match("\nuid (%d+)\n"))
  beat.pool = text:match("\npool ([%w_.-]+)\n")
  beat.n_prof = tonumber(text:match("\nn_prof (%d+)\n")) or 0
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

