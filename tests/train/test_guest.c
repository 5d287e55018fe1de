// test_guest.c - requests during a run. Evaluations change nothing, training samples are updates in
// their order, and the layout proof keeps their memory apart.
#include "host.h"

#include "program/check.h"
#include "train/hyper.h"
#include "train/schedule.h"

static void hybrid_init(struct run *r, struct host *h, const struct scratch *s, const char *name) {
    run_init(r, s, name);
    run_set(r, "goal=hybrid");
    run_set(r, "batch.accum=3");
    run_set(r, "interactive.seq=24"); // longer than the bulk run's
    run_set(r, "data.prefetch=0");    // no wait for data, so that the questions can be counted
    if (h == NULL)
        return;
    host_init(h, 24, 24);
    h->run = r;
    r->guests = &h->source;
}

// ---------------------------------------------------------------- evaluations

// With evaluations at every yield point, the run gives the same bits as without them. Every op is
// observed, so no live tensor is touched and every byte of the plan is known.
static void test_evaluations_leave_no_trace(void **state) {
    static const char *const settings[] = {"precision=fp32",      "precision=bf16",
                                           "recompute.mode=full", "optim.state=int8",
                                           "logits.chunk=8",      "noise.every=2"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct run plain, with;
        static struct host host;
        char name[32];
        snprintf(name, sizeof name, "plain-%zu", i);
        hybrid_init(&plain, NULL, *state, name);
        snprintf(name, sizeof name, "with-%zu", i);
        hybrid_init(&with, &host, *state, name);
        host.per_call = host.left = 2;
        run_set(&plain, settings[i]);
        run_set(&with, settings[i]);
        run_set(&plain, "eval.every=3");
        run_set(&with, "eval.every=3");
        run_alone_and_with(&plain, &with, 6);
        // 2 yield points in a step of 3 micro-batches, 3 batches in each of 2 validations, at least
        // one while the last checkpoint is written, and 6 ends of steps. There are 2 evaluations at
        // each.
        const int inside = 6 * 2 + 2 * 3 + 1;
        assert_true(host.n_inside >= 2 * inside && host.n_inside % 2 == 0);
        assert_int_equal(host.n, host.n_inside + 2 * 6);
        assert_int_equal(host.ended, 1);
        const struct guest_report *g = &with.result.guests;
        assert_true(g->on && g->updates == 0 && g->run_ns > 0);
        assert_int_equal(g->all.answered, host.n);
        assert_int_equal(g->kinds[GUEST_EVALUATE].p50.n, host.n);
        assert_int_equal(g->kinds[GUEST_TRAIN].p50.n, 0);
        // Weights do not change within a step, so all evaluations of a step have the same loss.
        // Another step has another loss.
        assert_true(host.answers[0].loss == host.answers[3].loss);
        assert_true(host.answers[0].loss != host.answers[6].loss);
        assert_int_equal(host.answers[0].step, 0);
        assert_int_equal(host.answers[4].step, 1); // between the steps
    }
}

// A step without yield points. A request that is answered inside it is answered while it is saved
// or while it waits for data.
static void inside_init(struct run *r, struct host *h, const struct scratch *s, const char *name) {
    hybrid_init(r, h, s, name);
    run_set(r, "batch.accum=1");
    run_set(r, "steps=4");
    if (h == NULL)
        return;
    h->only_inside = true;
    h->per_call = h->left = 1;
}

// Requests between the tensors of a checkpoint. The checkpoint is the same as that of a run without
// requests.
static void test_evaluations_while_saving(void **state) {
    struct run plain, with;
    static struct host host;
    inside_init(&plain, NULL, *state, "save-plain");
    inside_init(&with, &host, *state, "save-with");
    run_set(&plain, "save.every=2");
    run_set(&with, "save.every=2");
    run_alone_and_with(&plain, &with, 4);
    assert_same_tensors(plain.dir, with.dir, 2);
    int first = 0;
    while (first < host.n && host.answers[first].step == 2)
        first++;
    assert_true(first > 0 && host.n > first);
    assert_int_equal(with.saves, 2);
    for (int i = 0; i < host.n; i++) {
        assert_int_equal(host.answers[i].step, i < first ? 2 : 4);
        assert_true(host.answers[i].loss == host.answers[i < first ? 0 : first].loss);
    }
    assert_true(host.answers[0].loss != host.answers[first].loss);
}

