---- What slurmctld calls

local function write(job, edits)
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
end

local function refuse(words)
  slurm.log_user("%s", words)
  return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
end

-- lucid-release asks, from any host, whether a lucidd lives: slurmctld is where that matters, and what it says here no
-- user can write. The answer is the heartbeat's time and this host's; nothing is submitted.
local function answer()
  local _, digits = beat_text(settings())
  slurm.log_user("lucid-alive heartbeat=%s now=%d", digits or "0", os.time())
end

function slurm_job_submit(job, part_list, submit_uid)
  if job.comment == "lucid:alive" then
    pcall(answer)
    return slurm.ERROR
  end
  local fine, edits, reason, refusal = pcall(decide, job, part_list, submit_uid, os.time())
  if not fine then
    slurm.log_error("lucid: job taken as it was written: %s", tostring(edits))
    return slurm.SUCCESS
  elseif refusal then
    slurm.log_info("lucid: uid %s: refused: %s", tostring(submit_uid), refusal)
    return refuse(refusal)
  end
  write(job, edits)
  if reason == "held" or reason == "routed" then
    pcall(wake, settings(), os.time())
  end
  slurm.log_debug("lucid: uid %s: %s", tostring(submit_uid), tostring(reason))
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, _, modify_uid)
  local fine, edits, refusal = pcall(change, job, record, modify_uid, os.time())
  if not fine then
    slurm.log_error("lucid: change taken as it was written: %s", tostring(edits))
    return slurm.SUCCESS
  elseif refusal then
    return refuse(refusal)
  end
  write(job, edits)
  return slurm.SUCCESS
end

return slurm.SUCCESS
