// test_crash.c - what a save leaves behind when one of its system calls fails, when the process is
// killed at one of them, and when it is killed at any time. Every call is tried.
//
// This program defines functions with the names of the system calls, so the library calls these
// instead. They count the calls, and the chosen one fails, does only a part, or never returns. The
// library does not know of this.
#undef _FORTIFY_SOURCE // its headers define some of the names below
#include "host.h"

#include "base/clock.h"
#include "base/rng.h"
#include "plan/second.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

// ---------------------------------------------------------------- the calls

enum call { CALL_OPEN, CALL_WRITE, CALL_FSYNC, CALL_CLOSE, CALL_RENAME, CALL_MKDIR, CALL_UNLINK };
enum { CALLS = CALL_UNLINK + 1, KILL = -1, SHORT = -2, EVENTS_MOST = 1024 };
static const char *const call_names[CALLS] = {"open",   "write", "fsync", "close",
                                              "rename", "mkdir", "unlink"};

struct event {
    enum call call;
    char path[256], to[256]; // only their last two parts
};

static struct {
    bool armed;
    int counts[CALLS], total;
    int call; // which call fails: enum call, or CALLS for the when-th call of any kind
    int when; // counted from 1; 0: none
    int with; // an errno, KILL or SHORT
    bool from_then_on;
    bool hit;
    bool logging;
    bool swaps; // whether the filesystem can exchange two names in one move
    int reads;  // errno of every pread; 0: they work
    struct event events[EVENTS_MOST];
    int n_events;
} fault;

static void tail_of(const char *path, char out[256]) {
    const char *from = path + strlen(path);
    for (int slashes = 0; from > path && (slashes += from[-1] == '/') < 3;)
        from--;
    snprintf(out, 256, "%s", from);
}

static void note(enum call call, int fd, const char *path, const char *to) {
    char link[64], at[PATH_MAX];
    if (!fault.logging || fault.n_events == EVENTS_MOST)
        return;
    struct event *v = &fault.events[fault.n_events++];
    *v = (struct event){.call = call};
    if (path == NULL) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, at, sizeof at - 1);
        at[n > 0 ? n : 0] = '\0';
        path = at;
    }
    tail_of(path, v->path);
    tail_of(to != NULL ? to : "", v->to);
}

// Returns 0 if the call is to be made, else what happens instead.
static int strike(enum call call) {
    if (!fault.armed)
        return 0;
    int n = ++fault.counts[call], all = ++fault.total;
    int at = fault.call == CALLS ? all : fault.call == (int)call ? n : 0;
    if (fault.when == 0 || at == 0 || (fault.from_then_on ? at < fault.when : at != fault.when))
        return 0;
    fault.hit = true;
    if (fault.with == KILL)
        kill(getpid(), SIGKILL);
    return fault.with;
}

#define FAIL_IF_STRUCK(call)                                                                       \
    do {                                                                                           \
        int with_ = strike(call);                                                                  \
        if (with_ > 0) {                                                                           \
            errno = with_;                                                                         \
            return -1;                                                                             \
        }                                                                                          \
    } while (0)

int open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    int mode = flags & O_CREAT ? va_arg(args, int) : 0;
    va_end(args);
    FAIL_IF_STRUCK(CALL_OPEN);
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

ssize_t write(int fd, const void *data, size_t bytes) {
    note(CALL_WRITE, fd, NULL, NULL);
    int with = strike(CALL_WRITE);
    if (with > 0) {
        errno = with;
        return -1;
    }
    return syscall(SYS_write, fd, data, with == SHORT && bytes > 1 ? bytes / 2 : bytes);
}

int fsync(int fd) {
    note(CALL_FSYNC, fd, NULL, NULL);
    FAIL_IF_STRUCK(CALL_FSYNC);
    return 0; // no power is cut here: only the order matters, and waiting would take minutes
}

int close(int fd) { // it is closed even if it fails, as on Linux
    int with = strike(CALL_CLOSE), rc = (int)syscall(SYS_close, fd);
    if (with > 0) {
        errno = with;
        return -1;
    }
    return rc;
}

