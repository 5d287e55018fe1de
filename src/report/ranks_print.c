// ranks_print.c - see ranks_print.h.
//
// A rank's own work is its step without the time it waited for data and for other ranks. Ranks end
// a step together, so their step times are alike, and the rank with the most work is the one that
// the others wait for.
#include "report/ranks_print.h"

#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

// ---------------------------------------------------------------- what a step sends

struct traffic { // one kind of collective in one group
    enum op_kind kind;
    const char *group;
    int64_t calls;
    double bytes;    // that this rank sends in a step
    double textbook; // the usual formula; NaN: there is none
};
enum { TRAFFIC_MOST = 16 };

static const char *group_name(const struct program *p, const struct op *op) {
    return op->kind == OP_SEND ? "pipe" : p->groups[op->group].name;
}

static struct traffic *traffic_of(struct traffic list[TRAFFIC_MOST], int *n, enum op_kind kind,
                                  const char *group) {
    for (int i = 0; i < *n; i++)
        if (list[i].kind == kind && strcmp(list[i].group, group) == 0)
            return &list[i];
    if (*n == TRAFFIC_MOST)
        return NULL;
    list[*n] = (struct traffic){.kind = kind, .group = group};
    return &list[(*n)++];
}

// What a tensor group moves: two sums in the forward and two in the backward of each layer (Shoeybi
// et al., 2019). With parallel.sequence each of them is a reduce-scatter and an all-gather, and two
// of the gathers are made again in the backward (Korthikanti et al., 2022).
static double textbook_tensor(const struct plan_split *s, enum op_kind kind, double rows_bytes,
                              double layers) {
    const double ring = (double)(s->tensor - 1) / s->tensor, one = ring * rows_bytes * layers;
    if (!s->sequence)
        return kind == OP_ALL_REDUCE ? 4 * 2 * one : NAN;
    return kind == OP_REDUCE_SCATTER ? 4 * one : kind == OP_ALL_GATHER ? (4 + 2) * one : NAN;
}

// The formulas that papers and tutorials give, with the whole model's parameters divided evenly by
// the ranks that share it. What haggle sends differs by padding, uneven stages, norms and losses.
// What is small has no formula: the losses and the gradient norm of all ranks ('samples', 'model'),
// the numbers of a loss over parts of the vocabulary, and the gradients of norms that a tensor
// group shares.
static double textbook(const struct plan *p, const char *program, enum op_kind kind,
                       const char *group) {
    const struct plan_split *s = &p->split;
    const struct knobs *k = &p->knobs;
    const double w = (double)dtype_bytes(plan_real_type(p)), D = s->data, T = s->tensor,
                 P = s->pipe, own = (double)plan_trained_elements(p) / (T * P),
                 rows = (double)(k->batch_micro * k->seq * p->shape.width),
                 micro = (double)k->batch_accum, layers = (double)p->shape.layers / P;
    if (strcmp(group, "data") == 0 && p->ranks.apart) // weights and two moments, in float32
        return strcmp(program, PLAN_AVERAGE) == 0 ? 2 * (D - 1) / D * 12 * own : NAN;
    if (strcmp(group, "data") == 0) {
        const double ring = (D - 1) / D;
        const double times = s->every_micro ? micro : 1;
        return kind == OP_ALL_REDUCE       ? 2 * ring * 4 * own * times
               : kind == OP_REDUCE_SCATTER ? ring * 4 * own * times
               : kind == OP_ALL_GATHER     ? ring * w * own * (s->zero == 3 ? 2 * micro : 1)
                                           : NAN;
    }
    if (strcmp(group, "tensor") == 0)
        return textbook_tensor(s, kind, rows * w * micro, layers);
    if (strcmp(group, "tied") == 0) // the embedding's gradient, between two ranks
        return 4 * (double)(p->shape.vocab * p->shape.width) / T;
    if (kind == OP_SEND)
        return rows * w * micro * (s->schedule == SCHEDULE_INTERLEAVED ? (double)s->chunks : 1) /
               (p->ranks.sequence ? T : 1);
    return NAN;
}

