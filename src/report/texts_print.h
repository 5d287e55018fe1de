// texts_print.h - how fast texts were made, for people and as JSON.
#ifndef HAGGLE_REPORT_TEXTS_PRINT_H
#define HAGGLE_REPORT_TEXTS_PRINT_H

#include "base/json.h"
#include "base/log.h"
#include "infer/decoder.h"

// Two lines: the prompts, and the tokens behind them.
void texts_say_times(struct decoder_times *t, struct log *log);
// Member "speed".
void texts_put_times(struct decoder_times *t, struct json_writer *w);
// Member `key`: {"ms", "upper95_ms", "n"}; times in ns.
void texts_put_quantile(const struct quantile *q, const char *key, struct json_writer *w);

double texts_prompt_rate(const struct decoder_times *t); // tokens/s; NaN: none
double texts_decode_rate(const struct decoder_times *t);

#endif
