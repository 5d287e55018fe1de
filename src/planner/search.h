// search.h - which layout of ranks to run on a cluster: all are listed, bounds prune, the rest are
// estimated, and the goal chooses.
//
// Place in the flow: a question -> setups -> estimates -> an answer, which src/report prints.
#ifndef HAGGLE_PLANNER_SEARCH_H
#define HAGGLE_PLANNER_SEARCH_H

#include "knob/knob.h"
#include "planner/estimate.h"

enum planner_goal { PLANNER_BULK, PLANNER_INTERACTIVE };

#define PLANNER_METHOD_LIST(X)                                                                     \
    X(METHOD_FULL, "full", "16-bit weights, fp32 masters and moments")                             \
    X(METHOD_BF16_STATE, "full, bf16 state", "the same with bf16 moments")                         \
    X(METHOD_INT8_STATE, "full, 8-bit state", "the same with 8-bit moments")                       \
    X(METHOD_LORA, "lora", "LoRA of rank 16 on all matrices")
enum planner_method {
#define X(name, text, what) name,
    PLANNER_METHOD_LIST(X)
#undef X
        METHOD_COUNT
};
const char *planner_method_name(enum planner_method m);

struct planner_question {
    struct model_shape shape;
    char model[128]; // what the recipe names
    struct cluster cluster;
    enum planner_goal goal;
    enum planner_method method;
    enum planner_math math;
    int64_t seq, tokens; // tokens of a step; 0: DEFAULT_TOKENS, or as few as the ranks allow
    double p99_s;        // most that a step may take at the upper end of its interval; 0: any
    const struct planner_profile *profile;
    const struct planner_constants *constants;
};

// Why a family of layouts is not the choice. A layout belongs to the last of these that it uses.
#define PLANNER_FAMILY_LIST(X)                                                                     \
    X(LAYOUT_DATA, "replicas, all state on each")                                                  \
    X(LAYOUT_ZERO1, "ZeRO 1: optimizer dealt out")                                                 \
    X(LAYOUT_ZERO2, "ZeRO 2: gradients, too")                                                      \
    X(LAYOUT_ZERO3, "ZeRO 3: weights, too")                                                        \
    X(LAYOUT_TENSOR, "tensor parallel")                                                            \
    X(LAYOUT_PIPE, "pipeline")                                                                     \
    X(LAYOUT_BOTH, "tensor parallel and pipeline")
enum planner_family {
#define X(name, text) name,
    PLANNER_FAMILY_LIST(X)
#undef X
        LAYOUT_COUNT
};
const char *planner_family_name(enum planner_family f);

struct planner_option {
    struct planner_setup setup;
    struct estimate e;
    enum planner_family family;
    bool late; // its step may take longer than p99_s
};

struct planner_tried {
    int listed, bounded, estimated, fit; // layouts; bounded: a bound alone ruled them out
    double least_bytes;                  // that one of them needs
    int best;                            // of the options; -1: none fits
};

struct planner_answer {
    struct planner_option *options; // that fit, best first
    int n;
    size_t capacity;
    int chosen; // -1: none
    struct planner_tried families[LAYOUT_COUNT];
    double least_bytes;
    int64_t tokens;
};

int planner_search(struct planner_answer *a, const struct planner_question *q, struct err *e);
void planner_answer_free(struct planner_answer *a);

// The knobs that pin an option. ERR_UNSUPPORTED, with the reason: haggle cannot run it.
int planner_pin(const struct planner_question *q, const struct planner_option *o, struct knobs *k,
                struct err *e);
double planner_tokens_per_s(const struct planner_option *o);
double planner_mfu(const struct planner_question *q, const struct planner_option *o);

// "layers=80,hidden=8192,heads=64,kv=8,ffn=28672,vocab=128256": a shape by number. A gated MLP
// unless mlp=plain.
int planner_shape_parse(struct model_shape *s, const char *text, struct err *e);

#endif