static int count_traffic(const struct plan *plan, const char *program,
                         struct traffic list[TRAFFIC_MOST]) {
    const struct program *p = plan_program(plan, program);
    int n = 0;
    for (int i = 0; p && i < p->n_order; i++) {
        const struct segment *seg = &p->segments[p->order[i].segment];
        for (int o = 0; o < seg->n_ops; o++) {
            const struct op *op = &seg->ops[o];
            const double bytes = op_cost_of(p, op).comm_bytes;
            if (op_info(op->kind)->category != CAT_COMM || op->kind == OP_RECV)
                continue;
            struct traffic *t = traffic_of(list, &n, op->kind, group_name(p, op));
            if (t) {
                t->calls++;
                t->bytes += bytes;
            }
        }
    }
    for (int i = 0; i < n; i++)
        list[i].textbook = textbook(plan, program, list[i].kind, list[i].group);
    return n;
}

// The part of a step in which a stage has nothing to do, with equal stages and free messages.
static double bubble(const struct plan *p) {
    const double stages = p->split.pipe, micro = (double)p->knobs.batch_accum,
                 parts = p->split.schedule == SCHEDULE_INTERLEAVED ? p->split.chunks : 1;
    return stages > 1 ? (stages - 1) / (parts * micro + stages - 1) : 0;
}

// What one turn of a program sends.
static void print_traffic(FILE *f, const struct plan *p, const char *program, const char *when) {
    struct traffic list[TRAFFIC_MOST];
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    const int n = count_traffic(p, program, list);
    for (int i = 0; i < n; i++) {
        const struct traffic *t = &list[i];
        fprintf(f, "%s%s over '%s' %s in %" PRId64 " call%s", i ? ";\n         " : "sends    ",
                op_info(t->kind)->name, t->group, text_bytes(a, (uint64_t)t->bytes), t->calls,
                t->calls == 1 ? "" : "s");
        if (!isnan(t->textbook))
            fprintf(f, " (textbook %s)", text_bytes(b, (uint64_t)t->textbook));
    }
    fprintf(f, "%s%s\n", n ? " " : "sends    nothing ", when);
}

void ranks_print_traffic(FILE *f, const struct plan *p) {
    char when[48];
    if (mesh_world(&p->ranks.mesh) == 1)
        return;
    print_traffic(f, p, PLAN_TRAIN, "per step");
    snprintf(when, sizeof when, "every %d steps", p->split.every);
    if (p->ranks.apart)
        print_traffic(f, p, PLAN_AVERAGE, when);
}

void ranks_print_plan(FILE *f, const struct plan *p, const char *engine) {
    const struct plan_split *s = &p->split;
    const struct knobs *k = &p->knobs;
    const int world = mesh_world(&p->ranks.mesh);
    if (world == 1)
        return;
    fprintf(f, "ranks    %d = data %d x tensor %d x pipe %d", world, s->data, s->tensor, s->pipe);
    if (engine)
        fprintf(f, ", %s", engine);
    if (p->ranks.zero > 0)
        fprintf(f, ", zero.stage %d", p->ranks.zero);
    if (p->ranks.sequence)
        fprintf(f, ", parallel.sequence");
    if (s->pipe > 1)
        fprintf(f, ", pipe.schedule %s with a bubble of %.1f %% by its formula",
                knob_choice(KNOB_pipe_schedule, (int)k->pipe_schedule), 100 * bubble(p));
    fprintf(f, "; figures below are rank %d's\n", mesh_rank(&p->ranks.mesh));
    ranks_print_traffic(f, p);
}

void ranks_print_bytes(FILE *f, const struct plan *p) {
    enum { RANKS_MOST = 64 };
    const int world = mesh_world(&p->ranks.mesh);
    char a[TEXT_UNIT_BYTES];
    if (world == 1)
        return;
    fprintf(f, "arenas  ");
    for (int i = 0; i < world && i < RANKS_MOST; i++) {
        struct plan other;
        if (plan_run_rank(&other, &p->knobs, i, NULL) == 0)
            fprintf(f, "%s rank %d %s", i ? "," : "", i, text_bytes(a, plan_arena_bytes(&other)));
        plan_free(&other);
    }
    fprintf(f, "%s\n", world > RANKS_MOST ? ", ..." : "");
}

