// doctor_print.c - see doctor_print.h.
#include "report/doctor_print.h"

#include "base/text.h"
#include "store/store.h"

#include <math.h>
#include <time.h>

// ---------------------------------------------------------------- for people

static void print_meter(FILE *f, const char *what, const struct energy_use *u) {
    fprintf(f, "  %-9s %s%s%s\n", what, u->meter[0] ? u->meter : "no meter",
            u->why[0] ? (u->meter[0] ? "; " : ": ") : "", u->why);
}

static void print_meters(FILE *f, const struct doctor_meters *m) {
    fprintf(f, "energy per token, measured with:\n");
    print_meter(f, "cpu", &m->cpu);
    if (m->has_gpu)
        print_meter(f, "cuda", &m->gpu);
}

static void print_ops(FILE *f, const struct doctor_ops *o) {
    fprintf(f, "times of ops, used for predictions (show, tune):\n  ");
    if (o->known.settings > 0)
        fprintf(f, "%d setting%s measured here, predicted by their measurements\n  ",
                o->known.settings, o->known.settings == 1 ? "" : "s");
    if (o->known.signatures == 0 && !o->reason[0])
        fprintf(f, "no op timed yet, a roofline is used instead; --fresh times this model's ops\n");
    else if (o->reason[0])
        fprintf(f, "could not be taken: %s\n", o->reason);
    else
        fprintf(f, "%d ops timed%s, corrected by %lld trial%s  %s\n", o->known.signatures,
                o->now ? " (this model's now)" : "", (long long)o->known.steps,
                o->known.steps == 1 ? "" : "s", o->known.path);
}

static void print_plugin(FILE *f, const struct plugin_report *r) {
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    fprintf(f, "plug-ins (device):\n  %-9s ", "cuda");
    if (r->usable)
        fprintf(f, "%s, %s free of %s%s%s\n", r->device, text_bytes(a, r->free_bytes),
                text_bytes(b, r->total_bytes), r->path[0] ? "  " : "", r->path);
    else
        fprintf(f, "not usable: %s%s%s\n", r->reason, r->path[0] ? "  " : "", r->path);
}

// One of several rates, with words before and behind it; nothing if it is not known. The first one
// has the unit.
static void print_rate(FILE *f, bool *more, const char *before, double rate, const char *behind) {
    if (!(rate > 0))
        return;
    fprintf(f, "%s%s%.0f%s%s", *more ? ", " : "", before, 1e-12 * rate, *more ? "" : " TFLOP/s",
            behind);
    *more = true;
}

static void print_attention(FILE *f, int head_dim, double forward, double backward) {
    bool more = false;
    if (!(forward > 0 || backward > 0))
        return;
    fprintf(f, "  attention        ");
    print_rate(f, &more, "forward ", forward, "");
    print_rate(f, &more, "backward ", backward, "");
    fprintf(f, " in bf16, heads of %d\n", head_dim);
}

static void print_gpu_rates(FILE *f, const struct hw_gpu_rates *r, const struct knobs *k) {
    char a[TEXT_UNIT_BYTES];
    bool more = false;
    if (r->matmul_flops > 0 || r->matmul_bf16_flops > 0) {
        fprintf(f, "  matrix products  ");
        print_rate(f, &more, "", r->matmul_bf16_flops, " in bf16");
        print_rate(f, &more, "", r->matmul_fp16_flops, " in fp16");
        print_rate(f, &more, "", r->matmul_flops,
                   k->cuda_tf32 ? " in fp32 with inputs in TF32" : " in fp32");
        fprintf(f,
                ", %.0f x %.0f\n"
                "                   the peak of MFU, and what a verdict compares products with\n",
                r->matmul_size, r->matmul_size);
    }
    print_attention(f, 64, r->attention_64_flops, r->attention_64_bwd_flops);
    print_attention(f, 128, r->attention_128_flops, r->attention_128_bwd_flops);
    if (r->attention_64_flops > 0)
        fprintf(f, "                   causal, 2048 tokens without document boundaries; what is "
                   "masked does not count\n");
    if (r->copy_bytes_per_s > 0)
        fprintf(f,
                "  copy             %.2f TB/s, bytes read plus bytes written\n"
                "                   bounds norms, activations and the optimizer\n",
                1e-12 * r->copy_bytes_per_s);
    if (r->host_bytes_per_s > 0)
        fprintf(f, "  from the host    %.1f GB/s, pinned memory: how batches arrive\n",
                1e-9 * r->host_bytes_per_s);
    if (r->launch_s > 0)
        fprintf(f,
                "  launch           %s, an op that does next to nothing; cuda.graphs starts many "
                "at once\n",
                text_duration(a, r->launch_s));
}

