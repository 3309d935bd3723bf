/* An emulated libnvidia-ml.so.1: what the sampler's tests and the Slurm testbed run the real nvidia-ml-py on.
 *
 * It answers the calls that Lucid makes, with the structs of nvml.h, from the file named by LUCID_NVML_STATE.
 * The file is read again whenever it has changed; replace it by rename. One thing a line, '#' begins a comment:
 *
 *   driver 550.54.15
 *   generation 1            a change means that the driver was restarted: handles and samples are void until
 *                           nvmlShutdown and nvmlInit
 *   gpu 0 uuid=GPU-a name=Emulated mem_total=24576 mem_used=512 util=0 mem_util=0 [gpm=1 sm=0 occ=0 dram=0]
 *         [mig=1] [xid=79] [minor=0]  (MiB, percent; on one line) a GPU without a line is not there; `xid` is reported once
 *         [ecc=2] [remap_pending=1] [remap_failed=1] [throttle=64] [energy=7]   uncorrected errors; rows; bits of clock reasons; J
 *   proc 0 pid=1234 [mem=400] [sm=40] [mem_util=20]      a process on GPU 0; what is left out is unavailable
 *   fail FUNCTION CODE [gpu]                             this call returns CODE (on this GPU)
 *
 * Every nvmlDeviceGetUtilizationRates appends one byte to LUCID_NVML_COUNT, where that is set: an independent
 * count of readings taken. Not thread-safe; emulates no timing. */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#define GPUS 64
#define PROCS 256
#define FAILS 64
#define NA 0xffffffffffffffffULL
#define API __attribute__((visibility("default")))

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NO_DRIVER = 9,
       TIMED_OUT = 10, LOST = 15 };

typedef struct { int there, gpm, mig, minor; char uuid[80], name[96]; double total, used, util, mem, sm, occ, dram; int xid; double ecc, pending, failed, throttle, energy; } Gpu;
typedef struct { int gpu; unsigned pid; double mem, sm, mem_util; } Proc;
typedef struct { char function[64]; int code, gpu; } Fail;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } ProcessInfo;
typedef struct { unsigned pid; unsigned long long at; unsigned sm, mem, enc, dec; } ProcessSample;
typedef struct { const char *a, *b, *c; } MetricInfo;
typedef struct { unsigned id; int result; double value; MetricInfo info; } Metric;
typedef struct { double values[3]; int gpu; int generation; } Sample;
typedef struct { unsigned version, count; Sample *first, *second; Metric metrics[]; } MetricsGet;
typedef struct { unsigned version, supported; } Support;
typedef struct { void *device; unsigned long long type, data; unsigned instance, compute; } EventData;

static Gpu gpus[GPUS];
static Proc procs[PROCS];
static Fail fails[FAILS];
static int proc_count, fail_count, generation, initialised = -1, users;
static int xid_told[GPUS], watched[GPUS];
static char driver[80];
static struct stat seen;

static double field(const char *line, const char *name, double otherwise) {
    char key[32];
    snprintf(key, sizeof key, " %s=", name);
    const char *at = strstr(line, key);
    return at ? atof(at + strlen(key)) : otherwise;
}

static void word(const char *line, const char *name, char *into, size_t size, const char *otherwise) {
    char key[32];
    snprintf(key, sizeof key, " %s=", name);
    const char *at = strstr(line, key);
    snprintf(into, size, "%s", otherwise);
    if (at) {
        at += strlen(key);
        size_t n = strcspn(at, " \t\n");
        snprintf(into, size, "%.*s", (int)(n < size ? n : size - 1), at);
    }
}

