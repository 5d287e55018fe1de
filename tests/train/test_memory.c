// test_memory.c - memory to the byte, for random settings of every knob that changes a program or
// its memory. The planned bytes must equal what an independent observer sees written
// (exec/checking.c) and what the accountant was asked for. They must be hardly more than the
// largest sum of tensors that live at once. The observed run must train the same bits as the plain
// one.
//
// The knobs come from knob.def, so a new knob with the effect MEMORY is drawn without a change
// here. A setting that fails is printed, and HAGGLE_MEMORY_SETTING=n runs only number n.
#include "harness.h"

#include "base/rng.h"
#include "plan/second.h"
#include "program/walk.h"

enum { SETTINGS = 120, SETTINGS_SANITIZED = 16, SETTINGS_LONG = 1500, LINES_MOST = 16 };
enum { STEPS = 2, PROMPT = 3, GENERATED = 3, GENERATE_MOST = 64, GUEST_SEQ = 24 };
static const uint64_t SEED = 20;

// ---------------------------------------------------------------- a random setting

struct draw {
    uint64_t number, at;
};

// [0, n)
static uint64_t below(struct draw *d, uint64_t n) {
    return rng_below(SEED, d->number, d->at++, n);
}

static int64_t between(struct draw *d, int64_t least, int64_t most) {
    return least + (int64_t)below(d, (uint64_t)(most - least) + 1);
}

static void draw_shape(struct draw *d, struct model_shape *s) {
    static const char *const names[] = {"gpt2-124m", "tiny", "qwen2-0.5b", "qwen3-0.6b"};
    struct err e = {0};
    assert_worked(model_shape_builtin(s, names[below(d, 4)], &e), &e);
    s->vocab = between(d, 257, 400); // the data consists of bytes
    s->layers = between(d, 1, 4);
    s->heads = between(d, 1, 4);
    s->kv_heads = s->family == FAMILY_GPT2 || below(d, 2) ? s->heads : 1;
    s->head_dim = 2 * between(d, 2, 10);
    s->width = s->family == FAMILY_GPT2 ? s->heads * s->head_dim : between(d, 10, 70);
    s->ffn = between(d, 8, 120);
    s->max_positions = between(d, 12, 80);
    s->tied = s->family == FAMILY_GPT2 || below(d, 2);
    s->bos_id = s->eos_id = 0;
    assert_worked(model_shape_check(s, &e), &e);
}

// The largest value of integers here: the model is small, and two steps must not take long. A knob
// that is not listed gets at most 8 more than its least value.
static int64_t most_of(int id, const struct model_shape *s) {
    switch (id) {
    case KNOB_seq:
        return s->max_positions < 20 ? s->max_positions : 20;
    case KNOB_batch_accum:
        return 4;
    case KNOB_logits_chunk:
        return 60;
    case KNOB_interactive_seq:
        return s->max_positions < GUEST_SEQ ? s->max_positions : GUEST_SEQ;
    case KNOB_batch_micro:
    case KNOB_interactive_micro:
    case KNOB_data_workers:
        return 3;
    case KNOB_threads:
        return 2;
    default:
        return knob_info(id)->least_int + 8;
    }
}

static void draw_knob(struct draw *d, struct knobs *k, int id, const struct model_shape *s) {
    static const double factors[] = {0, 0.01, 0.3, 1, 3, 100};
    static const uint64_t sizes[] = {0, 4096, 1 << 16, 1 << 20};
    const struct knob_info *info = knob_info(id);
    void *field = (char *)k + info->offset;
    char text[64];
    struct err e = {0};
    int64_t most = info->type == KNOB_INT ? most_of(id, s) : 0;
    double value;
    uint64_t size;
    switch (info->type) {
    case KNOB_INT:
        most = most < info->most_int ? most : info->most_int;
        snprintf(text, sizeof text, "%lld", (long long)between(d, info->least_int, most));
        break;
    case KNOB_FLOAT:
        value = *(double *)field * factors[below(d, 6)];
        value = fmin(fmax(value, info->least_float), info->most_float);
        snprintf(text, sizeof text, "%.17g", value);
        break;
    case KNOB_BOOL:
        snprintf(text, sizeof text, "%s", below(d, 2) ? "true" : "false");
        break;
    case KNOB_CHOICE:
        snprintf(text, sizeof text, "%s", info->choices[below(d, (uint64_t)info->n_choices)]);
        break;
    case KNOB_BYTES:
        size = sizes[below(d, 4)];
        size = size < info->least_u64 ? info->least_u64 : size;
        snprintf(text, sizeof text, "%llu",
                 (unsigned long long)(size < info->most_u64 ? size : info->most_u64));
        break;
    default: // texts and durations keep their default
        return;
    }
    assert_worked(knobs_set_at(k, id, text, SET_BY_COMMAND_LINE, &e), &e);
}

