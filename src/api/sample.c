// sample.c - see sample.h.
#include "api/sample.h"

#include "base/clock.h"
#include "data/bytes.h"

#include <stdlib.h>
#include <string.h>

int sample_make(struct sample *out, struct session *s, const int32_t *prompt, size_t n,
                int64_t tokens, double budget_s, struct err *e) {
    int64_t capacity = s->programs[SESSION_GENERATE]->seq;
    *out = (struct sample){.ids = calloc((size_t)capacity, sizeof *out->ids)};
    if (!out->ids)
        return err_set(e, ERR_MEMORY, "out of memory for %lld tokens", (long long)capacity);
    if ((int64_t)n > capacity)
        return err_set(e, ERR_INTERNAL, "the prompt is longer than the generate program");
    memcpy(out->ids, prompt, n * sizeof *prompt);
    out->length = (int64_t)n;
    const uint64_t begin = clock_ns();
    // Token by token, so that the end of a document ends the work.
    for (int64_t i = 0; i < tokens && out->length < capacity && !out->ended; i++) {
        TRY(session_generate(s, out->ids, capacity, &out->length, 1, 1, e));
        int32_t last = out->ids[out->length - 1];
        out->ended = last == s->shape.eos_id;
        out->seconds = 1e-9 * (double)(clock_ns() - begin);
        if (budget_s > 0 && out->seconds > budget_s)
            break;
    }
    return 0;
}

void sample_free(struct sample *s) {
    free(s->ids);
    *s = (struct sample){0};
}

// Control characters of a half-trained model must not reach a terminal.
static void print_byte(unsigned char c, FILE *f) {
    if (c == '\n' || c == '\t' || (c >= 0x20 && c != 0x7f))
        fputc(c, f);
    else
        fprintf(f, "\\x%02x", c);
}

void sample_print(const struct sample *s, size_t from, bool bytes, FILE *f) {
    bool newline = false;
    for (int64_t i = (int64_t)from; i < s->length; i++) {
        if (!bytes)
            fprintf(f, "%s%d", i > (int64_t)from ? "," : "", s->ids[i]);
        else if (s->ids[i] >= 0 && s->ids[i] < BYTES_END_OF_TEXT)
            print_byte((unsigned char)s->ids[i], f);
        newline = bytes && s->ids[i] == '\n';
    }
    if (!newline)
        fputc('\n', f);
}

int sample_put_json(const struct sample *s, size_t from, bool bytes, struct json_writer *w,
                    struct err *e) {
    size_t n = (size_t)s->length - from;
    json_put_key(w, "ids");
    json_put_array_begin(w);
    for (size_t i = 0; i < n; i++)
        json_put_i64(w, s->ids[from + i]);
    json_put_array_end(w);
    if (!bytes)
        return 0;
    char *text = malloc(n + 1);
    if (!text)
        return err_set(e, ERR_MEMORY, "out of memory for %zu bytes of text", n);
    json_put_key(w, "text");
    json_put_string_n(w, text, bytes_decode(s->ids + from, n, text));
    free(text);
    return 0;
}