// However many requests arrive, a save takes at most twice its own time plus one queue of requests.
// The reported time is the save's own.
static void test_a_save_is_not_held_up(void **state) {
    struct run r;
    static struct host host;
    uint64_t longest_ns = 0;
    inside_init(&r, &host, *state, "save-crowd");
    run_set(&r, "save.every=1");
    host.per_call = host.left = 1 << 30;
    run_go(&r);
    assert_ran(&r);
    assert_int_equal(r.saves, 4);
    for (int i = 0; i < host.n; i++)
        longest_ns = host.answers[i].run_ns > longest_ns ? host.answers[i].run_ns : longest_ns;
    assert_true(r.result.guests.run_ns <=
                r.result.save_ns + 4 * (uint64_t)r.knobs.interactive_queue * longest_ns);
    assert_true(r.result.save_ns + r.result.guests.run_ns <= r.result.wall_ns);
}

// An evaluation that fails ends the run, but the checkpoint is written. A stop request does not
// wait for evaluations.
static void test_saving_ends_well(void **state) {
    struct run r, stopped;
    static struct host host, other;
    inside_init(&r, &host, *state, "save-bad-token");
    run_set(&r, "save.every=2");
    host.tokens[3] = 1 << 20;
    run_go(&r);
    assert_int_not_equal(r.rc, 0);
    assert_non_null(strstr(r.e.text, "a request to evaluate"));
    assert_int_equal(host.n, 1);
    assert_int_equal(r.saves, 1);
    assert_int_equal(r.failed_saves, 0);
    assert_int_equal(checkpoint_verify(step_file(r.dir, 2, ""), NULL, NULL), 0);
    inside_init(&stopped, &other, *state, "save-stopped");
    stopped.stop_at = 2;
    run_go(&stopped);
    assert_failed(stopped.rc, ERR_STOPPED, &stopped.e, "stopped on request after step 2");
    assert_int_equal(stopped.saves, 1);
    assert_int_equal(other.n, 0);
}

// Requests while a step waits for its data, with and without prefetch.
static void test_evaluations_while_data_comes(void **state) {
    struct run plain, with[2];
    static struct host host;
    inside_init(&plain, NULL, *state, "data-plain");
    run_go(&plain);
    assert_ran(&plain);
    for (int prefetch = 0; prefetch < 2; prefetch++) {
        struct run *r = &with[prefetch];
        inside_init(r, &host, *state, prefetch ? "data-ahead" : "data-now");
        run_set(r, prefetch ? "data.prefetch=1" : "data.prefetch=0");
        run_set(r, "data.source_rate=2000");
        run_set(r, "save.every=0");
        run_set(r, "save.last=false");
        run_go(r);
        assert_ran(r);
        assert_true(host.n > 0);
        assert_same_losses(&plain, r, 4);
        // Time spent in requests does not count as waiting for data.
        assert_true(r->data_wait_ns > 0 && r->source_wait_ns > 0);
        assert_true(r->data_wait_ns + r->result.guests.run_ns <= r->step_ns);
        if (!prefetch)
            assert_true(r->source_wait_ns + r->result.guests.run_ns <= r->step_ns);
    }
}

// The answer is the same loss that validation gives for the sequence.
static int take_validation(struct host *h, const struct run *r) {
    struct dataset *d;
    struct err e = {0};
    const struct shard_listener quiet = {0};
    assert_worked(dataset_open_knobs(&d, &r->knobs, r->knobs.model, 0, &quiet, &e), &e);
    void *scratch = malloc(dataset_scratch_bytes(d));
    assert_non_null(scratch);
    dataset_scratch_clear(d, scratch);
    const int64_t T = r->knobs.seq;
    for (int64_t b = 0; b < r->knobs.batch_micro; b++) {
        const struct dataset_window w = {h->tokens + b * T, h->targets + b * T,
                                         h->positions + b * T, h->starts + b * T};
        assert_worked(dataset_fetch(d, SPLIT_VALIDATION, (uint64_t)b, scratch, &w, &e), &e);
    }
    free(scratch);
    dataset_close(d);
    return (int)(r->knobs.batch_micro * T);
}

static void test_answers_are_validations(void **state) {
    struct run r;
    static struct host host;
    hybrid_init(&r, &host, *state, "answers");
    run_set(&r, "interactive.seq=0"); // 0: the length is seq
    run_set(&r, "interactive.micro=2");
    run_set(&r, "steps=4");
    run_set(&r, "eval.every=4");
    run_set(&r, "eval.batches=1");
    host.rows = take_validation(&host, &r);
    host.per_call = host.left = 1;
    run_go(&r);
    assert_ran(&r);
    const struct guest_answer *last = &host.answers[host.n - 1];
    assert_int_equal(last->step, 4);
    assert_true(last->loss == r.eval.loss);
}

// ---------------------------------------------------------------- training samples