// Texts, and numbers that depend on one another: draw_chosen draws them.
static bool is_chosen(int id) {
    const char *name = knob_info(id)->name;
    return strncmp(name, "lora.", 5) == 0 || strncmp(name, "train.", 6) == 0;
}

static bool is_drawn(int id) {
    if (is_chosen(id))
        return false;
    // Records of interactive.data are not tensors (tests/serve checks their bytes). A second model
    // is drawn as knobs, not as a recipe file.
    if (id == KNOB_model || id == KNOB_device || id == KNOB_interactive_data ||
        id == KNOB_interactive_recipe)
        return false;
    // One rank runs here, on the CPU. tests/train/test_ranks.c observes the memory of several.
    static const char *const others[] = {"ranks", "parallel.", "zero.", "pipe.", "comm.", "cuda."};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strncmp(knob_info(id)->name, others[i], strlen(others[i])) == 0)
            return false;
    return knob_info(id)->flags & (KNOB_MEMORY | KNOB_FACTOR) || id == KNOB_threads ||
           id == KNOB_data_workers;
}

// Which weights train. A rank that is too large for a layer is refused, so it is drawn smaller.
static void draw_chosen(struct draw *d, struct knobs *k, const struct model_shape *s) {
    static const char *const targets[] = {"all", "attention", "mlp"},
                             *const also[] = {"", "", "norm,ln_f", "mlp"},
                             *const frozen[] = {"", "", "layers.0,h.0", "embed_tokens,wte"};
    struct adapter a = {.rank = between(d, 1, 8), .alpha = 16};
    while (adapter_check(&a, s, NULL) != 0)
        a.rank--;
    k->lora_rank = below(d, 2) ? a.rank : 0;
    k->lora_dropout = below(d, 2) ? 0.25 : 0;
    snprintf(k->lora_targets, sizeof k->lora_targets, "%s", targets[below(d, 3)]);
    // Names of the other family are no names here.
    const bool gpt2 = s->family == FAMILY_GPT2;
    const char *list = also[below(d, 4)], *comma = strchr(list, ',');
    if (k->lora_rank > 0)
        snprintf(k->train_also, sizeof k->train_also, "%.*s",
                 gpt2 || !comma ? 10 : (int)(comma - list), gpt2 && comma ? comma + 1 : list);
    list = frozen[below(d, 4)], comma = strchr(list, ',');
    if (!strstr(k->train_also, "mlp"))
        snprintf(k->train_freeze, sizeof k->train_freeze, "%.*s",
                 gpt2 || !comma ? 10 : (int)(comma - list), gpt2 && comma ? comma + 1 : list);
}

struct setting {
    uint64_t number;
    struct knobs knobs;
    bool has_eval, has_generate, reference;
    int64_t generate_batch, generate_seq, generate_rows;
    bool has_second; // in a hybrid run: another model answers
    struct knobs second;
};

// Read as bytes, like the built-in corpus: every model here has ids for these.
static void use_text(struct knobs *k, const struct scratch *scratch) {
    char text[3000], path[300];
    struct err e = {0};
    memset(text, 't', sizeof text);
    snprintf(path, sizeof path, "%.250s/text.txt", scratch->dir);
    assert_worked(file_write_atomic(path, text, sizeof text, &e), &e);
    snprintf(k->data_path, sizeof k->data_path, "%s", path);
    snprintf(k->data_cache, sizeof k->data_cache, "none");
    snprintf(k->tokenizer, sizeof k->tokenizer, "bytes");
}

