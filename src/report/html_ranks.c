// html_ranks.c - the part of a report about ranks: a row per rank, and what they send.
#include "report/html.h"
#include "report/html_text.h"

#include "base/text.h"

#include <math.h>

bool html_has_ranks(const struct html_page *p) {
    for (size_t i = 0; i < p->n; i++)
        if (p->runs[i].result.n_ranks > 1)
            return true;
    return false;
}

static void put_ms(FILE *f, double ms) {
    if (isnan(ms))
        fputs("<td></td>", f);
    else
        fprintf(f, "<td>%.2f</td>", ms);
}

static void put_bytes(FILE *f, double bytes) {
    char text[TEXT_UNIT_BYTES];
    if (isnan(bytes) || bytes <= 0)
        fputs("<td></td>", f);
    else
        fprintf(f, "<td>%s</td>", text_bytes(text, (uint64_t)bytes));
}

// Which rank the others wait for, and how long they wait.
static void put_sentence(FILE *f, const struct run_result *o) {
    double waits = 0, steps = 0;
    const struct run_rank *slowest = NULL;
    for (int i = 0; i < o->n_ranks; i++) {
        const struct run_rank *x = &o->ranks[i];
        waits += isnan(x->exposed_ms) ? 0 : x->exposed_ms;
        steps += isnan(x->exposed_ms) ? 0 : x->step_ms;
        slowest = x->rank == o->slowest ? x : slowest;
    }
    fputs("<p>", f);
    if (slowest && !isnan(slowest->work_ms))
        fprintf(f, "Rank %lld has the most work, %.2f ms of a step. ", (long long)slowest->rank,
                slowest->work_ms);
    if (steps > 0)
        fprintf(f, "Ranks wait for each other %.1f %% of the time (exposed communication). ",
                100 * waits / steps);
    if (o->bubble > 0)
        fprintf(f, "By its formula the pipeline is idle %.1f %% of a step", 100 * o->bubble);
    if (o->bubble > 0 && !isnan(o->waited_for_stages))
        fprintf(f, "; its stages waited for each other %.1f %% of the time",
                100 * o->waited_for_stages);
    fputs(o->bubble > 0 ? "." : "", f);
    fputs("</p>\n", f);
}

static void put_rows(FILE *f, const struct run_result *o) {
    fputs("<div class=\"scroll\"><table class=\"ranks\"><thead><tr><th scope=\"col\">rank</th>"
          "<th scope=\"col\">data, tensor, pipe</th><th scope=\"col\">step p50, ms</th>"
          "<th scope=\"col\">own work, ms</th><th scope=\"col\">exposed communication, ms</th>"
          "<th scope=\"col\">waiting for data, ms</th><th scope=\"col\">arena</th>"
          "<th scope=\"col\">planned</th></tr></thead><tbody>\n",
          f);
    for (int i = 0; i < o->n_ranks; i++) {
        const struct run_rank *x = &o->ranks[i];
        fprintf(f, "<tr><th scope=\"row\">%lld%s</th><td>%lld, %lld, %lld</td>", (long long)x->rank,
                x->rank == o->slowest ? " (slowest)" : "", (long long)x->data, (long long)x->tensor,
                (long long)x->pipe);
        put_ms(f, x->step_ms);
        put_ms(f, x->work_ms);
        put_ms(f, x->exposed_ms);
        put_ms(f, x->data_wait_ms);
        put_bytes(f, x->arena_bytes);
        put_bytes(f, x->planned_bytes);
        fputs("</tr>\n", f);
    }
    fputs("</tbody></table></div>\n", f);
    if (o->world > o->n_ranks)
        fprintf(f, "<p class=\"small\">and %lld more; result.json has them all</p>\n",
                (long long)(o->world - o->n_ranks));
}

static void put_traffic(FILE *f, const struct run_result *o) {
    if (o->n_traffic == 0)
        return;
    fputs("<div class=\"scroll\"><table class=\"traffic\"><thead><tr>"
          "<th scope=\"col\">rank 0 sends in a step</th><th scope=\"col\">group</th>"
          "<th scope=\"col\">calls</th><th scope=\"col\">bytes</th>"
          "<th scope=\"col\">textbook</th></tr></thead><tbody>\n",
          f);
    for (int i = 0; i < o->n_traffic; i++) {
        const struct run_traffic *x = &o->traffic[i];
        html_put_between(f, "<tr><th scope=\"row\">", x->op, "</th>");
        html_put_between(f, "<td>", x->group, "</td>");
        fprintf(f, "<td>%lld</td>", (long long)x->calls);
        put_bytes(f, x->bytes);
        put_bytes(f, x->textbook);
        fputs("</tr>\n", f);
    }
    fputs("</tbody></table></div>\n", f);
}

void html_put_ranks(struct html_page *p) {
    for (size_t i = 0; i < p->n; i++) {
        const struct run_result *o = &p->runs[i].result;
        if (o->n_ranks < 2)
            continue;
        fprintf(p->f, "<figure id=\"ranks%zu\">", i);
        if (p->n > 1)
            html_put_between(p->f, "<figcaption>", p->runs[i].name, "</figcaption>");
        put_sentence(p->f, o);
        put_rows(p->f, o);
        put_traffic(p->f, o);
        fputs("</figure>\n", p->f);
    }
}
