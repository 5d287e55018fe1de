// test_checkpoint.c - checkpoints on disk: what is written, what is kept and what is refused. Every
// kind of damage must be found, and the damaged checkpoint skipped.
#include "harness.h"

#include "base/rng.h"
#include "model/load.h"

#include <dirent.h>
#include <errno.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <fcntl.h>

// The names in run/checkpoints, sorted and joined by spaces.
struct joined {
    char text[1024];
};

static int join_name(void *arg, const char *name) {
    struct joined *j = arg;
    size_t n = strlen(j->text);
    snprintf(j->text + n, sizeof j->text - n, "%s%s", n ? " " : "", name);
    return 0;
}

static struct joined listing(const char *run) {
    struct joined j = {""};
    struct err e = {0};
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/checkpoints", run);
    assert_worked(file_list_dir(path, join_name, &j, &e), &e);
    return j;
}

static void test_layout_and_keep(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct err e = {0};
    run_init(&r, s, "keep");
    run_set(&r, "save.every=1");
    run_set(&r, "save.keep=3");
    run_go(&r);
    assert_ran(&r);
    assert_int_equal(r.saves, 6);
    assert_string_equal(listing(r.dir).text, "step-000000004 step-000000005 step-000000006");
    // The folder is a model: it opens as one, with the same shape and weights.
    struct model_shape a, b;
    bool folder;
    assert_worked(model_shape_open(&a, s->nano, &folder, &e), &e);
    assert_worked(model_shape_open(&b, step_file(r.dir, 6, ""), &folder, &e), &e);
    assert_true(folder);
    memcpy(b.name, a.name, sizeof a.name);
    assert_int_equal(a.width, b.width);
    assert_int_equal(a.layers, b.layers);
    struct weights *w;
    struct model_param p;
    assert_worked(weights_open(&w, step_file(r.dir, 6, ""), &e), &e);
    assert_int_equal(weights_count(w), model_param_count(&a));
    for (int64_t i = 0; model_param_at(&a, i, &p); i++)
        assert_non_null(weights_find_param(w, &a, &p, &e));
    weights_close(w);
    // The estimate is an upper bound, and not a wild one.
    struct at_work work;
    struct plan_options so = {.knobs = &r.knobs, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    assert_worked(at_work_plan(&work, &so, &e), &e);
    uint64_t total = 0, bytes;
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "config.json",
                                        "manifest.json"};
    for (int i = 0; i < 4; i++) {
        assert_worked(file_size(step_file(r.dir, 6, names[i]), &bytes, &e), &e);
        total += bytes;
    }
    assert_true(checkpoint_estimate_bytes(&work.plan) >= total);
    assert_true(checkpoint_estimate_bytes(&work.plan) < total + 64 * 1024);
    at_work_close(&work);
    // From now on fewer are kept.
    run_set(&r, "save.keep=1");
    run_set(&r, "steps=7");
    run_again(&r);
    assert_ran(&r);
    assert_string_equal(listing(r.dir).text, "step-000000007");
    char path[PATH_MAX];
    assert_worked(checkpoint_find_newest(r.dir, NULL, path, &e), &e);
    assert_string_equal(path, step_file(r.dir, 7, ""));
    assert_worked(checkpoint_find_newest(s->dir, NULL, path, &e), &e);
    assert_string_equal(path, "");
}

// A run with checkpoints 2, 4 and 6, and a run to step 8 that was never interrupted.
static void make_history(const struct scratch *s, struct run *r, const char *name) {
    run_init(r, s, name);
    run_set(r, "save.every=2");
    run_set(r, "save.keep=3");
    run_set(r, "steps=8");
    r->stop_at = 6;
    run_go(r);
    assert_int_equal(r->rc, ERR_STOPPED);
}

static void flip_bit(const char *path, uint64_t bit) {
    int fd = open(path, O_RDWR);
    unsigned char byte;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)(bit / 8)), 1);
    byte ^= (unsigned char)(1u << bit % 8);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)(bit / 8)), 1);
    close(fd);
}

static const char *const all_names[] = {"model.safetensors", "optimizer.safetensors", "config.json",
                                        "manifest.json"};

