// texts.c - see texts.h.
#include "infer/texts.h"

#include "base/array.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

struct slot { // a text that is being made
    struct text_job *job;
    struct speaker *speaker; // NULL without a tokenizer
};

struct texts {
    struct decoder *decoder;
    struct texts_options options;
    struct slot *slots;
    int64_t n;
    texts_said_fn *said;
    void *arg;
};

enum { TEXT_BYTES = 8 }; // of a token's text: what is reserved

static bool has_text(const struct texts_options *o) {
    return o->tokenizer && !tokenizer_is_ids(o->tokenizer);
}

void text_job_free(struct text_job *j) {
    free(j->ids);
    free(j->text);
    j->ids = NULL;
    j->text = NULL;
}

const char *text_job_end(const struct text_job *j) {
    return j->end == DECODER_ENDED     ? "end of text"
           : j->end == DECODER_FULL    ? "context"
           : j->end == DECODER_STOPPED ? "stop"
                                       : "length";
}

int texts_open(struct texts **out, struct session *s, const struct texts_options *o,
               struct err *e) {
    struct texts *t = *out = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, ERR_MEMORY, "out of memory for texts");
    t->options = *o;
    t->n = s->plan->extend.sequences;
    t->slots = calloc((size_t)t->n, sizeof *t->slots);
    int rc = t->slots ? decoder_open(&t->decoder, s, o->times, e)
                      : err_set(e, ERR_MEMORY, "out of memory for texts");
    for (int64_t i = 0; rc == 0 && has_text(o) && i < t->n; i++)
        rc = speaker_open(&t->slots[i].speaker, o->tokenizer, o->prompt + o->most, o->stops,
                          o->n_stops, e);
    if (rc == 0 && !has_text(o) && o->n_stops > 0)
        rc = err_set(e, ERR_USAGE, "stop strings need text, and the output is ids");
    if (rc != 0) {
        texts_close(t);
        *out = NULL;
    }
    return rc;
}

void texts_close(struct texts *t) {
    for (int64_t i = 0; t && t->slots && i < t->n; i++)
        speaker_close(t->slots[i].speaker);
    if (t) {
        free(t->slots);
        decoder_close(t->decoder);
    }
    free(t);
}

struct decoder_times *texts_times(struct texts *t) {
    return decoder_times(t->decoder);
}

static size_t reserved_text(int64_t tokens) {
    return TEXT_BYTES * (size_t)(tokens + 1);
}

uint64_t texts_bytes(const struct plan *p, const struct texts_options *o, size_t jobs) {
    return sizeof(struct texts) + decoder_bytes(p, o->times) +
           (uint64_t)p->extend.sequences *
               (sizeof(struct slot) + speaker_bytes(o->prompt + o->most)) +
           jobs * (sizeof(struct text_job) + (uint64_t)(o->most + 1) * sizeof(int32_t) +
                   reserved_text(o->prompt + o->most));
}

// ---------------------------------------------------------------- a token

static int keep(struct text_job *j, const struct speaker_piece *p, struct err *e) {
    if (!array_room(&j->text, j->bytes, p->bytes, &j->capacity, 1, 64))
        return err_set(e, ERR_MEMORY, "out of memory for a text");
    memcpy(j->text + j->bytes, p->text, p->bytes);
    j->bytes += p->bytes;
    return 0;
}

// Says what a part of the text is, and what was held back when the text ends.
static int say(struct texts *t, struct slot *s, const struct speaker_piece *p, struct err *e) {
    struct text_job *j = s->job;
    if (s->speaker)
        TRY(keep(j, p, e));
    if (p->stopped && j->end != DECODER_STOPPED)
        j->end = DECODER_STOPPED;
    return t->said ? t->said(t->arg, j, p->text, p->bytes, e) : 0;
}

static int take_token(void *arg, void *tag, int32_t id, enum decoder_end end, struct err *e) {
    struct texts *t = arg;
    struct slot *s = tag;
    struct text_job *j = s->job;
    struct speaker_piece piece = {.text = ""};
    j->end = end;
    j->end_ns = clock_ns();
    if (id >= 0)
        j->ids[j->n_ids++] = id;
    if (s->speaker && id >= 0)
        TRY(speaker_say(s->speaker, &id, 1, true, &piece, e));
    int rc = say(t, s, &piece, e);
    if (rc == DECODER_STOP && j->end == DECODER_GOES_ON)
        j->end = DECODER_LENGTH;
    if (rc >= 0 && j->end == DECODER_GOES_ON)
        return 0;
    if (rc >= 0 && s->speaker && j->end != DECODER_STOPPED) {
        TRY(speaker_finish(s->speaker, &piece, e));
        const int last = say(t, s, &piece, e);
        rc = last < 0 ? last : rc;
    }
    s->job = NULL;
    return rc < 0 ? rc : DECODER_STOP;
}

// ---------------------------------------------------------------- jobs

static int reserve(struct texts *t, struct text_job *j, struct err *e) {
    const size_t bytes = has_text(&t->options) ? reserved_text(j->n + j->most) : 0;
    j->ids = malloc((size_t)(j->most + 1) * sizeof *j->ids);
    j->text = bytes ? malloc(bytes) : NULL;
    j->capacity = bytes;
    j->n_ids = 0;
    j->bytes = 0;
    return j->ids && (j->text || !bytes)
               ? 0
               : err_set(e, ERR_MEMORY, "out of memory for a text of %lld tokens",
                         (long long)j->most);
}

static unsigned flags_of(const struct texts *t, const struct text_job *j) {
    for (int64_t i = 0; !j->whole && !j->apart && i < j->n; i++)
        if (tokenizer_has(t->options.tokenizer, j->prompt[i]) &&
            !tokenizer_is_special(t->options.tokenizer, j->prompt[i]))
            return TOKENIZER_CONTINUES;
    return 0;
}

static int begin(struct texts *t, struct text_job *j, struct err *e) {
    int64_t i = 0;
    while (t->slots[i].job)
        i++;
    struct slot *s = &t->slots[i];
    struct decoder_request r = {
        .prompt = j->prompt, .n = j->n, .most = j->most, .how = j->how, .tag = s};
    memcpy(r.ends, j->ends, sizeof r.ends);
    r.n_ends = j->n_ends;
    j->begin_ns = j->end_ns = clock_ns();
    s->job = j;
    TRY(decoder_add(t->decoder, &r, e));
    if (!s->speaker)
        return 0;
    struct speaker_piece piece;
    speaker_begin(s->speaker, flags_of(t, j));
    if (!j->whole)
        return 0;
    TRY(speaker_say(s->speaker, j->prompt, j->n, false, &piece, e));
    const int rc = say(t, s, &piece, e);
    return rc < 0 ? rc : 0;
}

int texts_make(struct texts *t, struct text_job *jobs, size_t n, texts_said_fn *said, void *arg,
               struct err *e) {
    size_t next = 0;
    t->said = said;
    t->arg = arg;
    for (size_t i = 0; i < n; i++)
        TRY(reserve(t, &jobs[i], e));
    while (next < n || decoder_busy(t->decoder)) {
        while (next < n && decoder_free(t->decoder) > 0)
            TRY(begin(t, &jobs[next++], e));
        TRY(decoder_turn(t->decoder, take_token, t, e));
    }
    return 0;
}