static void put_traffic(struct json_writer *w, const struct plan *p, const char *program,
                        const char *member) {
    struct traffic list[TRAFFIC_MOST];
    const int n = count_traffic(p, program, list);
    json_member_array(w, member);
    for (int i = 0; i < n; i++) {
        json_put_object_begin(w);
        json_member_string(w, "op", op_info(list[i].kind)->name);
        json_member_string(w, "group", list[i].group);
        json_member_i64(w, "calls", list[i].calls);
        json_member_double(w, "bytes_sent", list[i].bytes);
        json_member_double(w, "textbook_bytes", list[i].textbook);
        json_put_object_end(w);
    }
    json_put_array_end(w);
}

void ranks_put_plan_json(const struct plan *p, struct json_writer *w) {
    const struct plan_split *s = &p->split;
    if (mesh_world(&p->ranks.mesh) == 1) {
        json_member_null(w, "ranks");
        return;
    }
    json_member_object(w, "ranks");
    json_member_i64(w, "world", mesh_world(&p->ranks.mesh));
    json_member_i64(w, "rank", mesh_rank(&p->ranks.mesh));
    json_member_i64(w, "data", s->data);
    json_member_i64(w, "tensor", s->tensor);
    json_member_i64(w, "pipe", s->pipe);
    json_member_i64(w, "zero_stage", p->ranks.zero);
    json_member_double(w, "bubble_formula", bubble(p));
    put_traffic(w, p, PLAN_TRAIN, "communication");
    json_member_i64(w, "average_every", p->ranks.apart ? s->every : 1);
    if (p->ranks.apart)
        put_traffic(w, p, PLAN_AVERAGE, "average_communication");
    json_put_object_end(w);
}

// ---------------------------------------------------------------- what ranks measured

static double per_step_ms(const struct rank_report *r, double ns) {
    return r->split.steps > 0 ? ns / 1e6 / (double)r->split.steps : NAN;
}

static double wait_ms(const struct rank_report *r) {
    return per_step_ms(r, (double)r->split.ns[TIME_COMM]);
}

// The part of a step in which ranks waited for other stages: the bubble as it was.
static double waited_for_stages(const struct train_result *r) {
    double waited = 0, all = 0;
    for (int i = 0; i < r->n_ranks; i++) {
        waited += (double)r->ranks[i].split.stage_ns;
        all += (double)r->ranks[i].split.wall_ns;
    }
    return all > 0 ? waited / all : NAN;
}

static double work_ms(const struct rank_report *r) {
    return per_step_ms(
        r, (double)(r->split.wall_ns - r->split.ns[TIME_COMM] - r->split.ns[TIME_DATA_WAIT]));
}

static int slowest(const struct train_result *r) {
    int most = 0;
    for (int i = 1; i < r->n_ranks; i++)
        if (work_ms(&r->ranks[i]) > work_ms(&r->ranks[most]))
            most = i;
    return most;
}

static struct mesh place(const struct knobs *k, int rank) {
    return mesh_make((int)knobs_replicas(k), (int)k->parallel_tensor, (int)k->parallel_pipe, rank);
}

static void print_row(FILE *f, const struct knobs *k, const struct train_result *r, int rank) {
    const struct rank_report *x = &r->ranks[rank];
    const struct mesh m = place(k, rank);
    char arena[TEXT_UNIT_BYTES], bytes[TEXT_UNIT_BYTES];
    fprintf(f, "  %4d   %4d %6d %4d   %9.2f %9.2f %9.2f   %10s   %10s\n", rank, m.at[AXIS_DATA],
            m.at[AXIS_TENSOR], m.at[AXIS_PIPE], x->step_p50_ns / 1e6, work_ms(x), wait_ms(x),
            text_bytes(arena, x->arena_bytes), text_bytes(bytes, x->predicted_bytes));
}