static void test_every_flipped_bit_is_seen(void **state) {
    struct run r;
    struct err e = {0};
    make_history(*state, &r, "bits");
    const int each = UNDER_SANITIZER ? 100 : 1000;
    for (int f = 0; f < 4; f++) {
        char path[PATH_MAX];
        uint64_t bytes;
        snprintf(path, sizeof path, "%s", step_file(r.dir, 6, all_names[f]));
        assert_worked(file_size(path, &bytes, &e), &e);
        for (int i = 0; i < each; i++) {
            uint64_t bit = i == 0   ? 0
                           : i == 1 ? 8 * bytes - 1
                                    : rng_below(11, (uint64_t)f, (uint64_t)i, 8 * bytes);
            flip_bit(path, bit);
            err_clear(&e);
            int rc = checkpoint_verify(step_file(r.dir, 6, ""), NULL, &e);
            if (rc != ERR_FORMAT || strstr(e.text, all_names[f]) == NULL)
                fail_msg("bit %llu of %s: got %d: %s", (unsigned long long)bit, all_names[f], rc,
                         e.text);
            flip_bit(path, bit);
        }
    }
    assert_worked(checkpoint_verify(step_file(r.dir, 6, ""), NULL, &e), &e);
}

static void damage(const char *run, int64_t step, int how) {
    struct err e = {0};
    uint64_t bytes;
    switch (how) {
    case 0:
    case 1:
    case 2:
    case 3:
        assert_worked(file_size(step_file(run, step, all_names[how]), &bytes, &e), &e);
        flip_bit(step_file(run, step, all_names[how]), 4 * bytes);
        break;
    case 4: // truncated
        assert_worked(file_size(step_file(run, step, all_names[0]), &bytes, &e), &e);
        assert_int_equal(truncate(step_file(run, step, all_names[0]), (off_t)bytes - 1), 0);
        break;
    case 5: // emptied, as by a crash without fsync
        assert_int_equal(truncate(step_file(run, step, all_names[1]), 0), 0);
        break;
    case 6: // grown
        assert_worked(file_size(step_file(run, step, all_names[1]), &bytes, &e), &e);
        assert_int_equal(truncate(step_file(run, step, all_names[1]), (off_t)bytes + 1), 0);
        break;
    case 7:
        assert_int_equal(unlink(step_file(run, step, "manifest.json")), 0);
        break;
    case 8:
        assert_worked(file_write_atomic(step_file(run, step, "manifest.json"), "\x00\xff{", 3, &e),
                      &e);
        break;
    case 9:
        assert_int_equal(unlink(step_file(run, step, "model.safetensors")), 0);
        break;
    case 10: // another step's manifest, itself intact
        assert_int_equal(unlink(step_file(run, step, "manifest.json")), 0);
        assert_int_equal(
            link(step_file(run, step - 2, "manifest.json"), step_file(run, step, "manifest.json")),
            0);
        break;
    case 11: // a pipe in place of a file must not hang
        assert_int_equal(unlink(step_file(run, step, "config.json")), 0);
        assert_int_equal(mkfifo(step_file(run, step, "config.json"), 0600), 0);
        break;
    case 12: // an empty folder
        for (int i = 0; i < 4; i++)
            assert_int_equal(unlink(step_file(run, step, all_names[i])), 0);
        break;
    default:
        fail();
    }
}