// The price of repeatable sums, once both kinds of kernels have been measured.
static void print_order(FILE *f, const struct machine *m, const struct knobs *k) {
    const double fixed = m->gpu.attention_64_bwd_flops, any = m->any_order.attention_64_bwd_flops;
    if (!k->cuda_deterministic)
        return;
    if (fixed > 0 && any > 0)
        fprintf(f, "  cuda.deterministic=false: attention backward %.0f TFLOP/s with heads of 64\n",
                1e-12 * any);
    else
        fprintf(f, "  (haggle doctor cuda.deterministic=false measures what repeatable sums "
                   "cost)\n");
}

static void print_gpu(FILE *f, const struct doctor *d) {
    const struct doctor_gpu *g = &d->gpu;
    const struct machine *m = &g->machine;
    char when[32] = "now";
    time_t at = (time_t)m->gpu.measured_at;
    struct tm t;
    if (!d->cuda.usable)
        return;
    if (m->cached && localtime_r(&at, &t))
        strftime(when, sizeof when, "on %Y-%m-%d %H:%M", &t);
    fprintf(f, "what cuda reaches, with cuda.deterministic=%s%s",
            g->knobs.cuda_deterministic ? "true" : "false",
            g->knobs.cuda_kernels == CUDA_KERNELS_PLAIN ? " and plain kernels" : "");
    if (g->reason[0] || !m->has_gpu)
        fprintf(f, ": not measured");
    else
        fprintf(f, ", measured %s%s", when,
                m->cached ? " (stored since then; --fresh measures again)" : "");
    fprintf(f, ":\n");
    if (m->has_gpu)
        print_gpu_rates(f, &m->gpu, &g->knobs);
    if (m->has_gpu)
        print_order(f, m, &g->knobs);
    if (g->reason[0] || m->gpu_lacks[0])
        fprintf(f, "  not measured: %s\n", g->reason[0] ? g->reason : m->gpu_lacks);
    if (g->note[0])
        fprintf(f, "  note: %s\n", g->note);
}

static void print_ranks(FILE *f, const struct doctor *d) {
    const struct comm_installed *r = &d->ranks;
    fprintf(f, "engines that connect ranks (comm.engine):\n"
               "  thread    ranks are threads of one process\n");
    if (r->usable)
        fprintf(f, "  mpi       ranks are processes: %s, started with %s  %s\n", r->library,
                r->mpirun, r->plugin);
    else
        fprintf(f, "  mpi       not usable: %s\n", r->reason);
    if (d->n_advice > 0)
        fprintf(f, "ranks as processes: 'haggle train --ranks N' sets what this machine needs; to "
                   "start them yourself:\n");
    for (int i = 0; i < d->n_advice; i++)
        fprintf(f, "  %-9s %s\n", d->advice[i].topic, d->advice[i].text);
}

// Rates of matrix products are printed twice, so say when and how each was measured.
static void print_origin(FILE *f, const struct machine *m, const struct knobs *k) {
    char when[32] = "before";
    time_t at = (time_t)m->rates.measured_at;
    struct tm t;
    if (m->cached && localtime_r(&at, &t))
        strftime(when, sizeof when, "on %Y-%m-%d %H:%M", &t);
    fprintf(f, "  all of this was measured %s; matrix products: cpu.blas=%s, %d x %d\n",
            m->cached ? when : "now", knob_choice(KNOB_cpu_blas, (int)k->cpu_blas),
            MACHINE_MATMUL_SIZE, MACHINE_MATMUL_SIZE);
    if (m->cached)
        fprintf(f, "  (stored since then; --fresh measures again)\n");
    fprintf(f,
            "libraries for matrix products (cpu.blas), measured now with %d thread%s, %d x %d:\n",
            machine_threads(k), machine_threads(k) == 1 ? "" : "s", MACHINE_MATMUL_SIZE,
            MACHINE_MATMUL_SIZE);
}

static void print_apart(FILE *f, const struct apart *a) {
    if (isnan(apart_least_ns(a)))
        fprintf(f, "threads apart: not known (one thread, or other programs hold the CPUs)\n");
    else
        fprintf(f,
                "threads apart: a cache line goes to another thread and back in %.0f to %.0f ns\n",
                apart_least_ns(a), apart_most_ns(a));
}

