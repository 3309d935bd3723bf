# shellcheck shell=sh
# What prolog and epilog have in common. node.conf, lines of a key and a value:
#   sampler /opt/lucid/bin/lucid-sampler    called as `… start --job NAME --slurm-id ID --gpus 0,1 --nodes 1 --promised 0.93`
#                                     and `… stop --job NAME`; NAME is 123, or 123_4 for a task of an array
#   sampler-user lucid                who the sampler goes on as; unset: root
#   mps     /etc/slurm/lucid/mps      the folder of `start` and `stop`
#   limit   5                         seconds that each may take
#   daemon  lucid                     the user that lucidd runs as, by name or number
#   mps-dir /run/lucid-mps            root's own folder for MPS; mps-protocol 2 keeps to MPS version 2
#   turns-dir /run/lucid-turns        root's own folder for jobs that take turns (lucid:turns)
#   path    /usr/sbin:/usr/bin:/sbin:/bin   where nvidia-smi, unmunge, python3 and NVIDIA's MPS are looked for
# The file is read, never run, and has to be root's. Nothing of the job but numbers is passed on, and no variable of
# the environment is read but Slurm's own (docs/files.md lists who can write which).
#
# Which GPUs: where each GPU has a type of its own, Slurm names only the last one of several to a prolog
# (SLURM_JOB_GPUS; seen on 24.11), by its place in gres.conf, and the job's Extra is its user's to write. So lucidd
# seals them there with munge (`lucid-seal=MUNGE:…:`), with the job's memory fence in MiB and the speed expected of it
# beside its partner. Sealed GPUs have the numbers of their device files (3 for /dev/nvidia3), which are no places in
# nvidia-smi's list: docs/gpu-health.md.
# Without a seal that counts, the sampler finds a job's GPUs by its processes, and no MPS is started.

lucid_setting() {
    sed -n "s/^$1[[:space:]]\{1,\}\([A-Za-z0-9_.:\/-]\{1,\}\)[[:space:]]*\$/\1/p" "$lucid_conf" | tail -n 1
}

# lucid_item KEY DIGITS: the value of an item that was sealed, where it consists of these characters.
lucid_item() {
    printf '%s\n' "$sealed" | sed -n "1s/^\(.* \)\{0,1\}$1=\([0-9][$2]*\)\( .*\)\{0,1\}\$/\2/p"
}

# lucid_uuids: the UUIDs of these GPUs, in the same order; nothing where nvidia-smi does not name each of them.
lucid_uuids() {
    timeout -k 1 "$limit" nvidia-smi -q 2>/dev/null | awk -F ' *: *' -v gpus="$gpus" '
        /^GPU / { uuid = minor = "" }
        /^ *GPU UUID *:/ { uuid = $2 }
        /^ *Minor Number *:/ { minor = $2 }
        uuid ~ /^GPU-[0-9A-Za-z-]+ *$/ && minor ~ /^[0-9]+ *$/ { sub(/ +$/, "", uuid); of[minor + 0] = uuid }
        END {
            count = split(gpus, number, ",")
            for (i = 1; i <= count; i++) {
                if (!(number[i] in of)) exit
                found = found (i > 1 ? "," : "") of[number[i]]
            }
            print found
        }'
}

