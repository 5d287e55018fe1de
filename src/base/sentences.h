// sentences.h - a list of sentences: one a line.
//
// A verdict is such a list in memory and in the store; as JSON it is an array. The sentences become
// one text only when they are printed.
#ifndef HAGGLE_BASE_SENTENCES_H
#define HAGGLE_BASE_SENTENCES_H

#include "base/err.h"
#include "base/json.h"

#include <stdio.h>

enum { SENTENCES_BYTES = 4096 };
struct sentences {
    char lines[SENTENCES_BYTES]; // "" when there are none; what does not fit is cut off
};

void sentences_add(struct sentences *s, const char *format, ...) ERR_PRINTF(2, 3);
// The next sentence of lines at *at, with its length; false: there is none left.
bool sentences_next(const char **at, const char **sentence, size_t *length);
void sentences_put_json(const char *lines, const char *key, struct json_writer *w);

#endif