void ranks_print_result(FILE *f, const struct knobs *k, const struct train_result *r) {
    enum { ROWS_MOST = 16 };
    if (!r->ranks || r->n_ranks < 2)
        return;
    const int most = slowest(r);
    double wait = 0;
    for (int i = 0; i < r->n_ranks; i++)
        wait += (double)r->ranks[i].split.ns[TIME_COMM] /
                (double)(r->ranks[i].split.wall_ns ? r->ranks[i].split.wall_ns : 1) / r->n_ranks;
    fprintf(f,
            "ranks     rank %d has the most work, %.2f ms of a step; on average ranks wait for "
            "others %.1f %% of the time",
            most, work_ms(&r->ranks[most]), 100 * wait);
    if (k->parallel_pipe > 1) {
        const double stages = (double)k->parallel_pipe,
                     parts =
                         k->pipe_schedule == PIPE_SCHEDULE_INTERLEAVED ? (double)k->pipe_chunks : 1;
        fprintf(f,
                "; stages for each other %.1f %% (the pipeline's bubble by its formula: %.1f %%)",
                100 * waited_for_stages(r),
                100 * (stages - 1) / (parts * (double)k->batch_accum + stages - 1));
    }
    fprintf(f, "\n  rank   data tensor pipe   step p50      work   waiting        arena      "
               "planned\n");
    for (int i = 0; i < r->n_ranks && i < ROWS_MOST; i++)
        print_row(f, k, r, i);
    if (r->n_ranks > ROWS_MOST)
        fprintf(f, "  and %d more; result.json has them all\n", r->n_ranks - ROWS_MOST);
}

void ranks_put_result_json(const struct knobs *k, const struct train_result *r,
                           struct json_writer *w) {
    if (!r->ranks || r->n_ranks < 2) {
        json_member_null(w, "rank_results");
        return;
    }
    json_member_i64(w, "slowest_rank", slowest(r));
    json_member_double(w, "waited_for_stages", waited_for_stages(r));
    json_member_array(w, "rank_results");
    for (int i = 0; i < r->n_ranks; i++) {
        const struct rank_report *x = &r->ranks[i];
        const struct mesh m = place(k, i);
        json_put_object_begin(w);
        json_member_i64(w, "rank", i);
        json_member_i64(w, "data", m.at[AXIS_DATA]);
        json_member_i64(w, "tensor", m.at[AXIS_TENSOR]);
        json_member_i64(w, "pipe", m.at[AXIS_PIPE]);
        json_member_double(w, "step_ms_p50", x->step_p50_ns / 1e6);
        json_member_double(w, "step_ms_p95", x->step_p95_ns / 1e6);
        json_member_double(w, "work_ms", work_ms(x));
        json_member_double(w, "exposed_communication_ms", wait_ms(x));
        json_member_double(w, "stage_wait_ms", per_step_ms(x, (double)x->split.stage_ns));
        json_member_double(w, "data_wait_ms", per_step_ms(x, (double)x->split.ns[TIME_DATA_WAIT]));
        json_member_i64(w, "arena_bytes", (int64_t)x->arena_bytes);
        json_member_i64(w, "planned_bytes", (int64_t)x->predicted_bytes);
        json_member_i64(w, "process_peak_bytes", (int64_t)x->measured_bytes);
        json_put_object_end(w);
    }
    json_put_array_end(w);
}

int ranks_slowest(const struct train_step *s, double *work_ms_out) {
    int most = -1;
    uint64_t most_ns = 0;
    for (int i = 0; s->ranks && i < s->n_ranks; i++) {
        const struct rank_step *x = &s->ranks[i].last;
        const uint64_t ns = x->step_ns > x->waits_ns ? x->step_ns - x->waits_ns : 0;
        if (ns > most_ns) {
            most_ns = ns;
            most = i;
        }
    }
    *work_ms_out = (double)most_ns / 1e6;
    return most;
}

double ranks_waiting(const struct train_step *s) {
    double waits = 0, all = 0;
    for (int i = 0; s->ranks && i < s->n_ranks; i++) {
        waits += (double)s->ranks[i].last.waits_ns;
        all += (double)s->ranks[i].last.step_ns;
    }
    return all > 0 ? fmin(waits / all, 1) : NAN;
}