static int refresh(void) {
    const char *path = getenv("LUCID_NVML_STATE");
    struct stat now;
    if (!path || stat(path, &now)) return NO_DRIVER;
    if (now.st_ino == seen.st_ino && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_size == seen.st_size)
        return OK;
    FILE *file = fopen(path, "r");
    if (!file) return NO_DRIVER;
    seen = now;
    memset(gpus, 0, sizeof gpus);
    proc_count = fail_count = 0;
    generation = 0;
    snprintf(driver, sizeof driver, "000.00");
    char line[1024];
    while (fgets(line, sizeof line, file)) {
        int i, code;
        char name[64];
        if (sscanf(line, "gpu %d", &i) == 1 && i >= 0 && i < GPUS) {
            Gpu *g = &gpus[i];
            char made[80];
            snprintf(made, sizeof made, "GPU-00000000-0000-0000-0000-%012d", i);
            g->there = 1;
            word(line, "uuid", g->uuid, sizeof g->uuid, made);
            word(line, "name", g->name, sizeof g->name, "Emulated-GPU");
            g->total = field(line, "mem_total", 24576);
            g->used = field(line, "mem_used", 0);
            g->util = field(line, "util", 0);
            g->mem = field(line, "mem_util", 0);
            g->gpm = (int)field(line, "gpm", 0);
            g->sm = field(line, "sm", 0);
            g->occ = field(line, "occ", 0);
            g->dram = field(line, "dram", 0);
            g->mig = (int)field(line, "mig", 0);
            g->xid = (int)field(line, "xid", 0);
            g->minor = (int)field(line, "minor", i);
            g->ecc = field(line, "ecc", 0);
            g->pending = field(line, "remap_pending", 0);
            g->failed = field(line, "remap_failed", 0);
            g->throttle = field(line, "throttle", 0);
            g->energy = field(line, "energy", -1);
        } else if (sscanf(line, "proc %d", &i) == 1 && proc_count < PROCS) {
            Proc *p = &procs[proc_count++];
            p->gpu = i;
            p->pid = (unsigned)field(line, "pid", 0);
            p->mem = field(line, "mem", -1);
            p->sm = field(line, "sm", -1);
            p->mem_util = field(line, "mem_util", 0);
        } else if (sscanf(line, "fail %63s %d", name, &code) == 2 && fail_count < FAILS) {
            Fail *f = &fails[fail_count++];
            snprintf(f->function, sizeof f->function, "%s", name);
            f->code = code;
            if (sscanf(line, "fail %*s %*d %d", &f->gpu) != 1) f->gpu = -1;
        } else if (sscanf(line, "generation %d", &i) == 1) {
            generation = i;
        } else {
            sscanf(line, "driver %79s", driver);
        }
    }
    fclose(file);
    return OK;
}

static int failing(const char *function, int gpu) {
    for (int i = 0; i < fail_count; i++)
        if (!strcmp(fails[i].function, function) && (fails[i].gpu < 0 || fails[i].gpu == gpu)) return fails[i].code;
    return OK;
}

/* Every call on a device: is the library up, is the GPU there, was this failure asked for? */
static int device(const char *function, void *handle, Gpu **found, int *index) {
    int code = refresh();
    if (code) return code;
    if (!users || initialised != generation) return UNINITIALIZED;
    *index = (int)((size_t)handle & 0xffff) - 1;
    if (((size_t)handle >> 16) != (size_t)generation || *index < 0 || *index >= GPUS) return INVALID;
    if ((code = failing(function, *index))) return code;
    *found = &gpus[*index];
    return (*found)->there ? OK : LOST;
}

static void *handle_of(int index) { return (void *)(((size_t)generation << 16) | (size_t)(index + 1)); }

#define ENTER(handle) Gpu *g; int i; int code = device(__func__, handle, &g, &i); if (code) return code

API int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int code = refresh();
    if (!code) code = failing("nvmlInitWithFlags", -1);
    if (code) return code;
    users++;
    initialised = generation;
    return OK;
}
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlShutdown(void) {
    if (!users) return UNINITIALIZED;
    users--;
    memset(watched, 0, sizeof watched);
    return OK;
}
API const char *nvmlErrorString(int code) {
    switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case TOO_SMALL: return "Insufficient Size";
    case NO_DRIVER: return "Driver Not Loaded";
    case TIMED_OUT: return "Timeout";
    case LOST: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}
