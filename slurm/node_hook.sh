# shellcheck shell=sh
# What prolog and epilog have in common. node.conf, lines of a key and a value:
#   sampler /opt/lucid/bin/lucid-sampler    called as `… start --job NAME --slurm-id ID --gpus 0,1 --nodes 1 --promised 0.93`
#                                     and `… stop --job NAME`; NAME is 123, or 123_4 for a task of an array
#   mps     /etc/slurm/lucid/mps      the folder of `start` and `stop`
#   limit   5                         seconds that each may take
# The file is read, never run, and nothing of the job but numbers is passed on.
#
# Which GPUs: where each GPU has a type of its own, Slurm names only the last one of several to a prolog
# (SLURM_JOB_GPUS; seen on 24.11). So they are taken from the job's Extra, where the daemon notes `lucid-gpus=1,3` of
# a job that it starts in slots (and `lucid-mem=9312`, its memory fence in MiB, and `lucid-speed=0.93`, the speed
# expected of it beside its partner). Without that the sampler finds a job's GPUs by its processes, and no MPS is started.

lucid_setting() {
    sed -n "s/^$1[[:space:]]\{1,\}\([A-Za-z0-9_.\/-]\{1,\}\)[[:space:]]*\$/\1/p" "$lucid_conf" | tail -n 1
}

# lucid_noted KEY DIGITS: the value of an item in the job's Extra, where it consists of these characters.
lucid_noted() {
    printf '%s\n' "${SLURM_JOB_EXTRA:-}" |
        sed -n "1s/^\(.*[ ;]\)\{0,1\}lucid-$1=\([0-9][$2]*\)\([ ;].*\)\{0,1\}\$/\2/p"
}

lucid_hook() {
    lucid_conf=${LUCID_NODE_CONF:-$here/../node.conf}
    [ -r "$lucid_conf" ] || return 0
    job=${SLURM_JOB_ID:-}
    uid=${SLURM_JOB_UID:-}
    gpus=$(lucid_noted gpus '0-9,')
    mem=$(lucid_noted mem '0-9')
    speed=$(lucid_noted speed '0-9.')
    case $job in '' | *[!0-9]*) return 0 ;; esac
    case $uid in *[!0-9]*) uid='' ;; esac
    name=$job
    case ${SLURM_ARRAY_JOB_ID:-x}${SLURM_ARRAY_TASK_ID:-x} in
        *[!0-9]*) ;;
        *) name=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID} ;;
    esac
    nodes=${SLURM_JOB_NUM_NODES:-${SLURM_NNODES:-1}}
    case $nodes in *[!0-9]*) nodes=1 ;; esac
    limit=$(lucid_setting limit)
    case $limit in '' | *[!0-9]*) limit=5 ;; esac
    sampler=$(lucid_setting sampler)
    if [ -n "$sampler" ] && [ -x "$sampler" ]; then
        # Whatever it says, SLURM_JOB_GPUS is there for jobs with GPUs only.
        if [ "$1" = start ] && [ -n "${SLURM_JOB_GPUS:-}" ]; then
            timeout -k 1 "$limit" "$sampler" start --job "$name" --slurm-id "$job" --gpus "$gpus" --nodes "$nodes" \
                ${speed:+--promised "$speed"} </dev/null >/dev/null 2>&1
        elif [ "$1" = stop ]; then
            timeout -k 1 "$limit" "$sampler" stop --job "$name" </dev/null >/dev/null 2>&1
        fi
    fi
    mps=$(lucid_setting mps)
    if [ -n "$mps" ] && [ -x "$mps/start" ] && [ -x "$mps/stop" ]; then
        if [ "$1" = stop ]; then
            timeout -k 1 "$limit" "$mps/stop" --job "$job" </dev/null >/dev/null 2>&1
        elif [ -n "$gpus" ] && [ -n "$uid" ]; then
            # By UUID: a daemon of MPS numbers its devices anew.
            gpus=$(timeout -k 1 "$limit" nvidia-smi --query-gpu=uuid --format=csv,noheader -i "$gpus" 2>/dev/null |
                sed -n 's/^ *\(GPU-[0-9A-Za-z-]\{1,\}\) *$/\1/p' | paste -sd, -)
            # A job on whole GPUs has them to itself, and needs none.
            [ -z "$gpus" ] || timeout -k 1 "$limit" "$mps/start" --job "$job" --uid "$uid" --gpus "$gpus" \
                --mem-limit "$mem" </dev/null >/dev/null 2>&1
        fi
    fi
    return 0
}
