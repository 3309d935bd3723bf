---- What users are told

-- What a job's user reads where it is refused. Each says what to do instead.
local SAYS = {
  shard = "Lucid: only Lucid gives out shards of GPUs. Ask for GPUs (--gres=gpu:1); Lucid shares them where "
    .. "that costs little.",
  address = "Lucid: gpu:g0, gpu:g1, ... name single GPUs, which Lucid chooses. Ask for a number of GPUs (--gres=gpu:1).",
  extra = "Lucid: items in --extra that begin with lucid- are reserved for Lucid. Leave them out.",
  profiling = "Lucid: this partition is for Lucid's measuring runs. Submit to your own partition; Lucid sends new "
    .. "programs here by itself.",
  pool = "Lucid: this partition is for jobs that borrow GPUs of other VCs. Submit to your own partition; Lucid moves "
    .. "jobs here by itself.",
  cron = "Lucid: a job of scrontab cannot queue with the others. Let scrontab run a job without GPUs that calls sbatch.",
  immediate = "Lucid: jobs that want GPUs queue here, so --immediate cannot be met. Leave it out.",
  release = "Lucid: this job is not on hold; Lucid starts it at its turn (lucidctl explain JOB). To stop it, use "
    .. "scontrol hold.",
  late = "Lucid: this job was submitted past the queue and cannot be released into it. scancel it and submit it again.",
  tasks = "Lucid: say --ntasks and --gpus in place of --ntasks-per-gpu.",
  request = "Lucid: a waiting job's GPUs cannot be changed here. scancel it and submit it again.",
  size = "Lucid: this job has left the queue for Slurm to start and cannot be made larger. scancel it and submit it again.",
  move = "Lucid: this job has no place in the queue of that partition. scancel it and submit it again with -p.",
  moves = "Lucid: a job waits in one partition here. Name one, or scancel it and submit it again.",
  reservation = "Lucid: this job went past the queue to its reservation. To do without that, scancel it and submit it "
    .. "again.",
}