static void print_store(FILE *f) {
    char path[STORE_PATH_BYTES];
    struct err e = {0};
    bool has = store_default_path(path, &e) == 0;
    fprintf(f, "store of trials (haggle trials): %s, SQLite %s\n", has ? path : e.text,
            store_sqlite_version());
}

void doctor_print(const struct doctor *d, FILE *f) {
    char packages[512] = "", others[OTHERS_TEXT_BYTES];
    size_t at = 0;
    hw_print(f, &d->machine.hw, &d->machine.rates);
    print_origin(f, &d->machine, &d->cpu);
    for (int i = 0; i < DOCTOR_LIBRARIES; i++) {
        const struct doctor_library *l = &d->libraries[i];
        if (l->found)
            fprintf(f, "  %-9s %7.1f GFLOP/s  %s%s%s\n", l->choice, 1e-9 * l->blas.flops_per_s,
                    l->blas.name, l->blas.path[0] ? "  " : "", l->blas.path);
        else
            fprintf(f, "  %-9s not here: %s\n", l->choice, l->reason);
    }
    fprintf(f, "products of 16-bit types (precision), the same size and threads:\n");
    for (int i = 0; i < DOCTOR_PRODUCTS; i++) {
        const struct doctor_products *p = &d->products[i];
        fprintf(f, "  %-9s %7.1f GFLOP/s  %s products: %s\n", dtype_text(p->type),
                1e-9 * p->blas.flops_per_s, dtype_text(p->type), p->blas.name);
    }
    print_plugin(f, &d->cuda);
    print_gpu(f, d);
    print_ranks(f, d);
    print_meters(f, &d->meters);
    print_ops(f, &d->ops);
    print_store(f);
    print_apart(f, &d->cpus);
    fprintf(f, "other programs while this was measured: %s%s\n", others_text(others, &d->others),
            others_notable(&d->others) ? "; measure again when they are quiet" : "");
    fprintf(f, "missing:%s\n", d->n_gaps ? "" : " nothing");
    for (int i = 0; i < d->n_gaps; i++) {
        const struct doctor_gap *gap = &d->gaps[i];
        fprintf(f, "  %s: %s%s%s\n", gap->what, gap->purpose, gap->fix[0] ? "; " : "", gap->fix);
        if (gap->package && at < sizeof packages)
            at += (size_t)snprintf(packages + at, sizeof packages - at, " %s", gap->package);
    }
    if (at > 0)
        fprintf(f, "all of them at once:\n  sudo apt install%s\n", packages);
}

// ---------------------------------------------------------------- for programs

static void put_meter(struct json_writer *w, const char *device, const struct energy_use *u) {
    json_put_object_begin(w);
    json_member_string(w, "device", device);
    json_member_string(w, "meter", u->meter[0] ? u->meter : NULL);
    json_member_string(w, "why", u->why[0] ? u->why : NULL);
    json_put_object_end(w);
}

static void put_meters(struct json_writer *w, const struct doctor_meters *m) {
    json_member_array(w, "energy_meters");
    put_meter(w, "cpu", &m->cpu);
    if (m->has_gpu)
        put_meter(w, "cuda", &m->gpu);
    json_put_array_end(w);
}

static void put_ops(struct json_writer *w, const struct doctor_ops *o) {
    json_member_object(w, "ops");
    json_member_i64(w, "timed", o->known.signatures);
    json_member_i64(w, "trials", o->known.steps);
    json_member_i64(w, "settings", o->known.settings);
    json_member_string(w, "path", o->known.path);
    json_member_string(w, "reason", o->reason);
    json_put_object_end(w);
}

static void put_libraries(struct json_writer *w, const struct doctor *d) {
    json_member_array(w, "blas");
    for (int i = 0; i < DOCTOR_LIBRARIES; i++) {
        const struct doctor_library *l = &d->libraries[i];
        json_put_object_begin(w);
        json_member_string(w, "choice", l->choice);
        json_member_bool(w, "found", l->found);
        if (l->found) {
            json_member_string(w, "name", l->blas.name);
            json_member_string(w, "path", l->blas.path);
            json_member_double(w, "flops_per_s", l->blas.flops_per_s);
        } else {
            json_member_string(w, "reason", l->reason);
        }
        json_put_object_end(w);
    }
    json_put_array_end(w);
}