// The knobs that second_knobs would make from a recipe.
static void draw_second(struct draw *d, struct setting *out, const struct scratch *scratch) {
    struct knobs *k = &out->second;
    const struct knobs *bulk = &out->knobs;
    struct model_shape shape;
    struct err e = {0};
    bool is_dir;
    knobs_init(k);
    snprintf(k->model, sizeof k->model, "%s", scratch->nano);
    assert_worked(model_shape_open(&shape, k->model, &is_dir, &e), &e);
    for (int id = 0; id < KNOB_COUNT; id++)
        if (is_drawn(id))
            draw_knob(d, k, id, &shape);
    draw_chosen(d, k, &shape);
    k->goal = GOAL_BULK;
    k->threads = bulk->threads;
    k->interactive_micro = k->batch_micro = bulk->interactive_micro;
    k->interactive_queue = bulk->interactive_queue;
    k->interactive_seq = bulk->interactive_seq;
    k->seq = bulk->interactive_seq > 0 ? bulk->interactive_seq : GUEST_SEQ;
    k->batch_accum = 1;
    k->noise_every = 0;
    k->scale_start = 1;
}

static void draw_setting(struct setting *out, uint64_t number, const struct scratch *scratch) {
    static const char *const folders[] = {"gpt2-odd", "llama-bias", "llama3-scaled", "qwen2",
                                          "qwen3"};
    struct draw d = {.number = number};
    struct knobs *k = &out->knobs;
    struct model_shape shape;
    struct err e = {0};
    bool is_dir;
    memset(out, 0, sizeof *out);
    out->number = number;
    knobs_init(k);
    if (below(&d, 3) == 0) {
        snprintf(k->model, sizeof k->model, "%s/tests/reference/%s", HAGGLE_SOURCE_DIR,
                 folders[below(&d, 5)]);
        assert_worked(model_shape_open(&shape, k->model, &is_dir, &e), &e);
    } else {
        snprintf(k->model, sizeof k->model, "%.200s/random", scratch->dir);
        draw_shape(&d, &shape);
        write_model(k->model, &shape, POISON_NONE);
    }
    for (int id = 0; id < KNOB_COUNT; id++)
        if (is_drawn(id))
            draw_knob(&d, k, id, &shape);
    draw_chosen(&d, k, &shape);
    if (below(&d, 2)) // data that repeats, so that its windows can be kept
        use_text(k, scratch);
    k->device = DEVICE_CPU;
    k->steps = STEPS;
    k->scale_start = 1; // two steps are too few to find a scale, and a run without an update fails
    k->save_every = 0;
    k->save_last = false;
    k->eval_batches = 2;
    out->has_eval = below(&d, 2);
    k->eval_every = out->has_eval;
    out->has_generate = below(&d, 2);
    out->generate_batch = between(&d, 1, 3);
    out->generate_seq = between(&d, PROMPT + GENERATED + 1, GENERATE_MOST);
    out->generate_rows = between(&d, 0, 3 * PROMPT);
    if (out->generate_seq > shape.max_positions)
        out->generate_seq = shape.max_positions;
    out->reference = below(&d, 5) == 0;
    out->has_second = k->goal == GOAL_HYBRID && below(&d, 2);
    if (out->has_second)
        draw_second(&d, out, scratch);
}

static void print_knobs(const struct knobs *k) {
    char value[KNOB_VALUE_BYTES], initial[KNOB_VALUE_BYTES];
    for (int id = 0; id < KNOB_COUNT; id++)
        if (strcmp(knobs_value(k, id, value), knob_default(id, initial)) != 0)
            print_message(" %s=%s", knob_info(id)->name, value);
}

static void print_setting(const struct setting *s) {
    print_message("setting %llu (HAGGLE_MEMORY_SETTING):", (unsigned long long)s->number);
    print_knobs(&s->knobs);
    if (s->has_second) {
        print_message(", second model:");
        print_knobs(&s->second);
    }
    print_message("%s", s->reference ? ", reference backend" : "");
    if (s->has_generate)
        print_message(", generate %lld x %lld", (long long)s->generate_batch,
                      (long long)s->generate_seq);
    print_message("\n");
}

// ---------------------------------------------------------------- a run of it

struct outcome {
    struct at_work w; // open until close_outcome
    struct trainer *trainer;
    int rc;
    struct err e;
    double losses[STEPS], eval_loss;
    int32_t tokens[3 * GENERATE_MOST];
    // Requests of a hybrid run that are still to come in this step (hand_out).
    struct guest_source source;
    int32_t rows[4][3 * GUEST_SEQ];
    int to_train, to_evaluate;
    bool handed;
    int64_t answers;
    double answer_sum;
};