static void test_damage_is_named_and_passed_over(void **state) {
    const struct scratch *s = *state;
    struct run whole, r;
    run_init(&whole, s, "undamaged");
    run_set(&whole, "steps=8");
    run_go(&whole);
    assert_ran(&whole);
    for (int how = 0; how <= 12; how++) {
        char name[32];
        snprintf(name, sizeof name, "damaged-%d", how);
        make_history(s, &r, name);
        damage(r.dir, 6, how);
        run_again(&r);
        assert_ran(&r);
        assert_int_equal(r.first, 4); // the checkpoint before the damaged one
        assert_non_null(strstr(r.said, "E the checkpoint '"));
        assert_non_null(strstr(r.said, "step-000000006' is damaged"));
        assert_non_null(strstr(r.said, "W the damaged checkpoint is kept as '"));
        // The step is saved again under its name, and the run ends as if nothing had been damaged.
        struct err e = {0};
        assert_worked(checkpoint_verify(step_file(r.dir, 6, ""), NULL, &e), &e);
        assert_same_tensors(whole.dir, r.dir, 8);
        assert_string_equal(listing(r.dir).text, "step-000000004 step-000000006 "
                                                 "step-000000006.damaged step-000000008");
    }
    // If two are damaged, the third is used. If all are damaged, the error says what to do, and the
    // run does not start over.
    make_history(s, &r, "damaged-two");
    damage(r.dir, 6, 0);
    damage(r.dir, 4, 7);
    run_again(&r);
    assert_ran(&r);
    assert_int_equal(r.first, 2);
    make_history(s, &r, "damaged-all");
    damage(r.dir, 6, 0);
    damage(r.dir, 4, 7);
    damage(r.dir, 2, 1);
    run_again(&r);
    assert_failed(r.rc, ERR_FORMAT, &r.e, "none of the 3 checkpoints|resume=false");
    assert_string_equal(listing(r.dir).text, "step-000000002 step-000000004 step-000000006");
    run_set(&r, "resume=false");
    run_again(&r);
    assert_ran(&r);
    assert_non_null(strstr(r.said, "W resume=false: moved 3 checkpoints of an earlier run to"));
    assert_same_tensors(whole.dir, r.dir, 8);
}

// A damaged checkpoint never causes a good one to be removed.
static void test_keep_counts_only_whole_ones(void **state) {
    struct run r;
    make_history(*state, &r, "keep-whole");
    damage(r.dir, 6, 7);
    run_set(&r, "save.keep=2");
    run_set(&r, "save.every=5");
    r.knobs.steps = 8;
    run_again(&r);
    assert_ran(&r); // from 4: saved 5 and 8
    assert_string_equal(listing(r.dir).text,
                        "step-000000005 step-000000006.damaged step-000000008");
    // The same for a damaged one that was not examined because a newer one is intact.
    make_history(*state, &r, "keep-whole-below");
    damage(r.dir, 4, 7);
    run_again(&r);
    assert_ran(&r);
    assert_string_equal(listing(r.dir).text,
                        "step-000000002 step-000000004 step-000000006 step-000000008");
}

static void overwrite(const char *path) {
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "\xde\xad\xbe\xef", 4, 4096), 4);
    close(fd);
}

// Damage that does not change sizes, at a step after the one where the run continues. What the run
// saves is kept even with the smallest save.keep, and the damaged one is set aside once.
static void test_damaged_is_set_aside(void **state) {
    struct run r;
    struct err e = {0};
    run_init(&r, *state, "aside");
    run_set(&r, "save.every=4");
    run_set(&r, "save.keep=2");
    run_set(&r, "steps=8");
    run_go(&r);
    assert_ran(&r);
    assert_string_equal(listing(r.dir).text, "step-000000004 step-000000008");
    overwrite(step_file(r.dir, 8, "model.safetensors"));
    // Finding the newest checkpoint changes nothing.
    run_set(&r, "steps=6");
    run_set(&r, "save.keep=1");
    run_set(&r, "save.every=0");
    run_set(&r, "save.last=false");
    run_again(&r);
    assert_ran(&r);
    assert_int_equal(r.first, 4);
    assert_string_equal(listing(r.dir).text, "step-000000004 step-000000008");
    run_set(&r, "save.last=true");
    run_again(&r);
    assert_ran(&r);
    assert_int_equal(r.first, 4);
    assert_non_null(strstr(r.said, "step-000000008' is damaged"));
    assert_string_equal(listing(r.dir).text, "step-000000006 step-000000008.damaged");
    assert_worked(checkpoint_verify(step_file(r.dir, 6, ""), NULL, &e), &e);
    // The run computes step 8 again, from the checkpoint of step 6. No more messages appear.
    run_set(&r, "save.keep=2");
    run_set(&r, "steps=8");
    run_again(&r);
    assert_ran(&r);
    assert_int_equal(r.first, 6);
    assert_null(strstr(r.said, "damaged"));
    assert_string_equal(listing(r.dir).text,
                        "step-000000006 step-000000008 step-000000008.damaged");
    // Damaged again: it is renamed to the next free name.
    overwrite(step_file(r.dir, 8, "optimizer.safetensors"));
    run_again(&r);
    assert_ran(&r);
    assert_int_equal(r.first, 6);
    assert_string_equal(
        listing(r.dir).text,
        "step-000000006 step-000000008 step-000000008.damaged step-000000008.damaged.1");
    // If an intact one lies above a damaged one, the run continues from the intact one.
    run_set(&r, "steps=12");
    run_again(&r);
    assert_ran(&r);
    overwrite(step_file(r.dir, 8, "optimizer.safetensors"));
    run_set(&r, "save.keep=1");
    run_set(&r, "steps=13");
    run_again(&r);
    assert_ran(&r);
    assert_int_equal(r.first, 12);
    assert_string_equal(listing(r.dir).text,
                        "step-000000008.damaged step-000000008.damaged.1 step-000000013");
}