static void put_narrow(struct json_writer *w, const struct doctor *d) {
    json_member_array(w, "products");
    for (int i = 0; i < DOCTOR_PRODUCTS; i++) {
        json_put_object_begin(w);
        json_member_string(w, "type", dtype_text(d->products[i].type));
        json_member_string(w, "name", d->products[i].blas.name);
        json_member_double(w, "flops_per_s", d->products[i].blas.flops_per_s);
        json_put_object_end(w);
    }
    json_put_array_end(w);
}

static void put_plugin(struct json_writer *w, const struct plugin_report *cuda) {
    json_member_array(w, "plugins");
    json_put_object_begin(w);
    json_member_string(w, "name", "cuda");
    json_member_string(w, "path", cuda->path);
    json_member_bool(w, "usable", cuda->usable);
    if (cuda->usable) {
        json_member_string(w, "device", cuda->device);
        json_member_i64(w, "memory_bytes", (int64_t)cuda->total_bytes);
        json_member_i64(w, "memory_available_bytes", (int64_t)cuda->free_bytes);
    } else {
        json_member_string(w, "reason", cuda->reason);
    }
    json_put_object_end(w);
    json_put_array_end(w);
}

static void put_gpu(struct json_writer *w, const struct doctor_gpu *g) {
    const char *why = g->reason[0] ? g->reason : g->machine.gpu_lacks;
    json_member_bool(w, "gpu_rates_cached", g->machine.cached);
    json_member_string(w, "gpu_rates_lack", why[0] ? why : NULL);
    json_member_string(w, "gpu_note", g->note[0] ? g->note : NULL);
}

static void put_ranks(struct json_writer *w, const struct doctor *d) {
    const struct comm_installed *r = &d->ranks;
    json_member_object(w, "ranks");
    json_member_bool(w, "processes", r->usable);
    json_member_string(w, "reason", r->usable ? NULL : r->reason);
    json_member_string(w, "plugin", r->plugin);
    json_member_string(w, "library", r->library[0] ? r->library : NULL);
    json_member_string(w, "mpirun", r->mpirun[0] ? r->mpirun : NULL);
    json_member_string(w, "mpirun_is", r->mpirun[0] ? comm_flavour_text(r->mpirun_is) : NULL);
    json_member_bool(w, "root", r->root);
    json_member_bool(w, "reads_other_processes", r->reads_others);
    json_member_i64(w, "shared_memory_bytes", (int64_t)r->shared_bytes);
    json_member_array(w, "advice");
    for (int i = 0; i < d->n_advice; i++) {
        json_put_object_begin(w);
        json_member_string(w, "topic", d->advice[i].topic);
        json_member_string(w, "text", d->advice[i].text);
        json_put_object_end(w);
    }
    json_put_array_end(w);
    json_put_object_end(w);
}

static void put_store(struct json_writer *w) {
    char path[STORE_PATH_BYTES];
    json_member_object(w, "store");
    json_member_string(w, "path", store_default_path(path, NULL) == 0 ? path : NULL);
    json_member_string(w, "sqlite", store_sqlite_version());
    json_put_object_end(w);
}

static void put_gaps(struct json_writer *w, const struct doctor *d) {
    json_member_array(w, "missing");
    for (int i = 0; i < d->n_gaps; i++) {
        json_put_object_begin(w);
        json_member_string(w, "what", d->gaps[i].what);
        json_member_string(w, "needed_for", d->gaps[i].purpose);
        json_member_string(w, "fix", d->gaps[i].fix);
        json_put_object_end(w);
    }
    json_put_array_end(w);
}

void doctor_put_json(const struct doctor *d, struct json_writer *w) {
    struct machine both = d->machine;
    both.has_gpu = d->gpu.machine.has_gpu;
    both.gpu = d->gpu.machine.gpu;
    machine_put_json(&both, w);
    json_member_bool(w, "rates_cached", d->machine.cached);
    json_member_i64(w, "blas_threads", machine_threads(&d->cpu)); // for the figures below
    json_member_i64(w, "blas_size", MACHINE_MATMUL_SIZE);
    put_libraries(w, d);
    put_narrow(w, d);
    put_ops(w, &d->ops);
    put_plugin(w, &d->cuda);
    put_gpu(w, &d->gpu);
    put_ranks(w, d);
    put_meters(w, &d->meters);
    put_store(w);
    apart_put_member(&d->cpus, w);
    json_member_double(w, "others_share", others_share(&d->others)); // null: cannot be seen
    put_gaps(w, d);
}
