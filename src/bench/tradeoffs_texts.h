// tradeoffs_texts.h - what each format of the weights trades when texts are generated, against the
// model as given, in turns beside it.
//
// Place: api/bench.c makes the formats (api/formats.h) and calls this after the strategies of
// training; report/tradeoffs_print.c prints both.
//
// A row is a format with one text at a time, or with several side by side. Each visit is one of the
// tuner's (tune/gen_lab.h): a process of its own, a steady load, prompts that come in while texts
// generate. A round visits as given, then the format, and the next round in the other order.
#ifndef HAGGLE_BENCH_TRADEOFFS_TEXTS_H
#define HAGGLE_BENCH_TRADEOFFS_TEXTS_H

#include "base/log.h"
#include "bench/tradeoffs.h"
#include "tune/gen_lab.h"

enum { TRADEOFFS_TEXTS_MOST = 2 * GEN_VALUES_MOST, TRADEOFFS_NAME_BYTES = 64 };

struct texts_finding {
    struct finding finding;   // speed: tokens/s; p50: of the time between tokens; memory
    struct strategy strategy; // what finding.strategy points to
    char name[TRADEOFFS_NAME_BYTES], rule[2 * TRADEOFFS_NAME_BYTES];
    int format;
    int64_t batch;
    char reason[TUNE_TEXT_BYTES];              // why it was not measured; "": it was
    double tokens_per_s, between_ms, first_ms; // medians of the rounds
    double memory_bytes;
    double given_tokens_per_s, given_between_ms, given_memory_bytes;
    double kl, low, high; // NaN: not measured
};

struct tradeoffs_texts {
    struct gen_desk desk;             // the caller fills knobs, prompt, output, seed, stop
    const struct gen_format *formats; // [0] is as given
    int n_formats, rounds;
    double visit_s; // the least length of a visit
    struct texts_finding rows[TRADEOFFS_TEXTS_MOST];
    int n;
};

int tradeoffs_texts_measure(struct tradeoffs_texts *t, struct log *log, struct err *e);

#endif