int rename(const char *from, const char *to) {
    note(CALL_RENAME, -1, from, to);
    FAIL_IF_STRUCK(CALL_RENAME);
    return (int)syscall(SYS_rename, from, to);
}

// Behaves like a filesystem that cannot swap two names, unless `swaps` is set.
int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    if (fault.swaps)
        return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    errno = EINVAL;
    return -1;
}

ssize_t pread(int fd, void *data, size_t bytes, off_t at) {
    if (fault.reads != 0) {
        errno = fault.reads;
        return -1;
    }
    return syscall(SYS_pread64, fd, data, bytes, at);
}

int mkdir(const char *path, mode_t mode) {
    note(CALL_MKDIR, -1, path, NULL);
    FAIL_IF_STRUCK(CALL_MKDIR);
    return (int)syscall(SYS_mkdir, path, mode);
}

int unlinkat(int dir, const char *path, int flags) {
    note(CALL_UNLINK, dir, dir == AT_FDCWD ? path : NULL, NULL);
    FAIL_IF_STRUCK(CALL_UNLINK);
    return (int)syscall(SYS_unlinkat, dir, path, flags);
}

static void disarm(void) {
    memset(&fault, 0, sizeof fault);
}

// ---------------------------------------------------------------- one save under fire

static int64_t newest_step(const char *run) {
    struct err e = {0};
    char path[PATH_MAX];
    assert_worked(checkpoint_find_newest(run, NULL, path, &e), &e);
    const char *name = strrchr(path, '/');
    return name != NULL ? atoll(name + strlen("/step-")) : 0;
}

static int count_tmp(void *arg, const char *name) {
    *(int *)arg += strstr(name, ".tmp") != NULL;
    return 0;
}

static int leftovers(const char *run) {
    struct err e = {0};
    char path[PATH_MAX];
    int n = 0;
    snprintf(path, sizeof path, "%s/checkpoints", run);
    assert_worked(file_list_dir(path, count_tmp, &n, &e), &e);
    return n;
}

// Faults are on from the end of the step to the end of its save. If the save fails, the checkpoint
// that the run began with must still verify.
static void under_fire(struct run *r, const struct train_save *save) {
    if (save == NULL) {
        fault.armed = r->last == r->first + 1;
        return;
    }
    fault.armed = false;
    struct err e = {0};
    if (save->rc != 0)
        assert_worked(checkpoint_verify(step_file(r->dir, r->first, ""), NULL, &e), &e);
}

static void prepare_from(const struct scratch *s, struct run *r, const char *name,
                         struct host *host, const struct knobs *second) {
    disarm();
    run_init(r, s, name);
    if (host != NULL) {
        host_init(host, 16, 16);
        host->run = r;
        host->train_after = 1;
        r->guests = &host->source;
        r->second = second;
    }
    run_set(r, "steps=2000");
    run_set(r, "save.every=1");
    run_set(r, "save.keep=1");
    run_set(r, "data.prefetch=0"); // so that there is only one thread
    run_set(r, "sched.kind=constant");
    r->stop_at = 2;
    run_go(r);
    assert_int_equal(r->rc, ERR_STOPPED);
}

static void prepare(const struct scratch *s, struct run *r, const char *name) {
    prepare_from(s, r, name, NULL, NULL);
}

// The same with a folder that already has the step's name. The save must report success exactly
// when the checkpoint is there.
static void replacing_under_fire(struct run *r, const struct train_save *save) {
    struct err e = {0};
    if (save == NULL && r->last == r->first + 1) {
        assert_worked(file_make_dirs(step_file(r->dir, r->last, ""), &e), &e);
        assert_worked(file_write_atomic(step_file(r->dir, r->last, "manifest.json"), "x", 1, &e),
                      &e);
    }
    bool armed = fault.armed;
    under_fire(r, save);
    if (save == NULL || !armed)
        return;
    int there = checkpoint_verify(step_file(r->dir, r->last, ""), NULL, &e);
    if ((save->rc == 0) != (there == 0))
        fail_msg("the save said %d (%s), verifying it says %d (%s)", save->rc, save->error, there,
                 e.text);
}