// During the run a checkpoint of a later step appears, and it looks whole.
static void put_later_one(struct run *r, const struct train_save *save) {
    if (save != NULL || r->last != r->first + 1)
        return;
    assert_int_equal(mkdir(step_file(r->dir, 99, ""), 0777), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(
            link(step_file(r->dir, r->first, all_names[i]), step_file(r->dir, 99, all_names[i])),
            0);
}

static void test_what_was_just_saved_stays(void **state) {
    struct run r;
    struct err e = {0};
    make_history(*state, &r, "stays");
    struct knobs knobs = r.knobs;
    run_init(&r, *state, "stays");
    r.knobs = knobs;
    run_set(&r, "save.keep=1");
    r.hook = put_later_one;
    run_go(&r);
    assert_ran(&r);
    assert_string_equal(listing(r.dir).text, "step-000000008 step-000000099");
    assert_worked(checkpoint_verify(step_file(r.dir, 8, ""), NULL, &e), &e);
}

static void test_leftovers(void **state) {
    struct run r;
    struct err e = {0};
    make_history(*state, &r, "leftovers");
    static const char *const names[] = {"step-000000007.tmp", "step-000000002.old.tmp",
                                        "step-12.tmp", "step-000000009", "notes.tmp"};
    char path[PATH_MAX];
    for (int i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s/checkpoints/%s", r.dir, names[i]);
        assert_worked(file_make_dirs(path, &e), &e);
        strcat(path, "/model.safetensors");
        assert_worked(file_write_atomic(path, "x", 1, &e), &e);
    }
    run_set(&r, "steps=7");
    run_again(&r);
    assert_ran(&r);
    // Leftovers of haggle are gone and other files stay. A step without a manifest is damaged and
    // set aside.
    assert_string_equal(listing(r.dir).text, "notes.tmp step-000000004 step-000000006 "
                                             "step-000000007 step-000000009.damaged step-12.tmp");
    assert_non_null(strstr(r.said, "step-000000007.tmp', which a crash left unfinished"));
    assert_non_null(strstr(r.said, "step-000000009' is damaged"));
}

static void test_start_over(void **state) {
    struct run r;
    make_history(*state, &r, "over");
    run_set(&r, "resume=false");
    run_set(&r, "steps=2");
    for (int i = 1; i <= 2; i++) {
        run_again(&r);
        assert_ran(&r);
        assert_int_equal(r.first, 0);
        assert_string_equal(listing(r.dir).text, "step-000000002");
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/checkpoints.%d/step-000000002/manifest.json", r.dir, i);
        assert_true(file_exists(path));
    }
    // A run that does not save moves nothing.
    run_set(&r, "save.every=0");
    run_set(&r, "save.last=false");
    run_again(&r);
    assert_ran(&r);
    assert_string_equal(listing(r.dir).text, "step-000000002");
    assert_string_equal(r.said, "");
}

static void test_mismatches(void **state) {
    const struct scratch *s = *state;
    struct run r;
    char folder[320];
    make_history(s, &r, "mismatch");
    // Every knob that changes the mathematics is named. Another split of the batch does not.
    run_set(&r, "sched.kind=wsd");
    run_set(&r, "optim.beta2=0.99");
    run_set(&r, "batch.micro=1");
    run_set(&r, "batch.accum=2");
    run_set(&r, "save.keep=2");
    run_set(&r, "steps=7");
    run_again(&r);
    assert_ran(&r);
    assert_non_null(strstr(r.said, "W sched.kind was 'cosine' when step 6 was saved and is 'wsd'"));
    assert_non_null(strstr(r.said, "W optim.beta2 was '0.95' when step 6 was saved and is '0.99'"));
    assert_null(strstr(r.said, "batch."));
    assert_null(strstr(r.said, "save.keep"));
    run_set(&r, "batch.accum=3");
    run_set(&r, "seed=5");
    run_set(&r, "steps=8");
    run_again(&r);
    assert_ran(&r);
    assert_non_null(strstr(r.said, "W batch.accum was '2' when step 7"));
    assert_non_null(strstr(r.said, "W seed was '1'"));
    assert_non_null(strstr(r.said, "W the data has changed since")); // another seed
    // A model of another shape is refused, and the error describes both.
    snprintf(folder, sizeof folder, "%s/wider", s->dir);
    make_nano(folder, 24, POISON_NONE);
    snprintf(r.knobs.model, sizeof r.knobs.model, "%s", folder);
    run_again(&r);
    assert_failed(r.rc, ERR_MISMATCH, &r.e, "another model|width 16|width 24");
    assert_int_equal(r.steps, 0);
}

// A run with float64 weights cannot continue from float32 ones: the manifest fits, but the tensors
// do not.
static void test_other_types(void **state) {
    struct run r;
    struct err e = {0};
    struct at_work work;
    struct trainer *t;
    make_history(*state, &r, "types");
    struct plan_options so = {.knobs = &r.knobs, .programs = {PLAN_TRAIN}, .real = DTYPE_F64};
    const struct engine_options eo = {.reference = true};
    struct trainer_options to = {.stop = NULL};
    assert_worked(at_work_plan(&work, &so, &e), &e);
    assert_worked(at_work_open(&work, &eo, &e), &e);
    assert_worked(trainer_at_work(&t, &work, &to, &e), &e);
    assert_failed(trainer_run(t, NULL, &e), ERR_MISMATCH, &e, "model.safetensors|F32|F64");
    trainer_close(t);
    at_work_close(&work);
}

static int copy_bytes(struct backend *b, void *to, const void *from, uint64_t bytes,
                      struct err *e) {
    (void)b;
    (void)e;
    // Tensors are copied in pieces, so there is no second copy of a large one.
    assert_true(bytes <= 1 << 20);
    memcpy(to, from, bytes);
    return 0;
}

static int plenty(struct backend *b, uint64_t *free_bytes, uint64_t *total_bytes, struct err *e) {
    (void)e;
    *free_bytes = *total_bytes = b->info.memory_bytes;
    return 0;
}

// The same run on a backend whose memory the host may not touch. Tensors are copied in pieces, and
// the files and what is read back are the same.
static void run_on_device(struct run *r) {
    struct at_work work;
    struct trainer *t;
    struct plan_options so = {.knobs = &r->knobs, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    struct trainer_options to = {.observer = {.arg = r, .on_step = run_on_step}};
    assert_worked(at_work_plan(&work, &so, &r->e), &r->e);
    assert_worked(trainer_at_work(&t, &work, &to, &r->e), &r->e);
    assert_worked(at_work_start(&work, NULL, &r->e), &r->e);
    work.engine->backend->copy_in = work.engine->backend->copy_out = copy_bytes;
    work.engine->backend->memory = plenty;
    work.engine->backend->info.device = true;
    r->rc = trainer_run(t, NULL, &r->e);
    trainer_close(t);
    at_work_close(&work);
}

static void test_device_memory(void **state) {
    const struct scratch *s = *state;
    struct run host, device;
    char folder[320];
    snprintf(folder, sizeof folder, "%s/large", s->dir);
    make_nano(folder, 1024, POISON_NONE); // its embedding is 1.25 MiB
    run_init(&host, s, "host");
    run_init(&device, s, "device");
    snprintf(host.knobs.model, sizeof host.knobs.model, "%s", folder);
    snprintf(device.knobs.model, sizeof device.knobs.model, "%s", folder);
    host.knobs.steps = device.knobs.steps = 2;
    run_go(&host);
    assert_ran(&host);
    device.stop_at = 1;
    run_on_device(&device);
    assert_int_equal(device.rc, ERR_STOPPED);
    device.stop_at = 0;
    run_on_device(&device);
    assert_ran(&device);
    assert_same_tensors(host.dir, device.dir, 2);
}

static void test_one_process_at_a_time(void **state) {
    struct run r;
    char path[PATH_MAX];
    make_history(*state, &r, "locked");
    snprintf(path, sizeof path, "%s/checkpoints", r.dir);
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    run_again(&r);
    assert_failed(r.rc, ERR_USAGE, &r.e, "another process|run.dir");
    close(fd);
    run_again(&r);
    assert_ran(&r);
}

static void test_disk_space(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct err e = {0};
    struct at_work work;
    run_init(&r, s, "space");
    struct plan_options so = {.knobs = &r.knobs, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    assert_worked(at_work_plan(&work, &so, &e), &e);
    struct checkpoint_options co = {
        .run_dir = r.dir, .keep = INT64_C(1) << 40, .save = true, .resume = true};
    struct checkpoint_dir *d;
    assert_worked(checkpoint_dir_open(&d, &co, &e), &e);
    // 2^40 checkpoints never fit. The few that a run will write do.
    assert_failed(checkpoint_check_space(d, &work.plan, INT64_MAX, &e), ERR_IO, &e,
                  "free|the run needs|save.keep=1099511627776|KiB");
    assert_worked(checkpoint_check_space(d, &work.plan, 3, &e), &e);
    checkpoint_dir_close(d);
    at_work_close(&work);
}

static void test_run_dir_is_a_file(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct err e = {0};
    run_init(&r, s, "occupied");
    assert_worked(file_write_atomic(r.dir, "x", 1, &e), &e);
    run_go(&r);
    assert_failed(r.rc, ERR_IO, &r.e, "occupied");
}

// Saves that fail half way, because file sizes are limited. The message names the file, the old
// checkpoint is intact, training goes on, and the end of the run reports it.
static void failing_saves(struct run *r) {
    struct rlimit limit = {20000, 20000}; // in the middle of the first file
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        _exit(2);
    run_again(r);
    bool good = r->rc == ERR_IO && strstr(r->e.text, "step-000000009.tmp/model.safetensors") &&
                strstr(r->e.text, "the run ended at step 9") && r->steps == 3 &&
                r->failed_saves == 2 && r->saves == 0 &&
                strstr(r->said, "E the checkpoint of step 8") && r->result.end == TRAIN_DONE &&
                r->result.failed_saves == 2;
    if (!good)
        fprintf(stderr, "child: rc %d, %s\nsaid: %s\n", r->rc, r->e.text, r->said);
    _exit(good ? 0 : 1);
}

static void test_failing_saves(void **state) {
    struct run r;
    struct err e = {0};
    int status;
    make_history(*state, &r, "failing");
    run_set(&r, "steps=9");
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        failing_saves(&r);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_string_equal(listing(r.dir).text, "step-000000002 step-000000004 step-000000006");
    assert_worked(checkpoint_verify(step_file(r.dir, 6, ""), NULL, &e), &e);
    run_again(&r);
    assert_ran(&r);
    assert_int_equal(r.first, 6);
}

static void die_after_step_4(struct run *r, const struct train_save *save) {
    if (save == NULL && r->last == 4)
        raise(SIGKILL);
}

static int first_name(void *arg, const char *name) {
    char *out = arg;
    snprintf(out, 256, "%s", name);
    return 0;
}

// Checkpoints by time: after each step with the shortest period, never before the end with a long
// one, and in between with one that passes during the run. A run that continues from one ends with
// the same bits as a run that never saved.
static void test_saves_by_time(void **state) {
    struct run plain, often, crash;
    run_init(&plain, *state, "by-time-plain");
    run_set(&plain, "save.every=1h");
    run_go(&plain);
    assert_ran(&plain);
    assert_int_equal(plain.saves, 1); // the last one
    run_init(&often, *state, "by-time");
    run_set(&often, "save.every=1ns");
    run_go(&often);
    assert_ran(&often);
    assert_int_equal(often.saves, 6);
    assert_string_equal(listing(often.dir).text, "step-000000005 step-000000006"); // save.keep
    assert_same_tensors(plain.dir, often.dir, 6);
    run_init(&crash, *state, "by-time-crash");
    run_set(&crash, "save.every=1ns");
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        crash.hook = die_after_step_4;
        run_go(&crash);
        _exit(2); // did not die
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    run_again(&crash);
    assert_ran(&crash);
    assert_int_equal(crash.first, 3); // killed before step 4 was saved
    assert_same_tensors(plain.dir, crash.dir, 6);
}

// Half a second of steps with a period of 50 ms: some are saved, few enough.
static void test_saves_by_time_now_and_then(void **state) {
    struct run r;
    run_init(&r, *state, "by-time-some");
    run_set(&r, "save.every=50ms");
    run_set(&r, "steps=2000");
    run_set(&r, "time=500ms");
    run_go(&r);
    assert_ran(&r);
    assert_true(r.saves >= 2 && r.saves <= 11 && r.saves < r.steps);
}

static void cut_shard(struct run *r, const struct train_save *save) {
    if (save != NULL || r->last != 3)
        return;
    char shard[256];
    struct err e = {0};
    assert_worked(file_list_dir(r->knobs.data_cache, first_name, shard, &e), &e);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", r->knobs.data_cache, shard);
    assert_int_equal(truncate(path, 100), 0);
}

// Data that can no longer be read ends the run, but the weights are intact and are saved first.
static void test_data_is_lost(void **state) {
    const struct scratch *s = *state;
    struct run r, whole;
    struct err e = {0};
    char path[320], text[20000];
    snprintf(path, sizeof path, "%s/lost.txt", s->dir);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * i % 23 % 7);
    assert_worked(file_write_atomic(path, text, sizeof text, &e), &e);
    for (int eval = 0; eval < 2; eval++) {
        run_init(&r, s, eval ? "lost-eval" : "lost");
        snprintf(r.knobs.data_path, sizeof r.knobs.data_path, "%s", path);
        snprintf(r.knobs.data_cache, sizeof r.knobs.data_cache, "%s/%s-cache", s->dir,
                 eval ? "lost-eval" : "lost");
        run_set(&r, "data.prefetch=0");
        if (eval)
            run_set(&r, "eval.every=3"); // reads after the checkpoint of this step was due
        r.hook = cut_shard;
        run_go(&r);
        assert_failed(r.rc, ERR_MISMATCH, &r.e, ".shard|saved at step 3 of 6|the same command");
        assert_int_equal(r.result.end, TRAIN_FAILED);
        assert_int_equal(r.saves, 1);
        assert_worked(checkpoint_verify(step_file(r.dir, 3, ""), NULL, &e), &e);
        run_again(&r); // tokenizes again
        assert_ran(&r);
        assert_int_equal(r.first, 3);
        run_init(&whole, s, eval ? "lost-whole-eval" : "lost-whole");
        memcpy(whole.knobs.data_path, r.knobs.data_path, sizeof whole.knobs.data_path);
        run_go(&whole);
        assert_ran(&whole);
        assert_same_tensors(whole.dir, r.dir, 6);
    }
    // A run that saves nothing says so.
    run_init(&r, s, "lost-unsaved");
    snprintf(r.knobs.data_path, sizeof r.knobs.data_path, "%s", path);
    snprintf(r.knobs.data_cache, sizeof r.knobs.data_cache, "%s/lost-cache", s->dir);
    run_set(&r, "data.prefetch=0");
    run_set(&r, "save.every=0");
    run_set(&r, "save.last=false");
    r.hook = cut_shard;
    run_go(&r);
    assert_failed(r.rc, ERR_MISMATCH, &r.e, ".shard|Nothing was saved (save.every=0");
}

static void remove_run(struct run *r, const struct train_save *save) {
    struct err e = {0};
    if (save == NULL && r->last == 3)
        assert_worked(file_remove_tree(r->dir, &e), &e);
}

static void move_run(struct run *r, const struct train_save *save) {
    char to[sizeof r->dir + 8];
    snprintf(to, sizeof to, "%s-moved", r->dir);
    if (save == NULL && r->last == 3)
        assert_int_equal(rename(r->dir, to), 0);
}

// A file where the folder was: it cannot be made again.
static void block_run(struct run *r, const struct train_save *save) {
    struct err e = {0};
    remove_run(r, save);
    if (save == NULL && r->last == 3)
        assert_worked(file_write_atomic(r->dir, "x", 1, &e), &e);
}

// What was saved last is gone when the run ends.
static void remove_saved(struct run *r, const struct train_save *save) {
    struct err e = {0};
    if (save != NULL && save->step == 6 && r->saves == 1)
        assert_worked(file_remove_tree(r->dir, &e), &e);
}

// The folder of a run is removed or moved while it trains. The next save makes it again.
static void test_folder_is_gone(void **state) {
    struct run r, whole;
    run_init(&whole, *state, "gone-whole");
    run_go(&whole);
    assert_ran(&whole);
    for (int moved = 0; moved < 2; moved++) {
        run_init(&r, *state, moved ? "gone-moved" : "gone");
        run_set(&r, "save.every=2");
        r.hook = moved ? move_run : remove_run;
        run_go(&r);
        assert_ran(&r);
        assert_non_null(strstr(r.said, "/checkpoints' was removed or moved during the run"));
        assert_string_equal(listing(r.dir).text, "step-000000004 step-000000006");
        assert_same_tensors(whole.dir, r.dir, 6);
        // The new folder is locked as the old one was.
        assert_string_equal(r.result.checkpoint, step_file(r.dir, 6, ""));
    }
    run_init(&r, *state, "gone-blocked");
    run_set(&r, "save.every=2");
    r.hook = block_run;
    run_go(&r);
    assert_failed(r.rc, ERR_IO, &r.e, "ended at step 6|gone-blocked");
    assert_int_equal(r.saves, 1);
    assert_int_equal(r.failed_saves, 3); // of steps 4 and 6, and once more at the end
    assert_non_null(strstr(r.said, "There is no earlier checkpoint; training goes on"));
    assert_null(strstr(r.said, "intact"));
    assert_string_equal(r.result.checkpoint, ""); // nothing is said to be saved
    run_init(&r, *state, "gone-late");
    run_set(&r, "save.every=3");
    r.hook = remove_saved;
    r.stop_at = 6;
    run_go(&r);
    assert_int_equal(r.saves, 3);
    assert_string_equal(listing(r.dir).text, "step-000000006");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_and_keep),
        cmocka_unit_test(test_every_flipped_bit_is_seen),
        cmocka_unit_test(test_damage_is_named_and_passed_over),
        cmocka_unit_test(test_keep_counts_only_whole_ones),
        cmocka_unit_test(test_damaged_is_set_aside),
        cmocka_unit_test(test_what_was_just_saved_stays),
        cmocka_unit_test(test_leftovers),
        cmocka_unit_test(test_start_over),
        cmocka_unit_test(test_mismatches),
        cmocka_unit_test(test_other_types),
        cmocka_unit_test(test_device_memory),
        cmocka_unit_test(test_one_process_at_a_time),
        cmocka_unit_test(test_disk_space),
        cmocka_unit_test(test_run_dir_is_a_file),
        cmocka_unit_test(test_failing_saves),
        cmocka_unit_test(test_saves_by_time),
        cmocka_unit_test(test_saves_by_time_now_and_then),
        cmocka_unit_test(test_data_is_lost),
        cmocka_unit_test(test_folder_is_gone),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