// When the trainer asks for requests depends on the clock (while it waits for data). How many there
// are must not, because two runs are compared. So besides the training sample after it, a step has
// one more request only if it has a yield point, which takes what was not taken before. The first
// of them is a training sample of the second model.
static void hand_out(struct outcome *o, int64_t step) {
    const struct program *p = plan_program(&o->w.plan, PLAN_TRAIN);
    bool yields = false;
    for (int i = 0; i < p->n_order; i++)
        yields = yields || program_yields_at(p, p->order, i);
    o->to_train += step > 0;
    if (yields && step < STEPS)
        ++*(o->w.plan.second && step == 0 ? &o->to_train : &o->to_evaluate);
}

static int on_step(void *arg, const struct train_step *step, struct err *e) {
    struct outcome *o = arg;
    (void)e;
    if (step->step <= STEPS)
        o->losses[step->step - 1] = step->loss;
    assert_true(o->to_train == 0 && o->to_evaluate == 0); // all requests of this step were taken
    if (o->w.plan.knobs.goal == GOAL_HYBRID)
        hand_out(o, step->step);
    return 0;
}

static int on_eval(void *arg, const struct train_eval *eval, struct err *e) {
    (void)e;
    ((struct outcome *)arg)->eval_loss = eval->loss;
    return 0;
}

static const struct knobs *asked(const struct outcome *o) {
    return o->w.plan.second ? &o->w.plan.second->knobs : &o->w.plan.knobs;
}

static int begin_requests(void *arg, struct err *e) {
    struct outcome *o = arg;
    (void)e;
    const struct knobs *k = asked(o);
    const int64_t seq = knobs_interactive_seq(k);
    for (int64_t i = 0; i < k->interactive_micro * seq; i++) {
        o->rows[0][i] = (int32_t)(i * 7 % 250);
        o->rows[1][i] = (int32_t)((i + 1) * 7 % 250);
        o->rows[2][i] = (int32_t)(i % seq);
        o->rows[3][i] = 0;
    }
    hand_out(o, 0);
    return 0;
}

static bool next_request(void *arg, bool train, struct guest_sample *out) {
    struct outcome *o = arg;
    const struct knobs *k = asked(o);
    const bool trains = train && o->to_train > 0;
    if (o->handed || (!trains && o->to_evaluate == 0)) { // one at a time: guests_serve asks again
        o->handed = false;
        return false;
    }
    o->handed = o->w.plan.knobs.interactive_queue > 1;
    --*(trains ? &o->to_train : &o->to_evaluate);
    *out = (struct guest_sample){.kind = trains ? GUEST_TRAIN : GUEST_EVALUATE,
                                 .rows = {o->rows[0], o->rows[1], o->rows[2], o->rows[3]},
                                 .trained_tokens = k->interactive_micro * knobs_interactive_seq(k)};
    return true;
}

static void hear_answer(void *arg, const struct guest_sample *x, const struct guest_answer *a) {
    struct outcome *o = arg;
    (void)x;
    o->answers++;
    o->answer_sum += a->loss;
}

static void end_requests(void *arg) {
    (void)arg;
}

// The prompts at once, then a token of each text per turn.
static int generate(const struct setting *s, struct outcome *o, struct err *e) {
    const int64_t B = s->generate_batch;
    struct session_row rows[3 * PROMPT];
    int32_t ids[3];
    int64_t n = 0;
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < PROMPT; i++)
            rows[n++] = (struct session_row){(int32_t)(7 * b + i), (int32_t)b, (int32_t)i,
                                             .asked = i == PROMPT - 1};
    for (int64_t k = 0; k < GENERATED; k++, n = B) {
        TRY(session_extend(o->w.s, rows, n, ids, NULL, e));
        for (int64_t b = 0; b < B; b++) {
            o->tokens[b * GENERATED + k] = ids[b];
            rows[b] =
                (struct session_row){ids[b], (int32_t)b, (int32_t)(PROMPT + k), .asked = true};
        }
    }
    return 0;
}