API int nvmlSystemGetDriverVersion(char *into, unsigned size) {
    int code = refresh();
    if (!code) snprintf(into, size, "%s", driver);
    return code;
}
API int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = refresh();
    if (!code && (!users || initialised != generation)) code = UNINITIALIZED;
    if (!code) code = failing("nvmlDeviceGetCount_v2", -1);
    if (code) return code;
    *count = 0;
    for (int i = 0; i < GPUS; i++) *count += (unsigned)gpus[i].there;
    return OK;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    int code = refresh();
    if (!code && (!users || initialised != generation)) code = UNINITIALIZED;
    if (code) return code;
    for (unsigned i = 0, n = 0; i < GPUS; i++)
        if (gpus[i].there && n++ == index) {
            if ((code = failing("nvmlDeviceGetHandleByIndex_v2", (int)i))) return code;
            *handle = handle_of((int)i);
            return OK;
        }
    return INVALID;
}
API int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    int code = refresh();
    if (!code && (!users || initialised != generation)) code = UNINITIALIZED;
    if (code) return code;
    for (int i = 0; i < GPUS; i++)
        if (gpus[i].there && !strcmp(gpus[i].uuid, uuid)) {
            *handle = handle_of(i);
            return OK;
        }
    return NOT_FOUND;
}
API int nvmlDeviceGetUUID(void *handle, char *into, unsigned size) { ENTER(handle); snprintf(into, size, "%s", g->uuid); return OK; }
API int nvmlDeviceGetName(void *handle, char *into, unsigned size) { ENTER(handle); snprintf(into, size, "%s", g->name); return OK; }
API int nvmlDeviceGetMinorNumber(void *handle, unsigned *minor) { ENTER(handle); *minor = (unsigned)g->minor; return OK; }
API int nvmlDeviceGetMemoryInfo(void *handle, Memory *into) {
    ENTER(handle);
    into->total = (unsigned long long)(g->total * 1048576.0);
    into->used = (unsigned long long)(g->used * 1048576.0);
    into->free = into->total - into->used;
    return OK;
}
API int nvmlDeviceGetMemoryInfo_v2(void *handle, MemoryV2 *into) {
    ENTER(handle);
    into->total = (unsigned long long)(g->total * 1048576.0);
    into->used = (unsigned long long)(g->used * 1048576.0);
    into->reserved = 0;
    into->free = into->total - into->used;
    return OK;
}
API int nvmlDeviceGetUtilizationRates(void *handle, Utilization *into) {
    ENTER(handle);
    const char *path = getenv("LUCID_NVML_COUNT");
    if (path) {
        int file = open(path, O_WRONLY | O_APPEND | O_CREAT, 0644);
        if (file >= 0) {
            if (write(file, ".", 1) != 1) _exit(70);
            close(file);
        }
    }
    if (g->mig) return NOT_SUPPORTED;
    into->gpu = (unsigned)g->util;
    into->memory = (unsigned)g->mem;
    return OK;
}
API int nvmlDeviceGetTotalEccErrors(void *handle, unsigned type, unsigned counter, unsigned long long *count) {
    ENTER(handle);
    *count = type == 1 && counter == 0 ? (unsigned long long)g->ecc : 0;
    return OK;
}
API int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    ENTER(handle);
    *corrected = *uncorrected = 0;
    *pending = g->pending != 0;
    *failed = g->failed != 0;
    return OK;
}
API int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons) {
    ENTER(handle);
    *reasons = (unsigned long long)g->throttle;
    return OK;
}
API int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *millijoules) {
    ENTER(handle);
    if (g->energy < 0) return NOT_SUPPORTED;
    *millijoules = (unsigned long long)(g->energy * 1000);
    return OK;
}
API int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    ENTER(handle);
    *current = *pending = (unsigned)g->mig;
    return OK;
}
static int processes(const char *function, void *handle, unsigned *count, ProcessInfo *into) {
    Gpu *g;
    int i, code = device(function, handle, &g, &i);
    if (code) return code;
    unsigned n = 0;
    for (int p = 0; p < proc_count; p++) n += procs[p].gpu == i;
    if (n > *count) { *count = n; return TOO_SMALL; }
    *count = 0;
    for (int p = 0; p < proc_count; p++)
        if (procs[p].gpu == i) {
            ProcessInfo *one = &into[(*count)++];
            one->pid = procs[p].pid;
            one->used = procs[p].mem < 0 ? NA : (unsigned long long)(procs[p].mem * 1048576.0);
            one->instance = one->compute = 0xffffffffu;
        }
    return OK;
}
API int nvmlDeviceGetComputeRunningProcesses_v2(void *h, unsigned *n, ProcessInfo *p) { return processes(__func__, h, n, p); }
API int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, ProcessInfo *p) { return processes(__func__, h, n, p); }
API int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *h, unsigned *n, ProcessInfo *p) {
    ENTER(h);
    (void)p;
    *n = 0;
    return OK;
}
API int nvmlDeviceGetProcessUtilization(void *handle, ProcessSample *into, unsigned *count, unsigned long long since) {
    ENTER(handle);
    unsigned n = 0;
    struct timeval now;
    gettimeofday(&now, NULL);
    unsigned long long at = (unsigned long long)now.tv_sec * 1000000ULL + (unsigned long long)now.tv_usec;
    for (int p = 0; p < proc_count; p++) n += procs[p].gpu == i && procs[p].sm >= 0;
    if (!n || since >= at) { *count = 0; return NOT_FOUND; }
    if (!into || *count < n) { *count = n; return TOO_SMALL; }
    *count = 0;
    for (int p = 0; p < proc_count; p++)
        if (procs[p].gpu == i && procs[p].sm >= 0) {
            ProcessSample one = {procs[p].pid, at, (unsigned)procs[p].sm, (unsigned)procs[p].mem_util, 0, 0};
            into[(*count)++] = one;
        }
    return OK;
}
API int nvmlGpmQueryDeviceSupport(void *handle, Support *into) { ENTER(handle); into->supported = (unsigned)g->gpm; return OK; }
API int nvmlGpmSampleAlloc(Sample **sample) { *sample = calloc(1, sizeof(Sample)); return *sample ? OK : 20; }
API int nvmlGpmSampleFree(Sample *sample) { free(sample); return OK; }
API int nvmlGpmSampleGet(void *handle, Sample *sample) {
    ENTER(handle);
    if (!g->gpm) return NOT_SUPPORTED;
    sample->values[0] = g->sm;
    sample->values[1] = g->occ;
    sample->values[2] = g->dram;
    sample->gpu = i;
    sample->generation = generation;
    return OK;
}
API int nvmlGpmMetricsGet(MetricsGet *get) {
    int code = refresh();
    if (code) return code;
    if (!get->first || !get->second || get->first->generation != generation || get->second->generation != generation)
        return INVALID;
    if ((code = failing("nvmlGpmMetricsGet", get->second->gpu))) return code;
    for (unsigned n = 0; n < get->count; n++) {
        Metric *m = &get->metrics[n];
        int at = m->id == 2 ? 0 : m->id == 3 ? 1 : m->id == 10 ? 2 : -1; /* SM_UTIL, SM_OCCUPANCY, DRAM_BW_UTIL */
        m->result = at < 0 ? NOT_SUPPORTED : OK;
        m->value = at < 0 ? 0 : get->second->values[at];
    }
    return OK;
}
API int nvmlEventSetCreate(void **set) { *set = &watched; return OK; }
API int nvmlEventSetFree(void *set) { (void)set; return OK; }
API int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set) {
    ENTER(handle);
    (void)set;
    watched[i] = (types & 8) != 0; /* nvmlEventTypeXidCriticalError */
    return OK;
}
API int nvmlEventSetWait_v2(void *set, EventData *into, unsigned timeout_ms) {
    (void)set;
    (void)timeout_ms;
    int code = refresh();
    if (code) return code;
    for (int i = 0; i < GPUS; i++) {
        if (!gpus[i].xid) xid_told[i] = 0;
        if (gpus[i].there && watched[i] && gpus[i].xid && xid_told[i] != gpus[i].xid) {
            xid_told[i] = gpus[i].xid;
            EventData event = {handle_of(i), 8, (unsigned long long)gpus[i].xid, 0xffffffffu, 0xffffffffu};
            *into = event;
            return OK;
        }
    }
    return TIMED_OUT;
}