static void test_training_samples_are_updates(void **state) {
    struct run plain, with, again;
    static struct host host, same;
    hybrid_init(&plain, NULL, *state, "bulk");
    hybrid_init(&with, &host, *state, "mixed");
    hybrid_init(&again, &same, *state, "mixed-again");
    host.train_after = same.train_after = 2;
    same.per_call = same.left = 1; // evaluations in between change nothing
    run_go(&plain);
    run_go(&with);
    run_go(&again);
    assert_ran(&plain);
    assert_ran(&with);
    assert_ran(&again);
    assert_int_equal(host.n_train, 3);
    assert_int_equal(host.n, 3);
    assert_int_equal(with.result.state.guest_updates, 3);
    assert_int_equal(with.result.guests.updates, 3);
    // The first two steps are as without requests. After them the sample has been learned, too.
    assert_same_losses(&plain, &with, 2);
    assert_true(plain.losses[2] != with.losses[2]);
    assert_same_losses(&with, &again, 6);
    assert_same_tensors(with.dir, again.dir, 6);
    assert_true(host.answers[2].loss < host.answers[0].loss);
    for (int i = 0; i < 6; i++) // the schedule counts steps, not samples
        assert_true(with.lrs[i] == plain.lrs[i]);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(host.answers[i].step, 2 * (i + 1));
        assert_true(host.answers[i].lr == schedule_lr(&with.knobs, 2 * (i + 1)));
        assert_true(host.answers[i].grad_norm > 0 && !host.answers[i].skipped);
    }
}

// Adam's bias correction counts samples as well as steps, and a checkpoint stores how many samples
// there were.
static void test_updates_are_counted(void **state) {
    struct run r;
    static struct host host;
    struct manifest m = {0};
    struct err e = {0};
    hybrid_init(&r, &host, *state, "counted");
    run_set(&r, "steps=3");
    host.train_after = 1;
    run_go(&r);
    assert_ran(&r);
    assert_int_equal(r.result.state.step, 3);
    assert_int_equal(r.result.state.guest_updates, 3);
    assert_int_equal(hyper_updates(&r.result.state), 6);
    assert_worked(manifest_read(&m, step_file(r.dir, 3, MANIFEST_NAME), &e), &e);
    assert_int_equal(m.state.guest_updates, 3);
    manifest_free(&m);
}

// A run that is stopped and resumed, with samples before and after, ends with the same bits.
static void test_resumes_to_the_bit(void **state) {
    struct run whole, part;
    static struct host host, first, second;
    hybrid_init(&whole, &host, *state, "whole");
    hybrid_init(&part, &first, *state, "part");
    // Its rounding uses random draws that depend on the step and the sample.
    run_set(&whole, "optim.state=bf16");
    run_set(&part, "optim.state=bf16");
    host.train_after = first.train_after = 1;
    run_go(&whole);
    assert_ran(&whole);
    part.stop_at = 3;
    run_go(&part);
    assert_failed(part.rc, ERR_STOPPED, &part.e, "stopped on request after step 3");
    assert_int_equal(part.result.state.guest_updates, 3);
    host_init(&second, 24, 24);
    second.run = &part;
    second.train_after = 1;
    part.guests = &second.source;
    run_again(&part);
    assert_ran(&part);
    assert_int_equal(part.result.state.guest_updates, 6);
    assert_same_tensors(whole.dir, part.dir, 6);
}

// ---------------------------------------------------------------- failures

static int refuse_begin(void *arg, struct err *e) {
    ((struct host *)arg)->begun++;
    return err_set(e, ERR_IO, "no socket today");
}

static void test_a_source_that_fails(void **state) {
    struct run r;
    static struct host host;
    hybrid_init(&r, &host, *state, "refused");
    host.source.begin = refuse_begin;
    run_go(&r);
    assert_failed(r.rc, ERR_IO, &r.e, "no socket today");
    assert_int_equal(host.ended, 1); // to undo what `begin` did
    assert_int_equal(r.starts, 0);   // observers have written nothing
    assert_int_equal(r.steps, 0);
}

// A token outside the vocabulary is an error of the source. The run ends with a message, and the
// request receives it too.
static void test_a_turn_that_fails(void **state) {
    struct run r;
    static struct host host;
    hybrid_init(&r, &host, *state, "bad-token");
    host.tokens[3] = 1 << 20;
    host.per_call = host.left = 1;
    run_go(&r);
    assert_int_not_equal(r.rc, 0);
    assert_non_null(strstr(r.e.text, "a request to evaluate"));
    assert_int_equal(host.n, 1);
    assert_int_equal(host.answers[0].rc, r.rc);
    assert_int_equal(host.ended, 1);
}