// Runs one step from the newest checkpoint, with faults in its save.
static void step_with(struct run *r, void (*hook)(struct run *, const struct train_save *)) {
    struct knobs knobs = r->knobs;
    char dir[sizeof r->dir];
    memcpy(dir, r->dir, sizeof dir);
    int64_t from = newest_step(dir);
    const struct guest_source *guests = r->guests;
    const struct knobs *second = r->second;
    memset(r, 0, sizeof *r);
    r->knobs = knobs;
    r->guests = guests;
    r->second = second;
    memcpy(r->dir, dir, sizeof dir);
    r->hook = hook;
    r->stop_at = from + 1;
    run_go(r);
    assert_int_equal(r->first, from);
}

static void step_under_fire(struct run *r) {
    step_with(r, under_fire);
}

static void assert_same_as_uninterrupted(const struct scratch *s, const struct run *r,
                                         const char *name) {
    struct run whole;
    int64_t step = newest_step(r->dir);
    disarm();
    run_init(&whole, s, name);
    whole.knobs.steps = step;
    run_set(&whole, "sched.kind=constant");
    run_go(&whole);
    assert_ran(&whole);
    assert_same_tensors(whole.dir, r->dir, step);
}

// ---------------------------------------------------------------- tests

static void count_calls(struct run *r, int counts[CALLS + 1]) {
    disarm();
    step_under_fire(r);
    assert_int_equal(r->saves, 1);
    memcpy(counts, fault.counts, sizeof fault.counts);
    counts[CALLS] = fault.total;
    for (int i = 0; i < CALLS; i++)
        assert_true(counts[i] > 0); // otherwise this program does not intercept them
}

static void test_every_call_may_fail_once(void **state) {
    static const struct {
        enum call call;
        int with;
        bool from_then_on;
    } kinds[] = {
        {CALL_OPEN, ENOSPC, false},  {CALL_OPEN, EINTR, false},   {CALL_OPEN, EMFILE, false},
        {CALL_WRITE, ENOSPC, false}, {CALL_WRITE, EDQUOT, false}, {CALL_WRITE, EIO, false},
        {CALL_WRITE, EINTR, false},  {CALL_WRITE, SHORT, false},  {CALL_WRITE, ENOSPC, true},
        {CALL_WRITE, SHORT, true},   {CALL_FSYNC, EIO, false},    {CALL_FSYNC, ENOSPC, false},
        {CALL_FSYNC, EINTR, false},  {CALL_FSYNC, EIO, true},     {CALL_CLOSE, EIO, false},
        {CALL_CLOSE, ENOSPC, false}, {CALL_CLOSE, EINTR, false},  {CALL_RENAME, ENOSPC, false},
        {CALL_RENAME, EIO, false},   {CALL_RENAME, EIO, true},    {CALL_MKDIR, ENOSPC, false},
        {CALL_MKDIR, EDQUOT, false}, {CALL_UNLINK, EIO, false},   {CALL_UNLINK, EIO, true},
    };
    struct run r;
    int counts[CALLS + 1], tried = 0, failed = 0;
    prepare(*state, &r, "faults");
    count_calls(&r, counts);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (int n = 1; n <= counts[kinds[k].call]; n += UNDER_SANITIZER ? 3 : 1) {
            disarm();
            fault.call = (int)kinds[k].call;
            fault.when = n;
            fault.with = kinds[k].with;
            fault.from_then_on = kinds[k].from_then_on;
            int64_t before = newest_step(r.dir);
            step_under_fire(&r);
            tried++;
            // Either the save failed and was repeated when the run stopped, or it worked at once.
            if (!fault.hit || r.failed_saves > 1 || r.saves != 1 || r.rc != ERR_STOPPED ||
                newest_step(r.dir) != before + 1)
                fail_msg(
                    "%s %d with %d: hit %d, %d saved, %d failed, rc %d (%s), step %lld to %lld",
                    call_names[kinds[k].call], n, kinds[k].with, fault.hit, r.saves, r.failed_saves,
                    r.rc, r.e.text, (long long)before, (long long)newest_step(r.dir));
            bool must_work =
                kinds[k].with == SHORT || (kinds[k].with == EINTR && kinds[k].call != CALL_FSYNC);
            // Other calls may belong to work that is allowed to fail: reading what is about to be
            // removed.
            bool must_fail = kinds[k].call == CALL_WRITE;
            assert_false(must_work && r.failed_saves);
            assert_false(!must_work && must_fail && !r.failed_saves);
            // The sentence names what could not be written and why.
            if (r.failed_saves) {
                failed++;
                assert_non_null(strstr(r.said, "E the checkpoint of step "));
                if (strstr(r.said, strerror(kinds[k].with)) == NULL ||
                    strstr(r.said, "checkpoints") == NULL)
                    fail_msg("%s %d with %d said: %s", call_names[kinds[k].call], n, kinds[k].with,
                             r.said);
            }
        }
    }
    print_message("%d faults in a save, %d failed it, none lost a checkpoint\n", tried, failed);
    disarm();
    step_under_fire(&r);
    assert_int_equal(leftovers(r.dir), 0);
    assert_same_as_uninterrupted(*state, &r, "faults-none");
}

