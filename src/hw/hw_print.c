// hw_print.c - describes the machine for people (haggle doctor) and for programs (JSON).
#include "hw/hw.h"

#include "base/text.h"

void hw_print(FILE *f, const struct hw_machine *m, const struct hw_rates *r) {
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    fprintf(f, "cpu          %s (%s%s)\n", m->cpu, m->arch,
            m->virtual_machine ? ", virtual machine" : "");
    fprintf(f, "cpus         %d usable of %d: %d socket%s, %d core%s\n", m->usable_cpus, m->cpus,
            m->sockets, m->sockets == 1 ? "" : "s", m->cores, m->cores == 1 ? "" : "s");
    fprintf(f, "instructions %s:", hw_isa_level_name(m->level));
#define X(field, name)                                                                             \
    if (m->isa.field)                                                                              \
        fprintf(f, " " name);
    HW_ISA_LIST(X)
#undef X
    fprintf(f, "\ncaches      ");
    for (int i = 0; i < m->n_caches; i++)
        if (m->caches[i].kind != 'i')
            fprintf(f, " L%d %d x %s%s", m->caches[i].level, m->caches[i].instances,
                    text_bytes(a, m->caches[i].bytes), i + 1 < m->n_caches ? "," : "");
    if (m->n_caches == 0)
        fprintf(f, " unknown");
    fprintf(f, "\nmemory       %s, %s available; transparent huge pages: %s\n",
            text_bytes(a, m->memory_bytes), text_bytes(b, m->memory_available_bytes),
            m->huge_pages);
    if (m->n_nodes > 1) {
        fprintf(f, "numa        ");
        for (int i = 0; i < m->n_nodes; i++)
            fprintf(f, " node %d: %d cpus, %s%s", m->nodes[i].id, m->nodes[i].cpus,
                    text_bytes(a, m->nodes[i].memory_bytes), i + 1 < m->n_nodes ? ";" : "");
        fputc('\n', f);
    }
    fprintf(f, "kernel       %s\n", m->kernel);
    if (!r)
        return;
    fprintf(f, "measured with %d thread%s:\n", r->threads, r->threads == 1 ? "" : "s");
    if (r->cpu_share < HW_CPU_SHARE_MIN)
        fprintf(f, "  (too low: other processes ran, and haggle got %.0f%% of the CPU time)\n",
                100 * r->cpu_share);
    fprintf(f, "  multiply-adds in registers (%s)  %.1f GFLOP/s fp32\n",
            hw_isa_level_name(r->level), 1e-9 * r->vector_flops);
    if (r->matmul_flops > 0)
        fprintf(f, "  matrix products  %.1f GFLOP/s fp32 (%.0f%% of the line above)\n",
                1e-9 * r->matmul_flops, 100 * r->matmul_flops / r->vector_flops);
    if (r->matmul_bf16_flops > 0 || r->matmul_fp16_flops > 0)
        fprintf(f, "  16-bit products  %.1f GFLOP/s bf16, %.1f GFLOP/s fp16\n",
                1e-9 * r->matmul_bf16_flops, 1e-9 * r->matmul_fp16_flops);
    fprintf(f, "  memory  %.1f GB/s (a = b + s*c), %.1f GB/s (a = s*b)\n",
            1e-9 * r->memory_bytes_per_s, 1e-9 * r->copy_bytes_per_s);
    fprintf(f, "  fork and join  %s\n", text_duration(a, 1e-9 * r->fork_join_ns));
}

void hw_machine_put_json(const struct hw_machine *m, struct json_writer *w) {
    json_put_object_begin(w);
    json_member_string(w, "cpu", m->cpu);
    json_member_string(w, "arch", m->arch);
    json_member_string(w, "kernel", m->kernel);
    json_member_bool(w, "virtual_machine", m->virtual_machine);
    json_member_i64(w, "sockets", m->sockets);
    json_member_i64(w, "cores", m->cores);
    json_member_i64(w, "cpus", m->cpus);
    json_member_i64(w, "usable_cpus", m->usable_cpus);
    json_member_string(w, "isa", hw_isa_level_name(m->level));
    json_member_array(w, "instructions");
#define X(field, name)                                                                             \
    if (m->isa.field)                                                                              \
        json_put_string(w, name);
    HW_ISA_LIST(X)
#undef X
    json_put_array_end(w);
    json_member_array(w, "caches");
    for (int i = 0; i < m->n_caches; i++) {
        const struct hw_cache *c = &m->caches[i];
        json_put_object_begin(w);
        json_member_i64(w, "level", c->level);
        json_member_string(w, "kind",
                           c->kind == 'd'   ? "data"
                           : c->kind == 'i' ? "instructions"
                                            : "unified");
        json_member_i64(w, "bytes", (int64_t)c->bytes);
        json_member_i64(w, "instances", c->instances);
        json_put_object_end(w);
    }
    json_put_array_end(w);
    json_member_i64(w, "memory_bytes", (int64_t)m->memory_bytes);
    json_member_i64(w, "memory_available_bytes", (int64_t)m->memory_available_bytes);
    json_member_string(w, "huge_pages", m->huge_pages);
    json_member_array(w, "nodes");
    for (int i = 0; i < m->n_nodes; i++) {
        json_put_object_begin(w);
        json_member_i64(w, "id", m->nodes[i].id);
        json_member_i64(w, "cpus", m->nodes[i].cpus);
        json_member_i64(w, "memory_bytes", (int64_t)m->nodes[i].memory_bytes);
        json_put_object_end(w);
    }
    json_put_array_end(w);
    json_put_object_end(w);
}
