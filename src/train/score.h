// score.h - the loss of a model on every record of a file, and two models compared by it.
//
// Place: `haggle eval` scores models one after the other. Data is read as training reads it:
// shapes, templates, and which tokens are trained, which here are the tokens that are scored. The
// others are context. Windows and turns are the evaluator's (evaluate.h).
//
//   score_open      the data as this model's tokens: which units there are, what each weighs
//   score_pair      whether two models can be compared on it, and how; before anything is computed
//   score_model     plan, engine, weights, one pass: the nats of every unit
//   score_compare   the difference of two models, unit by unit
//
// A *unit* is a record, or a sequence of a plain text: a stretch of seq tokens. Tokens inside one
// are alike, so only the differences between units say how exact a mean is (measure/rate.h).
//
// Invariants:
//   1. Every scored token of a unit counts once, with the context of its own document alone.
//   2. A unit's figures depend on model and data, not on the batch or on what shares its window.
//   3. Bytes are those of the text that the scored tokens spell. Special tokens have none, but
//      their loss counts.
#ifndef HAGGLE_TRAIN_SCORE_H
#define HAGGLE_TRAIN_SCORE_H

#include "data/dataset.h"
#include "engine/session.h"
#include "measure/rate.h"

#include <limits.h>
#include <signal.h>

struct score_text;

struct score_unit {
    double nats;            // summed over its scored tokens
    uint64_t tokens, bytes; // scored; tokens 0: it counts nowhere
    bool cut;               // tokens behind seq are left out
};

struct score {
    struct knobs knobs; // of the model and of how the data is read
    struct dataset *data;
    int64_t vocab; // of the model
    struct score_unit *units;
    size_t n_units;
    size_t *first_unit;         // [files + 1]: of each file
    struct score_text *texts;   // [files]: plain texts in stretches of bytes (score_text.h)
    uint64_t documents;         // records and texts
    size_t scored_units;        // with a scored token
    uint64_t tokens, bytes;     // scored, of all units
    bool records, sequences;    // what kinds of units there are
    bool ids, speaks;           // the data has token ids; their text is known
    struct pack_stats stats;    // what seq cut off
    char hash[HASH_TEXT_BYTES]; // of all ids and which of them are scored
    // After score_model
    double nats, seconds;
    uint64_t windows; // of seq tokens, that the units were laid in
};

struct score_listener { // any member may be NULL
    struct shard_listener data;
    void *arg;
    void (*progress)(void *arg, uint64_t done, uint64_t windows);
    const volatile sig_atomic_t *stop;
};

// Opens k->data_path for the model k->model, which is a folder, a checkpoint or a built-in shape.
// Every record is cut to k->seq tokens (data.long=split: none is).
int score_open(struct score *s, const struct knobs *k, const struct score_listener *l,
               struct err *e);
// The same data divided by text (dataset.h, by_text): `fraction` of the records is the validation
// split, the others are the training split; 0: all are, and windows are those of training. There
// are no units: it is for likeness.h and for what calibrates.
int score_open_divided(struct score *s, const struct knobs *k, double fraction,
                       const struct score_listener *l, struct err *e);
void score_close(struct score *s); // also after a failure, and zeroed
// Scores the model. adapter: a checkpoint of an adapter whose base k->model is; "": none.
// ERR_NUMERIC when a loss is not finite.
int score_model(struct score *s, const char *adapter, const struct score_listener *l,
                struct err *e);
// The same with a session that holds the model: its plan has PLAN_EVAL for the knobs that
// score_plan_knobs gave, and keeps the losses of rows.
int score_session(struct score *s, struct session *session, const struct score_listener *l,
                  struct err *e);
void score_plan_knobs(const struct score *s, struct knobs *k);

// Nats per scored token, and bits per byte (n 0 when the text is not known). No unit: NaN.
int score_loss(const struct score *s, struct rate *out, struct err *e);
int score_bits(const struct score *s, struct rate *out, struct err *e);

enum score_pairing { SCORE_BY_TOKEN, SCORE_BY_BYTE };
// SCORE_BY_TOKEN if both read the same tokens. SCORE_BY_BYTE if they read the same records as other
// tokens; plain texts are then compared in stretches of as many bytes. ERR_MISMATCH if the units of
// one are not those of the other.
int score_pair(const struct score *a, const struct score *b, enum score_pairing *out,
               struct err *e);

struct score_comparison {
    enum score_pairing by;
    struct rate difference;    // a's rate minus b's: nats per token, or bits per byte
    size_t wins, losses, ties; // units in which a's rate is lower, higher, the same
    size_t left_out;           // SCORE_BY_BYTE: units that one of the two did not read whole
};
// Two units tie when their rates differ by less than this, which is rounding of float32 sums.
#define SCORE_TIE 1e-6
int score_compare(const struct score *a, const struct score *b, struct score_comparison *out,
                  struct err *e);

#endif
