// bench_tokenize.c - the speed of tokenizing: megabytes per second on one thread and on two, and
// CPU time for n and 2n bytes of texts that make some splitters slow.
//
//   bench_tokenize TOKENIZER.json [TEXT-FILE]     without a file: generated English-like prose
#include "base/file.h"
#include "model/tokenizer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// CPU seconds of this thread, so that other work on the machine does not count.
static double own_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int fail(const struct err *e) {
    fprintf(stderr, "bench_tokenize: %s\n", e->text);
    return 1;
}

static uint64_t next_random(uint64_t *s) {
    *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
    return *s;
}

// Words of many lengths, short ones more often, with capitals, commas, numbers and paragraphs.
static char *make_prose(size_t bytes) {
    static const char *const syllables[] = {"the", "er",  "in", "con", "ti",  "ma",  "re",   "al",
                                            "ing", "sta", "ve", "ro",  "pre", "li",  "ment", "ou",
                                            "ght", "de",  "un", "ex",  "com", "ple", "ion",  "ab"};
    static const char *const common[] = {"the", "of",  "and", "to",  "in",   "is", "that", "it",
                                         "was", "for", "on",  "are", "with", "as", "be",   "at"};
    char *text = malloc(bytes + 64), *p = text;
    uint64_t seed = 88172645463325252u;
    for (int word = 1; text && p < text + bytes; word++) {
        uint64_t x = next_random(&seed);
        if (x % 2) {
            p += sprintf(p, "%s", common[x / 2 % 16]);
        } else if (x % 61 == 0) {
            p += sprintf(p, "%d", (int)(x >> 40 & 4095));
        } else { // about 5,000 different words
            uint64_t w = (x >> 20) % 5000 * 2654435761u;
            for (int k = 0; k < 2 + (int)(w >> 8 & 1); k++, w /= 24)
                p += sprintf(p, "%s", syllables[w % 24]);
        }
        if (x >> 33 & 1 && word % 7 == 0)
            *p++ = ',';
        if (word % 13 == 0)
            *p++ = '.';
        if (word % 97 == 0)
            *p++ = '\n', *p++ = '\n';
        else
            *p++ = ' ';
    }
    return text;
}

struct job {
    const struct tokenizer *t;
    const char *text;
    size_t bytes, tokens;
    double seconds;
    int rc;
    struct err e;
};

// Documents of about 4 KiB, as a data file has them.
static void *encode_all(void *arg) {
    struct job *j = arg;
    struct tokenizer_encoder *c = NULL;
    struct token_list l = {0};
    j->rc = tokenizer_encoder_open(&c, j->t, &j->e);
    double start = own_seconds();
    for (size_t at = 0; j->rc == 0 && at < j->bytes;) {
        size_t n = j->bytes - at < 4096 ? j->bytes - at : 4096;
        l.n = 0;
        j->rc = tokenizer_encode(c, j->text + at, n, TOKENIZER_SPECIAL, &l, &j->e);
        j->tokens += l.n;
        at += n;
    }
    j->seconds = own_seconds() - start;
    tokenizer_encoder_close(c);
    token_list_free(&l);
    return NULL;
}

static int measure(const struct tokenizer *t, const char *text, size_t bytes) {
    double best = 0;
    size_t tokens = 0;
    for (int round = 0; round < 3; round++) {
        struct job j = {.t = t, .text = text, .bytes = bytes};
        encode_all(&j);
        if (j.rc != 0)
            return fail(&j.e);
        best = best == 0 || j.seconds < best ? j.seconds : best;
        tokens = j.tokens;
    }
    printf("1 thread:  %7.1f MB/s of CPU time, %.2f bytes per token\n", (double)bytes / best / 1e6,
           (double)bytes / (double)tokens);
    // Wall time, one and two threads in turn, so that a slow moment of the machine affects both.
    double wall[2] = {1e9, 1e9};
    for (int round = 0; round < 6; round++) {
        int threads = 1 + round % 2;
        size_t half = threads == 2 ? bytes / 2 : 0;
        struct job j[2] = {{.t = t, .text = text, .bytes = half},
                           {.t = t, .text = text + half, .bytes = bytes - half}};
        pthread_t other;
        double start = now();
        if (threads == 2 && pthread_create(&other, NULL, encode_all, &j[0]) != 0)
            return 1;
        encode_all(&j[1]);
        if (threads == 2)
            pthread_join(other, NULL);
        double seconds = now() - start;
        wall[threads - 1] = seconds < wall[threads - 1] ? seconds : wall[threads - 1];
    }
    printf("on the clock: %.1f MB/s with 1 thread, %.1f with 2: x%.2f\n",
           (double)bytes / wall[0] / 1e6, (double)bytes / wall[1] / 1e6, wall[0] / wall[1]);
    return 0;
}

static void fill(char *text, size_t n, int kind) {
    uint64_t seed = 1;
    for (size_t i = 0; i < n; i++)
        text[i] = kind == 0   ? 'a'
                  : kind == 1 ? ' '
                  : kind == 2 ? '^'
                  : kind == 3 ? "\xF0\x9F\x98\x80"[i % 4]
                  : kind == 4 ? (char)next_random(&seed)
                  : kind == 5 ? "\xCC\x81\xCC\xA3"[i % 4]
                              : '\n';
}

static int measure_hostile(const struct tokenizer *t) {
    static const char *const names[] = {"one letter", "spaces", "^",     "emoji",
                                        "random",     "marks",  "breaks"};
    enum { N = 1 << 20 };
    char *text = malloc(2 * N);
    struct tokenizer_encoder *c = NULL;
    struct token_list l = {0};
    struct err e = {0};
    if (!text || tokenizer_encoder_open(&c, t, &e) != 0)
        return fail(&e);
    for (int kind = 0; kind < 7; kind++) {
        double seconds[2];
        for (int k = 0; k < 2; k++) {
            size_t n = (size_t)N << k;
            fill(text, n, kind);
            l.n = 0;
            double start = own_seconds();
            if (tokenizer_encode(c, text, n, 0, &l, &e) != 0)
                return fail(&e);
            seconds[k] = own_seconds() - start;
        }
        printf("%-10s  1 MiB %6.3f s  2 MiB %6.3f s  ratio %.2f\n", names[kind], seconds[0],
               seconds[1], seconds[1] / seconds[0]);
    }
    tokenizer_encoder_close(c);
    token_list_free(&l);
    free(text);
    return 0;
}

int main(int argc, char **argv) {
    struct tokenizer *t;
    struct err e = {0};
    char *text = NULL;
    size_t bytes = 8 << 20;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_tokenize TOKENIZER.json [TEXT-FILE]\n");
        return 2;
    }
    double start = now();
    if (tokenizer_open(&t, argv[1], &e) != 0)
        return fail(&e);
    printf("%s: opened in %.3f s\n", tokenizer_describe(t), now() - start);
    if (argc > 2 && file_read_all(argv[2], 1 << 30, &text, &bytes, &e) != 0)
        return fail(&e);
    if (argc == 2)
        text = make_prose(bytes);
    int rc = text ? measure(t, text, bytes) : 1;
    if (rc == 0)
        rc = measure_hostile(t);
    free(text);
    tokenizer_close(t);
    return rc;
}