static void kill_at_every_call(struct run *r) {
    int counts[CALLS + 1], old = 0, new = 0;
    count_calls(r, counts);
    for (int n = 1; n <= counts[CALLS]; n += UNDER_SANITIZER ? 3 : 1) {
        int64_t before = newest_step(r->dir);
        int status;
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            disarm();
            fault.call = CALLS;
            fault.when = n;
            fault.with = KILL;
            step_under_fire(r);
            _exit(9);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        int64_t after = newest_step(r->dir);
        assert_true(after == before || after == before + 1);
        old += after == before;
        new += after != before;
    }
    assert_true(old > 0 && new > 0);
    print_message("killed at %d calls: %d times the old checkpoint, %d times the new\n", old + new,
                  old, new);
    step_under_fire(r);
    assert_int_equal(leftovers(r->dir), 0);
}

static void test_killed_at_every_call(void **state) {
    struct run r;
    prepare(*state, &r, "killed");
    kill_at_every_call(&r);
    assert_same_as_uninterrupted(*state, &r, "killed-never");
}

// With a second model that learns a request after each step. Both models in a checkpoint are of the
// same moment, whenever the process was killed.
static void test_killed_with_a_second_model(void **state) {
    const struct scratch *s = *state;
    struct run r, whole;
    struct knobs second;
    static struct host host, other;
    knobs_init(&second);
    snprintf(second.model, sizeof second.model, "%s", s->nano);
    second.seq = 16, second.batch_micro = second.threads = 1;
    prepare_from(s, &r, "killed-pair", &host, &second);
    kill_at_every_call(&r);
    const int64_t step = newest_step(r.dir);
    disarm();
    prepare_from(s, &whole, "killed-pair-never", &other, &second);
    whole.knobs.steps = step;
    run_set(&whole, "save.every=0");
    other.trained_at = 0; // this process has not finished a step yet
    run_again(&whole);
    assert_ran(&whole);
    assert_same_tensors(whole.dir, r.dir, step);
    assert_same_file(step_file(whole.dir, step, "interactive/model.safetensors"),
                     step_file(r.dir, step, "interactive/model.safetensors"));
    assert_same_file(step_file(whole.dir, step, "interactive/optimizer.safetensors"),
                     step_file(r.dir, step, "interactive/optimizer.safetensors"));
}

