// gen.h - the search for generation: which format of the weights, how many threads, how many texts
// side by side and which chunk of prompts serve a model best, under budgets for the time to the
// first token, the time between tokens, and memory.
//
// Place: api/tune_gen.c makes the formats (gen_formats.h) and gives a laboratory (gen_lab.h). The
// space is small and has no knobs that trade against the mathematics, so it has a search of its
// own beside tune.h. Statistics are the same: contest.h compares, bound.h proves.
//
// What a visit measures: a steady load. `batch` texts are made side by side. When one ends, a new
// prompt takes its place and is computed in chunks, in the same turns as the tokens of the others.
// So the time between tokens contains turns that a prompt shares, and the time to the first token
// is that of a prompt that arrives while others generate. What a setting costs is the time of the
// load per generated token, prompts included. With one text at a time that is the latency of a
// text, divided by its tokens.
//
// Invariants:
//   1. A format is measured only if it is admitted. A setting is chosen only if it was measured,
//      fits memory, and no budget is known to be broken.
//   2. Visits during which other programs were busy count nowhere (unless count_busy).
//   3. A gain is announced only from rounds that were played for nothing else, whose number was
//      fixed before the first of them.
//   4. The search reads no clock but the laboratory's, and no random number.
#ifndef HAGGLE_TUNE_GEN_H
#define HAGGLE_TUNE_GEN_H

#include "base/storage.h"
#include "measure/contest.h"
#include "tune/tune.h"

// ---------------------------------------------------------------- what is asked

enum gen_dimension { GEN_FORMAT, GEN_BATCH, GEN_CHUNK, GEN_THREADS, GEN_DIMENSIONS };
enum { GEN_VALUES_MOST = 12 };
struct gen_space {                                   // a setting is an index into each list
    int64_t values[GEN_DIMENSIONS][GEN_VALUES_MOST]; // those of GEN_FORMAT mean nothing
    int n[GEN_DIMENSIONS], given[GEN_DIMENSIONS];    // given: of the setting as given
};

struct gen_format { // format 0 is the model as given
    char name[STORAGE_TEXT_BYTES];
    char refused[TUNE_TEXT_BYTES]; // why it is not admitted; "": it is
    uint64_t bytes;                // of the weights; 0: not known
    double kl, low, high, limit;   // nats per token, from the model as given; NaN: not measured
    double seconds;                // that making and comparing it took
};

enum gen_limit { GEN_FIRST, GEN_BETWEEN, GEN_LIMITS };
const char *gen_limit_name(enum gen_limit l); // "time to first token", ...

struct gen_request {
    uint64_t limit_ns[GEN_LIMITS]; // 0: none
    double p;                      // the percentile that they bound, as 0.95
    int64_t prompt, output;        // tokens of each prompt, and to make behind it
    struct gen_space space;
    const struct gen_format *formats; // space.n[GEN_FORMAT] of them
    uint64_t time_ns;
    bool count_busy;
};

// ---------------------------------------------------------------- the laboratory

struct gen_point {
    int format, threads;
    int64_t chunk, batch; // as it is run: a chunk is at most all prompts
};

struct gen_plan {
    int rc; // 0: it can run; else a code, and the reason in words
    char reason[TUNE_TEXT_BYTES];
    uint64_t need_bytes, have_bytes; // 0: not known
};

struct gen_measured {
    int rc;
    char reason[TUNE_TEXT_BYTES];
    double *ns[GEN_LIMITS]; // malloc'd by the laboratory, freed by the search
    size_t n[GEN_LIMITS];
    uint64_t tokens, wall_ns; // generated; of whole texts, one after the other
    uint64_t memory_bytes;    // measured peak; 0: not known
    double busy;              // share that other programs took; NaN: they cannot be seen
    double whole_s;           // that the visit took, with loading the model
};

struct gen;
struct gen_lab {
    void *arg;
    int (*plan)(void *arg, const struct gen_point *p, struct gen_plan *out, struct err *e);
    // Measures for about this long, a text at least. Fails only when nothing can be measured any
    // more (stopped). A setting that fails is a result: out->rc.
    int (*measure)(void *arg, const struct gen_point *p, double seconds, struct gen_measured *out,
                   struct err *e);
    uint64_t (*clock_ns)(void *arg);
    void (*on_visit)(void *arg, const struct gen *g, int setting); // may be NULL
};

// ---------------------------------------------------------------- what comes back

struct gen_setting {
    int at[GEN_DIMENSIONS];
    struct gen_point point;
    char name[TUNE_NAME_BYTES]; // what differs from the setting as given; "as given": nothing
    enum tune_outcome outcome;
    char reason[TUNE_TEXT_BYTES];
    uint64_t need_bytes, have_bytes, memory_bytes;
    double *ns[GEN_LIMITS]; // of all visits that count
    size_t n[GEN_LIMITS], capacity[GEN_LIMITS];
    double cost[CONTEST_MOST_BLOCKS]; // seconds per token of the first visits that count
    double last;                      // the same of the newest
    double percentile[GEN_LIMITS];    // in ns, that the budgets bound
    int visits, failed, busy;         // visits that count; that failed; that were busy
    uint64_t tokens, wall_ns;
    double whole_s;          // of the last visit
    struct tune_turns turns; // against as given, from the rounds of the finals
    bool frontier;           // nothing else measured has more tokens/s and less time between tokens
};

struct gen_bound { // of the choice
    bool asked;
    struct quantile q;
    bool proven; // under the limit, however often the search looked
};

struct gen {
    struct gen_request request;
    const struct tune_policy *policy;
    struct gen_lab lab;
    struct gen_setting *settings; // [0] is as given
    int n, capacity;
    int chosen, rival; // -1: none
    enum tune_why why;
    struct tune_turns gain; // of the duel's rival against as given; rounds 0: there was none
    bool provisional;
    struct gen_bound bounds[GEN_LIMITS];
    int least[GEN_LIMITS]; // the setting with the least of each; -1: none was measured
    int leanest;           // with the least planned memory; -1: none was planned
    int trials, busy;
    double busy_most; // NaN: they are not seen
    uint64_t begin_ns, end_ns;
    char why_none[2 * TUNE_TEXT_BYTES];
    int why_rc;
};

// Returns 0 also when nothing could be chosen (out->chosen < 0, out->why_none). With ERR_STOPPED
// *out holds what was found so far. The caller calls gen_free in every case.
int gen_run(struct gen *out, const struct gen_request *r, const struct gen_lab *lab, struct err *e);
void gen_free(struct gen *g);

double gen_cost(const struct gen_setting *s); // seconds per token, the median; NaN: not measured
double gen_tokens_per_s(const struct gen_setting *s);
double gen_speed(const struct gen_setting *s); // the same; of one that ran in turns: from them
struct quantile gen_quantile(const struct gen_setting *s, enum gen_limit l, double p);
// The largest percentile / limit of a measured setting; 0: nothing is limited. Above 1 a budget is
// broken as far as is known.
double gen_strain(const struct gen *g, const struct gen_setting *s);

// ---------------------------------------------------------------- for gen_finals.c

int gen_add(struct gen *g, const int at[GEN_DIMENSIONS], struct err *e); // index or negative code
int gen_visit(struct gen *g, int setting, struct err *e); // one that counts, or fails; see gen.c
double gen_elapsed(const struct gen *g);                  // share of the time
int gen_finals(struct gen *g, struct err *e);
void gen_explain(struct gen *g); // fills why_none

#endif
