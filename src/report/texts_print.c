// texts_print.c - see texts_print.h.
#include "report/texts_print.h"

#include <math.h>

static double rate(int64_t tokens, uint64_t ns) {
    return tokens > 0 && ns > 0 ? 1e9 * (double)tokens / (double)ns : NAN;
}

double texts_prompt_rate(const struct decoder_times *t) {
    return rate(t->prompt_tokens, t->prompt_ns);
}

// Turns that hold prompts too say nothing about a token's own time, unless there are no others.
double texts_decode_rate(const struct decoder_times *t) {
    return rate(t->decode_tokens, t->decode_ns);
}

static const char *rate_text(char out[32], double x) {
    snprintf(out, 32, x < 100 ? "%.1f" : "%.0f", x);
    return out;
}

static const double quantiles[] = {0.5, 0.95, 0.99};

void texts_say_times(struct decoder_times *t, struct log *log) {
    struct quantile first, q[3];
    char text[3][QUANTILE_TEXT_BYTES], more[64] = "", number[32];
    if (!log_shows(log, LOG_INFO))
        return;
    samples_quantiles(&t->first, 0, quantiles, 1, &first);
    samples_quantiles(&t->between, 0, quantiles, 3, q);
    if (t->cached_tokens > 0)
        snprintf(more, sizeof more, " (and %lld from the cache)", (long long)t->cached_tokens);
    if (t->prompt_tokens > 0)
        log_put(log, LOG_INFO, "prompt   %lld token%s%s, %s tokens/s; first token after %.1f ms%s",
                (long long)t->prompt_tokens, t->prompt_tokens == 1 ? "" : "s", more,
                rate_text(number, texts_prompt_rate(t)), first.value / 1e6,
                first.n > 1 ? " (median)" : "");
    if (t->decode_tokens > 0)
        log_put(log, LOG_INFO, "text     %lld tokens, %s tokens/s", (long long)t->made_tokens,
                rate_text(number, texts_decode_rate(t)));
    if (q[0].n == 0)
        return;
    log_put(log, LOG_INFO, "between  %s", quantile_text(text[0], &q[0]));
    log_put(log, LOG_INFO, "         %s", quantile_text(text[1], &q[1]));
    log_put(log, LOG_INFO, "         %s", quantile_text(text[2], &q[2]));
}

void texts_put_quantile(const struct quantile *q, const char *key, struct json_writer *w) {
    json_member_object(w, key);
    json_member_double(w, "ms", q->value / 1e6);
    json_member_double(w, "upper95_ms", q->upper95 / 1e6);
    json_member_i64(w, "n", (int64_t)q->n);
    json_put_object_end(w);
}

void texts_put_times(struct decoder_times *t, struct json_writer *w) {
    static const char *const keys[] = {"between_p50", "between_p95", "between_p99"};
    struct quantile first, q[3];
    samples_quantiles(&t->first, 0, quantiles, 1, &first);
    samples_quantiles(&t->between, 0, quantiles, 3, q);
    json_member_object(w, "speed");
    json_member_i64(w, "prompt_tokens", t->prompt_tokens);
    json_member_i64(w, "cached_tokens", t->cached_tokens);
    json_member_double(w, "prefill_tokens_per_s", texts_prompt_rate(t));
    json_member_i64(w, "made_tokens", t->made_tokens);
    json_member_double(w, "tokens_per_s", texts_decode_rate(t));
    texts_put_quantile(&first, "first_token", w);
    for (int i = 0; i < 3; i++)
        texts_put_quantile(&q[i], keys[i], w);
    json_put_object_end(w);
}