// A folder with the name of a step's checkpoint is replaced by the new one. The process is killed
// at every call of the replacement.
static void test_replacing_without_swap(void **state) {
    struct run r;
    prepare(*state, &r, "replace");
    run_set(&r, "save.keep=2");
    for (int n = 1, killed = 1; killed; n += UNDER_SANITIZER ? 5 : 1) {
        int status;
        disarm();
        int64_t newest = newest_step(r.dir);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            disarm();
            fault.call = CALLS;
            fault.when = n;
            fault.with = KILL;
            step_with(&r, replacing_under_fire);
            _exit(r.saves == 1 && r.failed_saves == 0 ? 0 : 9);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        killed = WIFSIGNALED(status);
        assert_true(killed || WEXITSTATUS(status) == 0);
        int64_t after = newest_step(r.dir);
        assert_true(after == newest || after == newest + 1);
    }
    step_under_fire(&r);
    assert_int_equal(leftovers(r.dir), 0);
    assert_same_as_uninterrupted(*state, &r, "replace-never");
}

// The old folder cannot be removed, from any call on. Once the new one is in place, the save counts
// as successful.
static void test_replaced_one_cannot_be_removed(void **state) {
    struct run r;
    int said = 0;
    prepare(*state, &r, "stuck");
    for (int swaps = 0; swaps < 2; swaps++) {
        for (int n = 1, hit = 1; hit; n++) {
            disarm();
            fault.call = CALL_UNLINK;
            fault.when = n;
            fault.with = EIO;
            fault.from_then_on = true;
            fault.swaps = swaps;
            step_with(&r, replacing_under_fire);
            hit = fault.hit;
            assert_int_equal(r.rc, ERR_STOPPED);
            assert_int_equal(r.saves, 1);
            if (strstr(r.said, "W a replaced checkpoint could not be removed: ") != NULL) {
                assert_int_equal(r.failed_saves, 0);
                said |= 1 << swaps;
            }
        }
    }
    assert_int_equal(said, 3);
    disarm();
    step_under_fire(&r);
    assert_int_equal(leftovers(r.dir), 0);
    assert_same_as_uninterrupted(*state, &r, "stuck-never");
}

// A checkpoint that cannot be read now may be intact, so no older one is used instead.
static void test_unreadable_is_not_damaged(void **state) {
    static const int whys[] = {EACCES, EMFILE, EIO, ENFILE};
    struct run r;
    struct err e = {0};
    char path[PATH_MAX];
    int refused = 0;
    prepare(*state, &r, "unreadable");
    run_set(&r, "save.keep=2");
    step_under_fire(&r);
    const int64_t newest = newest_step(r.dir);
    for (int i = 0; i < 4; i++) {
        for (int n = 1, hit = 1; hit; n++) {
            disarm();
            fault.call = CALL_OPEN;
            fault.when = n;
            fault.with = whys[i];
            fault.armed = true;
            err_clear(&e);
            int rc = checkpoint_find_newest(r.dir, NULL, path, &e);
            hit = fault.hit;
            disarm();
            if (hit) {
                assert_failed(rc, ERR_IO, &e, "step-00000000|cannot be used|cannot open");
                assert_non_null(strstr(e.text, strerror(whys[i])));
                assert_string_equal(path, "");
                refused++;
            } else {
                assert_worked(rc, &e);
                assert_string_equal(path, step_file(r.dir, newest, ""));
            }
        }
    }
    assert_int_equal(refused, 4 * 4); // each of a checkpoint's files
    fault.reads = EIO;
    err_clear(&e);
    assert_failed(checkpoint_find_newest(r.dir, NULL, path, &e), ERR_IO, &e,
                  "model.safetensors|cannot read|Input/output error");
    r.hook = NULL;
    run_go(&r); // a run does not begin from another checkpoint either
    disarm();
    assert_failed(r.rc, ERR_IO, &r.e, "model.safetensors|cannot read");
    assert_true(newest_step(r.dir) == newest);
    // A missing file is different: the one before is used.
    assert_int_equal(unlink(step_file(r.dir, newest, "config.json")), 0);
    assert_true(newest_step(r.dir) == newest - 1);
}

