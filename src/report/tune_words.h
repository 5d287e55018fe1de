// tune_words.h - what the page of a search and its tables in the terminal have in common: which
// figures can be compared, why a setting was not chosen, and as given beside the choice.
//
// Terms: a setting ran in turns if its rounds with as given count (tune_setting.turns). A glance is
// a measured setting that did not. Glances were made at different times, so their figures cannot be
// compared with others. The tables list them after the settings that ran in turns, and the plots
// draw them small.
//
// Invariant: a setting whose figure looks better than the choice's has a reason (tune_reason).
#ifndef HAGGLE_REPORT_TUNE_WORDS_H
#define HAGGLE_REPORT_TUNE_WORDS_H

#include "tune/tune.h"

enum { TUNE_WORDS_BYTES = 2 * TUNE_TEXT_BYTES };

// ---------------------------------------------------------------- figures

// An interactive search without a latency budget compares the latency of a sample, all others
// tokens/s.
bool tune_by_sample(const struct tune_request *r);
bool tune_in_turns(const struct tune_setting *s);
// It and as given both did. If as given cannot run, the choice stands in for it, and nothing was
// gained.
bool tune_is_compared(const struct tune *t, int i);
bool tune_is_glance(const struct tune *t, int i); // the choice is none
// Tokens per second. Of settings that ran in turns: the speed of as given in its last rounds, times
// the ratio. So these figures agree with each other, whenever the rounds were. NaN: not measured.
double tune_speed(const struct tune *t, int i);
// Latency of a sample: its micro-batch's time in ms. It belongs to tune_speed where the setting ran
// in turns. NaN: not measured.
double tune_sample_ms(const struct tune *t, int i);

struct tune_range {
    double low, high; // 95 % interval of tokens/s; NaN: none
    double seconds;   // measured; visits while others were busy count only if there is no other
    size_t steps;     // in these seconds
};
// In turns: the interval of the rounds. Else that of the median step.
void tune_range_of(const struct tune *t, int i, struct tune_range *out);

// ---------------------------------------------------------------- order

// Where a setting is in a table: by group, the best of each group first.
enum tune_group {
    GROUP_CHOSEN,
    GROUP_GIVEN,
    GROUP_TURNS,
    GROUP_GLANCES,
    GROUP_OUT,    // measured only briefly, and over a budget or failed
    GROUP_FAILED, // before anything was measured
    GROUP_UNMEASURED
};
struct tune_place {
    int at; // setting
    enum tune_group group;
    double worse; // greater is worse, within a group
};
// Returns t->n places in order, malloc'd. NULL: no memory.
struct tune_place *tune_places(const struct tune *t);

// ---------------------------------------------------------------- words

// "+3.1 % (+1.0 to +5.2)": tokens/s against as given, or the latency of a sample where the goal is
// that. "": as given itself, or not run in turns.
const char *tune_against(char out[TUNE_WORDS_BYTES], const struct tune *t, int i);
// The same in a sentence: "10.1 % faster", and "8.2 to 12.3 %, 95 % sure, 14 rounds in turns".
const char *tune_gain(char out[TUNE_WORDS_BYTES], const struct tune *t, int i);
const char *tune_gain_interval(char out[TUNE_WORDS_BYTES], const struct tune *t, int i);
// Whether the figure that the goal compares is better than the choice's.
bool tune_looks_better(const struct tune *t, int i);
// Why a setting was not chosen. "": it was, or nothing but its figures speaks against it.
const char *tune_reason(char out[TUNE_WORDS_BYTES], const struct tune *t, int i);
// One line on all settings that look better than the choice. "": there are none.
const char *tune_better_line(char out[TUNE_WORDS_BYTES], const struct tune *t);

// ---------------------------------------------------------------- tune_trade.c

struct tune_trade {
    const char *label, *hint; // hint: what the label means; NULL: nothing to add
    double value[2];          // as given, the choice; NaN: not known
    char text[2][48], note[2][QUANTILE_TEXT_BYTES];
    bool unbounded[2]; // a percentile of too few steps for a bound; the text has a question mark
    char change[64];   // from as given to the choice
    char budget[48], kept[96];
    bool brief; // also in the terminal
};
enum { TUNE_TRADE_MOST = 10 };
// A row for each figure, and so for each budget. memory_budget 0: none. Returns how many.
int tune_trade_rows(const struct tune *t, uint64_t memory_budget,
                    struct tune_trade rows[TUNE_TRADE_MOST]);
extern const char tune_unbounded_note[]; // what the question mark means

#endif