static void run_setting(const struct setting *s, bool checking, struct outcome *o) {
    memset(o, 0, sizeof *o);
    const bool hybrid = s->knobs.goal == GOAL_HYBRID, guests = hybrid && !s->has_second;
    struct plan_options so = {.knobs = &s->knobs,
                              .programs = {PLAN_TRAIN, s->has_eval ? PLAN_EVAL : NULL,
                                           s->has_generate ? PLAN_EXTEND : NULL,
                                           guests ? PLAN_GUEST_EVAL : NULL,
                                           guests ? PLAN_GUEST_TRAIN : NULL},
                              .second = s->has_second ? &s->second : NULL,
                              .extend = {s->generate_batch, s->generate_seq, s->generate_rows},
                              .real = DTYPE_F32};
    const struct engine_options eo = {.reference = s->reference, .checking = checking};
    struct trainer_options to = {.observer = {.arg = o, .on_step = on_step, .on_eval = on_eval}};
    o->source = (struct guest_source){o, begin_requests, next_request, hear_answer, end_requests};
    if (hybrid)
        to.guests = &o->source;
    o->rc = at_work_plan(&o->w, &so, &o->e);
    if (o->rc == 0)
        o->rc = at_work_open(&o->w, &eo, &o->e);
    if (o->rc == 0)
        o->rc = trainer_at_work(&o->trainer, &o->w, &to, &o->e);
    if (o->rc == 0)
        o->rc = trainer_run(o->trainer, NULL, &o->e);
    if (o->rc == 0)
        o->w.s = o->w.engine->session;
    if (o->rc == 0 && s->has_generate)
        o->rc = generate(s, o, &o->e);
}

static void close_outcome(struct outcome *o) {
    trainer_close(o->trainer);
    at_work_close(&o->w);
}

// ---------------------------------------------------------------- what must hold

static uint64_t aligned(uint64_t bytes) {
    return (bytes + TENSOR_ALIGN - 1) / TENSOR_ALIGN * TENSOR_ALIGN;
}

// The largest sum of transient tensors alive at once, each rounded up to where the next may begin.
// It is computed op by op over the whole order.
static uint64_t floor_of(const struct program *p) {
    struct err e = {0};
    struct walk w;
    struct lives l;
    assert_worked(walk_make(&w, p, true, &e), &e);
    assert_worked(lives_make(&l, p, &w, &e), &e);
    uint64_t most = 0;
    for (int step = 0; step < w.n_steps; step++) {
        uint64_t live = 0;
        for (int i = 0; i < l.n; i++)
            if (l.life[i].first <= step && step <= l.life[i].last)
                live += aligned(p->tensors[l.life[i].tensor].bytes);
        most = live > most ? live : most;
    }
    lives_free(&l);
    walk_free(&w);
    return most;
}

static void check_compact(const struct plan *p) {
    const struct layout *l = &p->layout;
    uint64_t most = 0;
    for (int i = 0; i < p->n_programs; i++) {
        uint64_t least = floor_of(p->programs[i]);
        if (p->programs[i]->guest) // it runs while the tensors of another program are held
            least += l->held_bytes;
        most = least > most ? least : most;
    }
    if (l->transient_bytes > most + most / 20)
        fail_msg("transient tensors take %llu bytes; %llu are alive at once",
                 (unsigned long long)l->transient_bytes, (unsigned long long)most);
}

// The accountant's peaks are the arena, the data's buffers, the kernels' scratch, and nothing else.
static void check_accountant(const struct outcome *o) {
    const struct at_work *s = &o->w;
    struct mem_line lines[LINES_MOST];
    size_t n = mem_lines(s->engine->mem, lines, LINES_MOST);
    // Allocated with malloc, so not in the accountant.
    uint64_t samples = 2 * (STEPS + 1) * sizeof(double);
    uint64_t arena = 0, data = 0, trace = 0, workspace = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t *at = strcmp(lines[i].class_name, "arena") == 0       ? &arena
                       : strcmp(lines[i].class_name, "data") == 0      ? &data
                       : strcmp(lines[i].class_name, "trace") == 0     ? &trace
                       : strcmp(lines[i].class_name, "workspace") == 0 ? &workspace
                                                                       : NULL;
        if (!at)
            fail_msg("memory of the class '%s' is in no plan", lines[i].class_name);
        *at = lines[i].peak_bytes;
    }
    assert_int_equal(arena, plan_arena_bytes(&s->plan));
    assert_int_equal(data + samples, s->plan.host.loader);
    assert_int_equal(trace, s->plan.host.trace);
    assert_int_equal(mem_peak_bytes(s->engine->mem), arena + data + trace + workspace);
}

static void check_classes(const struct layout *l) {
    uint64_t sum = l->slack_bytes;
    for (int c = 0; c < CLASS_COUNT; c++)
        sum += l->by_class[c];
    assert_int_equal(sum, l->arena_bytes);
}

