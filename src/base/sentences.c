// sentences.c - see sentences.h.
#include "base/sentences.h"

#include <stdarg.h>
#include <string.h>

void sentences_add(struct sentences *s, const char *format, ...) {
    size_t used = strlen(s->lines);
    va_list args;
    if (used > 0 && used + 1 < sizeof s->lines) {
        s->lines[used++] = '\n';
        s->lines[used] = '\0';
    }
    va_start(args, format);
    vsnprintf(s->lines + used, sizeof s->lines - used, format, args);
    va_end(args);
    for (char *at = s->lines + used; (at = strchr(at, '\n'));) // a line break would end it
        *at = ' ';
}

bool sentences_next(const char **at, const char **sentence, size_t *length) {
    if (!*at || !**at)
        return false;
    *sentence = *at;
    *length = strcspn(*at, "\n");
    *at += *length + ((*at)[*length] == '\n');
    return true;
}

void sentences_put_json(const char *lines, const char *key, struct json_writer *w) {
    const char *sentence;
    size_t n;
    json_member_array(w, key);
    while (sentences_next(&lines, &sentence, &n))
        json_put_string_n(w, sentence, n);
    json_put_array_end(w);
}
