# shellcheck shell=bash
# Shared by start, stop and check: where things lie, the lock, talking to a control daemon.
#
# $LUCID_MPS_DIR (default /run/lucid/mps) holds
#   lock                 taken by every start, stop and check of the node: two jobs of a pair never race
#   sets/KEY/            one GPU set in use: gpus, uid, pipe/ log/ (of its control daemon), clients/JOB
#   slicing/JOB          a job that shares by time-slicing: GPUs, and why
#   env/JOB              what its task prolog prints
#   faults               one line of JSON for each server that was found broken

MPS_DIR=${LUCID_MPS_DIR:-/run/lucid/mps}
MPS_CONTROL=${LUCID_MPS_CONTROL:-nvidia-cuda-mps-control}
MPS_WAIT_S=${LUCID_MPS_WAIT_S:-10}

die() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    exit 2
}

say() { printf '%s\n' "$*"; }

checked_job() {
    [[ $1 =~ ^[A-Za-z0-9_+-]+$ ]] || die "job '$1' is no job id"
}

prepare() {
    mkdir -p "$MPS_DIR/sets" "$MPS_DIR/slicing" "$MPS_DIR/env" || die "$MPS_DIR cannot be created"
    chmod 755 "$MPS_DIR" "$MPS_DIR/sets" "$MPS_DIR/env" 2>/dev/null || true
}

take_lock() {
    exec 9>"$MPS_DIR/lock" || die "$MPS_DIR/lock cannot be opened"
    flock -w "${LUCID_MPS_LOCK_S:-60}" 9 || die "$MPS_DIR/lock is held for too long"
}

# The same GPUs in whatever order are the same set.
set_key() {
    tr ',' '\n' <<<"$1" | sort | sha256sum | cut -c1-16
}

# as UID COMMAND…: run as this user, without the lock; root changes over, anybody else can only be himself.
as() {
    local uid=$1
    shift
    if [[ $(id -u) == "$uid" ]]; then
        "$@" 9>&-
    elif [[ $(id -u) == 0 ]]; then
        setpriv --reuid="$uid" --regid="$(id -g "$uid")" --init-groups -- "$@" 9>&-
    else
        return 77
    fi
}

# ask SET COMMAND: what the set's control daemon answers; fails if there is none.
ask() {
    local set=$1
    as "$(<"$set/uid")" timeout "$MPS_WAIT_S" env CUDA_MPS_PIPE_DIRECTORY="$set/pipe" CUDA_MPS_LOG_DIRECTORY="$set/log" \
        "$MPS_CONTROL" <<<"$2" 2>/dev/null
}

# alive PID: a zombie answers kill -0, but has let go of everything.
alive() {
    kill -0 "$1" 2>/dev/null && [[ $(awk '{print $3}' "/proc/$1/stat" 2>/dev/null) != Z ]]
}

daemon_pid() {
    local file="$1/pipe/nvidia-cuda-mps-control.pid" pid
    [[ -r $file ]] || return 1
    pid=$(<"$file")
    [[ $pid =~ ^[0-9]+$ ]] && alive "$pid" && say "$pid"
}

# launch SET: start the control daemon of a set and wait until it answers.
launch() {
    local set=$1 uid
    uid=$(<"$set/uid")
    # of an earlier daemon that died; a new one does not start over its pipe
    rm -rf "$set/pipe" "$set/log"
    mkdir -p "$set/pipe" "$set/log" || return 1
    chown "$uid" "$set/pipe" "$set/log" 2>/dev/null
    chmod 700 "$set/pipe" "$set/log"
    as "$uid" timeout "$MPS_WAIT_S" env CUDA_VISIBLE_DEVICES="$(<"$set/gpus")" CUDA_MPS_PIPE_DIRECTORY="$set/pipe" \
        CUDA_MPS_LOG_DIRECTORY="$set/log" "$MPS_CONTROL" -d >"$set/started" 2>&1 </dev/null || return 1
    ask "$set" get_server_list >/dev/null
}

# finish SET: end the control daemon of a set, and its servers, whatever it takes.
finish() {
    local set=$1 pid servers=() server
    if pid=$(daemon_pid "$set"); then
        mapfile -t servers < <(ask "$set" get_server_list)
        ask "$set" "quit -t $MPS_WAIT_S" >/dev/null
        wait_gone "$pid" || kill -TERM "$pid" 2>/dev/null
        wait_gone "$pid" || kill -KILL "$pid" 2>/dev/null
        for server in "${servers[@]}"; do
            # a server that outlives its control daemon would keep the GPU
            [[ $server =~ ^[0-9]+$ ]] && kill -KILL "$server" 2>/dev/null
        done
    fi
    return 0
}

wait_gone() {
    local i
    for ((i = 0; i < MPS_WAIT_S * 20; i++)); do
        alive "$1" || return 0
        sleep 0.05
    done
    return 1
}

clients_of() { find "$1/clients" -mindepth 1 -maxdepth 1 -printf '%f\n' 2>/dev/null | sort; }

# broken SET: is a server of this set in FAULT? Prints its process id.
broken() {
    local server
    while read -r server; do
        [[ $server =~ ^[0-9]+$ ]] || continue
        if [[ $(ask "$1" "get_server_status $server") == *FAULT* ]]; then
            say "$server"
            return 0
        fi
    done < <(ask "$1" get_server_list)
    return 1
}

# mend SET CAUSE: a client's fatal fault has broken the server. Every client on these GPUs has been hit, and no new
# one is let in until all are gone: say whose jobs they were, end the server and begin with a new daemon.
mend() {
    local set=$1 server jobs
    server=$(broken "$set") || return 1
    jobs=$(clients_of "$set" | sed 's/.*/"&"/' | paste -sd, -)
    printf '{"at":%s,"gpus":"%s","server":%s,"jobs":[%s],"seen_by":"%s","fate":"%s"}\n' \
        "$(date +%s)" "$(<"$set/gpus")" "$server" "$jobs" "$2" \
        "all clients on these GPUs were hit by the fault; their processes fail with a CUDA error" >>"$MPS_DIR/faults"
    say "fault=server $server of GPUs $(<"$set/gpus") was broken; hit: $(clients_of "$set" | paste -sd' ' -)"
    ask "$set" "shutdown_server $server -f" >/dev/null
    finish "$set"
    launch "$set" || say "fault=no new daemon came up for GPUs $(<"$set/gpus")"
    return 0
}