static void check_same_tensors(const struct session *a, const struct session *b) {
    const struct program *p = plan_program(a->plan, PLAN_TRAIN);
    const int x = plan_find(a->plan, PLAN_TRAIN);
    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].life == LIFE_RUN && p->tensors[t].root < 0 &&
            memcmp(exec_host_address(a->exec, x, t), exec_host_address(b->exec, x, t),
                   p->tensors[t].bytes) != 0)
            fail_msg("'%s' is not the same in the observed run", p->tensors[t].name);
}

static void check_same(const struct outcome *a, const struct outcome *b) {
    for (int i = 0; i < STEPS; i++)
        if (!isfinite(a->losses[i]) || memcmp(&a->losses[i], &b->losses[i], sizeof(double)) != 0)
            fail_msg("step %d: loss %.17g, observed %.17g", i, a->losses[i], b->losses[i]);
    if (memcmp(&a->eval_loss, &b->eval_loss, sizeof(double)) != 0)
        fail_msg("validation loss %.17g, observed %.17g", a->eval_loss, b->eval_loss);
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
    assert_int_equal(a->answers, b->answers);
    assert_true(a->answer_sum == b->answer_sum);
    assert_true((a->answers > 0) == (a->w.plan.knobs.goal == GOAL_HYBRID));
    check_same_tensors(a->w.s, b->w.s);
    if (a->w.s->second)
        check_same_tensors(a->w.s->second, b->w.s->second);
}

static void check_written(const struct session *plain, const struct session *checked) {
    const struct layout *l = &checked->plan->layout;
    const struct exec_check *seen = exec_checked(checked->exec);
    if (seen->used_bytes != l->arena_bytes || plain->plan->layout.arena_bytes != l->arena_bytes)
        fail_msg("the plan is %llu bytes, written were %llu", (unsigned long long)l->arena_bytes,
                 (unsigned long long)seen->used_bytes);
    check_classes(l);
    check_compact(plain->plan);
}

// Returns false if the setting is refused.
static bool check_setting(struct setting *s) {
    static struct outcome plain, checked; // large
    run_setting(s, false, &plain);
    if (plain.rc == ERR_UNSUPPORTED && !s->reference) { // a type that the fast backend lacks
        close_outcome(&plain);
        s->reference = true;
        run_setting(s, false, &plain);
    }
    if (plain.rc == ERR_USAGE || plain.rc == ERR_UNSUPPORTED) {
        print_message("refused: %s\n", plain.e.text);
        close_outcome(&plain);
        return false;
    }
    if (plain.rc != 0)
        fail_msg("%s", plain.e.text);
    run_setting(s, true, &checked);
    if (checked.rc != 0)
        fail_msg("%s", checked.e.text);
    check_same(&plain, &checked);
    check_accountant(&plain);
    check_written(plain.w.s, checked.w.s);
    if (s->has_second)
        check_written(plain.w.s->second, checked.w.s->second);
    close_outcome(&plain);
    close_outcome(&checked);
    return true;
}

// ---------------------------------------------------------------- tests

static void test_random_settings(void **state) {
    const char *only = getenv("HAGGLE_MEMORY_SETTING"), *longer = getenv("HAGGLE_TEST_LONG");
    int wanted = UNDER_SANITIZER ? SETTINGS_SANITIZED : longer ? SETTINGS_LONG : SETTINGS;
    uint64_t number = only ? strtoull(only, NULL, 10) : 0;
    int valid = 0, refused = 0;
    for (wanted = only ? 1 : wanted; valid < wanted; number++) {
        struct setting s;
        draw_setting(&s, number, *state);
        print_setting(&s);
        if (check_setting(&s))
            valid++;
        else
            refused++;
        if (refused > 10 + valid)
            fail_msg("%d settings were refused, %d accepted: nothing is tested", refused, valid);
    }
    print_message("%d settings hold, %d were refused\n", valid, refused);
}

// All knobs must be drawn: a knob whose effect is memory, but whose type cannot be drawn, would be
// left out silently.
static void test_every_memory_knob_is_drawn(void **state) {
    (void)state;
    for (int id = 0; id < KNOB_COUNT; id++) {
        const struct knob_info *info = knob_info(id);
        bool can = info->type == KNOB_INT || info->type == KNOB_FLOAT || info->type == KNOB_BOOL ||
                   info->type == KNOB_CHOICE || info->type == KNOB_BYTES;
        if (is_drawn(id) && !can)
            fail_msg("%s changes memory and this test cannot draw a %s", info->name,
                     knob_type_name(info->type));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_settings),
        cmocka_unit_test(test_every_memory_knob_is_drawn),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