// A power cut may lose what was not fsynced. Wherever the new checkpoint, or the removal of an old
// one, becomes visible, everything it depends on must have been fsynced.
static void test_order_of_fsyncs(void **state) {
    struct run r;
    prepare(*state, &r, "order");
    disarm();
    fault.logging = true;
    step_under_fire(&r);
    int published = -1, parent_synced = -1, first_removal = -1, folder_synced = -1;
    int last_write = -1, manifest = -1, data_in_place = -1;
    for (int i = 0; i < fault.n_events; i++) {
        const struct event *v = &fault.events[i];
        bool in_tmp = strstr(v->path, "step-000000003.tmp/") != NULL;
        if (v->call == CALL_WRITE && in_tmp) {
            last_write = i;
            // The next fsync of this file comes before its rename.
            for (int k = i; k < fault.n_events; k++) {
                const struct event *u = &fault.events[k];
                if (u->call == CALL_FSYNC && strcmp(u->path, v->path) == 0)
                    break;
                assert_false(u->call == CALL_RENAME && strcmp(u->path, v->path) == 0);
                assert_true(k + 1 < fault.n_events);
            }
        }
        if (v->call == CALL_RENAME && in_tmp && strstr(v->to, "manifest.json"))
            manifest = i;
        else if (v->call == CALL_RENAME && in_tmp)
            data_in_place = i;
        if (v->call == CALL_FSYNC && strstr(v->path, "checkpoints/step-000000003.tmp") && !in_tmp &&
            published < 0)
            folder_synced = i;
        if (v->call == CALL_RENAME && strstr(v->to, "checkpoints/step-000000003") && !in_tmp)
            published = i;
        if (v->call == CALL_FSYNC && published >= 0 && parent_synced < 0 &&
            strcmp(strrchr(v->path, '/'), "/checkpoints") == 0)
            parent_synced = i;
        if (v->call == CALL_RENAME && strstr(v->path, "step-000000002") && first_removal < 0)
            first_removal = i;
    }
    assert_true(data_in_place >= 0 && data_in_place < manifest); // the manifest is last
    assert_true(last_write < manifest);
    assert_true(manifest < folder_synced);
    assert_true(folder_synced < published);
    assert_true(published < parent_synced);
    assert_true(parent_synced < first_removal); // an older one is touched only after that
}

// A process that trains and is killed at random times, many times.
static void test_killed_at_any_time(void **state) {
    const struct scratch *s = *state;
    const int kills = UNDER_SANITIZER ? 25 : 60;
    struct run r;
    disarm();
    run_init(&r, s, "random");
    run_set(&r, UNDER_SANITIZER ? "steps=1000" : "steps=2000");
    run_set(&r, "save.every=3");
    run_set(&r, "eval.every=50");
    run_set(&r, "sched.kind=constant");
    int killed = 0;
    for (int i = 0; i < kills; i++) {
        int ends[2], status;
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            r.save_pipe = ends[1];
            run_go(&r);
            _exit(r.rc == 0 ? 0 : 9);
        }
        close(ends[1]);
        uint64_t most_us = UNDER_SANITIZER ? 80000 : 30000;
        usleep((useconds_t)(1000 + rng_below(3, 1, (uint64_t)i, most_us)));
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
        killed += WIFSIGNALED(status);
        // Every step that was reported as saved is there.
        int64_t step, said = 0;
        while (read(ends[0], &step, sizeof step) == sizeof step)
            said = step;
        close(ends[0]);
        assert_true(newest_step(r.dir) >= said);
    }
    int64_t reached = newest_step(r.dir);
    run_again(&r);
    assert_ran(&r);
    assert_int_equal(r.first, reached);
    assert_int_equal(leftovers(r.dir), 0);
    print_message("killed %d times by step %lld\n", killed, (long long)reached);
    assert_same_as_uninterrupted(s, &r, "random-never");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_call_may_fail_once),
        cmocka_unit_test(test_killed_at_every_call),
        cmocka_unit_test(test_killed_with_a_second_model),
        cmocka_unit_test(test_replacing_without_swap),
        cmocka_unit_test(test_replaced_one_cannot_be_removed),
        cmocka_unit_test(test_unreadable_is_not_damaged),
        cmocka_unit_test(test_order_of_fsyncs),
        cmocka_unit_test(test_killed_at_any_time),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