# lucid_turns start|stop: the folder in which the jobs on one set of GPUs agree on turns, BASE/NODE/g0-1, writable for
# all (sticky). It is there as long as a job uses it, by the files BASE/NODE/jobs/ID, which hold its name. All above it is
# root's, so no user can put a link in its place. What is removed is first moved to where no job looks.
lucid_turns() {
    base=$(lucid_setting turns-dir)
    base=${base:-/run/lucid-turns}
    node=${SLURMD_NODENAME:-node}
    case $base$node in *[!A-Za-z0-9_./-]* | *..*) return 0 ;; esac
    own=$base/$node
    [ "$1" = start ] && [ "$turns" = 1 ] && [ -n "$gpus" ] || [ -f "$own/jobs/$job" ] || return 0
    command -v flock >/dev/null 2>&1 || return 0
    (
        umask 022
        for folder in "$base" "$own" "$own/jobs"; do
            [ -e "$folder" ] || mkdir "$folder"
            # shellcheck disable=SC3067
            [ -d "$folder" ] && [ ! -L "$folder" ] && [ -O "$folder" ] || exit 0
        done
        exec 9>"$own/lock" || exit 0
        flock -w "$limit" 9 || exit 0
        set=''
        [ "$1" != start ] || [ "$turns" != 1 ] || set=g$(printf '%s' "$gpus" | tr ',' '-')
        old=$(sed -n 's/^.*\/\(g[0-9-]\{1,\}\)$/\1/p' "$own/jobs/$job" 2>/dev/null | head -n 1)
        rm -f "$own/jobs/$job"
        if [ -n "$set" ]; then
            [ -d "$own/$set" ] || mkdir "$own/$set" || exit 0
            chmod 1777 "$own/$set" && printf '%s\n' "$own/$set" >"$own/jobs/$job"
        fi
        if [ -n "$old" ] && [ "$old" != "$set" ] && ! grep -qsxF "$own/$old" "$own"/jobs/*; then
            mv "$own/$old" "$own/gone.$old.$job"
        fi
        exec 9>&-
        timeout -k 1 "$limit" rm -rf --one-file-system "$own"/gone.*
    ) </dev/null >/dev/null 2>&1
}

lucid_hook() {
    # shellcheck disable=SC2154 # here: the folder of who reads this file
    lucid_conf=$here/../node.conf
    # -O: it belongs to who runs this, and that is root; every sh of a distribution knows it
    # shellcheck disable=SC3067
    [ -r "$lucid_conf" ] && [ -O "$lucid_conf" ] || return 0
    path=$(lucid_setting path)
    case $path in /*) PATH=$path ;; esac
    job=${SLURM_JOB_ID:-}
    uid=${SLURM_JOB_UID:-}
    case $job in '' | *[!0-9]*) return 0 ;; esac
    case $uid in *[!0-9]*) uid='' ;; esac
    limit=$(lucid_setting limit)
    case $limit in '' | *[!0-9]*) limit=5 ;; esac
    daemon=$(lucid_setting daemon)
    restarts=${SLURM_JOB_RESTART_COUNT:-0}
    sealed=''
    case ${SLURM_JOB_EXTRA:-} in
        *lucid-seal=*)
            # A job without GPUs has none to share, whatever its Extra says.
            [ "$1" != start ] || [ -z "${SLURM_JOB_GPUS:-}" ] ||
                sealed=$(printf '%s' "$SLURM_JOB_EXTRA" | head -c 4096 | timeout -k 1 "$limit" "$here/../unseal" --job "$job" \
                    --restarts "$restarts" --node "${SLURMD_NODENAME:-}" --gpus "$SLURM_JOB_GPUS" \
                    --daemon "${daemon:-lucid}" 2>/dev/null | head -c 4096)
            ;;
    esac
    gpus=$(lucid_item gpus '0-9,')
    mem=$(lucid_item mem '0-9')
    speed=$(lucid_item speed '0-9.')
    turns=$(lucid_item turns '0-9')
    name=$job
    lucid_turns "$1"
    case ${SLURM_ARRAY_JOB_ID:-x}${SLURM_ARRAY_TASK_ID:-x} in
        *[!0-9]*) ;;
        *) name=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID} ;;
    esac
    nodes=${SLURM_JOB_NUM_NODES:-${SLURM_NNODES:-1}}
    case $nodes in *[!0-9]*) nodes=1 ;; esac
    sampler=$(lucid_setting sampler)
    as_user=$(lucid_setting sampler-user)
    if [ -n "$sampler" ] && [ -x "$sampler" ]; then
        # Whatever it says, SLURM_JOB_GPUS is there for jobs with GPUs only.
        if [ "$1" = start ] && [ -n "${SLURM_JOB_GPUS:-}" ]; then
            timeout -k 1 "$limit" "$sampler" ${as_user:+--as-user "$as_user"} start --job "$name" --slurm-id "$job" --gpus "$gpus" --nodes "$nodes" \
                ${speed:+--promised "$speed"} </dev/null >/dev/null 2>&1
        elif [ "$1" = stop ]; then
            timeout -k 1 "$limit" "$sampler" ${as_user:+--as-user "$as_user"} stop --job "$name" </dev/null >/dev/null 2>&1
        fi
    fi
    mps=$(lucid_setting mps)
    dir=$(lucid_setting mps-dir)
    protocol=$(lucid_setting mps-protocol)
    within=$((limit > 4 ? limit - 3 : 1))
    if [ -n "$mps" ] && [ -x "$mps/start" ] && [ -x "$mps/stop" ]; then
        if [ "$1" = stop ]; then
            timeout -k 1 "$limit" "$mps/stop" --job "$job" --within "$within" ${dir:+--dir "$dir"} \
                </dev/null >/dev/null 2>&1
        elif [ -n "$gpus" ] && [ -n "$uid" ] && [ "$(lucid_item mps '0-9')" != 0 ]; then
            # By UUID: a daemon of MPS numbers its devices anew.
            uuids=$(lucid_uuids)
            [ -n "$uuids" ] || logger -p authpriv.notice "lucid: job $job gets no MPS: nvidia-smi -q does not name each \
of the GPUs with device numbers $gpus" 2>/dev/null
            # A job on whole GPUs has them to itself, and needs none.
            [ -z "$uuids" ] || timeout -k 1 "$limit" "$mps/start" --job "$job" --uid "$uid" --gpus "$uuids" \
                --mem-limit "$mem" --within "$within" ${dir:+--dir "$dir"} ${protocol:+--protocol "$protocol"} \
                </dev/null >/dev/null 2>&1
        fi
    fi
    return 0
}