// ---------------------------------------------------------------- memory

static void plan(struct at_work *s, const struct run *r, bool hybrid) {
    struct err e = {0};
    const struct plan_options o = {.knobs = &r->knobs,
                                   .programs = {PLAN_TRAIN, PLAN_EVAL,
                                                hybrid ? PLAN_GUEST_EVAL : NULL,
                                                hybrid ? PLAN_GUEST_TRAIN : NULL},
                                   .real = DTYPE_F32};
    assert_worked(at_work_plan(s, &o, &e), &e);
}

static void test_plan_holds_gradients(void **state) {
    struct run r;
    struct at_work s, bulk;
    hybrid_init(&r, NULL, *state, "plan");
    plan(&bulk, &r, false);
    plan(&s, &r, true);
    const struct program *p = plan_program(&s.plan, PLAN_TRAIN);
    uint64_t gradients = 0, named = 0;
    for (int i = 0; i < p->n_tensors; i++)
        if (p->tensors[i].cls == CLASS_GRADIENT && p->tensors[i].root < 0)
            gradients += p->tensors[i].bytes;
    assert_int_equal(bulk.plan.layout.held_bytes, 0);
    assert_int_equal(p->held_by_class[CLASS_GRADIENT], gradients);
    assert_true(s.plan.layout.held_bytes >= gradients);
    for (int c = 0; c < CLASS_COUNT; c++)
        named += s.plan.layout.by_class[c];
    assert_int_equal(named + s.plan.layout.slack_bytes, s.plan.layout.arena_bytes);
    // Keeping gradients for the guest costs almost nothing if the bulk program needs the most
    // memory: its gradients are alive together with its activations anyway.
    assert_true((double)s.plan.layout.arena_bytes <= 1.05 * (double)bulk.plan.layout.arena_bytes);
    at_work_close(&s);
    at_work_close(&bulk);
    // Without accumulation a step has no yield point, and nothing is kept for a guest.
    run_set(&r, "batch.accum=1");
    plan(&s, &r, true);
    assert_int_equal(s.plan.layout.held_bytes, 0);
    at_work_close(&s);
}

// The proof can fail: a guest's tensor is moved onto a gradient, then onto the sums of the step.
static void test_proof_can_fail(void **state) {
    struct run r;
    struct at_work s;
    hybrid_init(&r, NULL, *state, "proof");
    plan(&s, &r, true);
    struct program *set[2] = {plan_program(&s.plan, PLAN_TRAIN),
                              plan_program(&s.plan, PLAN_GUEST_EVAL)};
    struct program *train = set[0], *guest = set[1];
    struct err e = {0};
    assert_worked(check_guests(set, 2, &e), &e);
    int gradient = -1, activation = -1;
    for (int i = 0; i < train->n_tensors; i++)
        if (train->tensors[i].cls == CLASS_GRADIENT && train->tensors[i].root < 0)
            gradient = i;
    for (int i = 0; i < guest->n_tensors; i++)
        if (guest->tensors[i].life == LIFE_SEGMENT && guest->tensors[i].root < 0)
            activation = i;
    uint64_t *moved = &guest->tensors[activation].offset[0], was = *moved;
    *moved = train->tensors[gradient].offset[0] + train->tensors[gradient].bytes - 1;
    assert_failed(check_guests(set, 2, &e), ERR_INTERNAL, &e,
                  "of the guest 'interactive.eval' shares bytes with|which 'train' needs");
    *moved = was;
    moved = &guest->tensors[program_find(guest, NAME_GUEST NAME_RESULTS)].offset[0];
    was = *moved;
    *moved = train->tensors[program_find(train, NAME_RESULTS)].offset[0];
    assert_failed(check_guests(set, 2, &e), ERR_INTERNAL, &e, "'out.results'");
    *moved = was;
    err_clear(&e);
    assert_worked(check_guests(set, 2, &e), &e);
    at_work_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_evaluations_leave_no_trace),
        cmocka_unit_test(test_evaluations_while_saving),
        cmocka_unit_test(test_a_save_is_not_held_up),
        cmocka_unit_test(test_saving_ends_well),
        cmocka_unit_test(test_evaluations_while_data_comes),
        cmocka_unit_test(test_answers_are_validations),
        cmocka_unit_test(test_training_samples_are_updates),
        cmocka_unit_test(test_updates_are_counted),
        cmocka_unit_test(test_resumes_to_the_bit),
        cmocka_unit_test(test_a_source_that_fails),
        cmocka_unit_test(test_a_turn_that_fails),
        cmocka_unit_test(test_plan_holds_gradients),
        cmocka_unit_test(test_proof_can_fail),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
