// tokenize.c - haggle_tokenize: reads JSONL and prints a line of ids for each, or ids to text.
#include "api/api.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/pool.h"
#include "data/tokenize.h"

#include <string.h>

static int open_tokenizer(struct tokenizer **t, const char *path, struct err *e) {
    char file[PATH_MAX];
    if (!path)
        return err_set(e, ERR_USAGE,
                       "which tokenizer? accepted: a tokenizer.json, a folder with "
                       "one, or bytes");
    if (strcmp(path, "bytes") == 0 && !file_exists(path))
        return tokenizer_open_bytes(t, e);
    if (!file_is_dir(path))
        return tokenizer_open(t, path, e);
    TRY(file_join(file, sizeof file, path, "tokenizer.json", e));
    return tokenizer_open(t, file, e);
}

static void report(struct call *c, const struct tokenizer *t, const struct tokenize_counts *n,
                   int threads, double seconds) {
    if (n->blank > 0)
        log_put(&c->log, LOG_WARN, "%llu blank lines were skipped", (unsigned long long)n->blank);
    if (!call_json_begin(c, "tokenize", NULL))
        return;
    json_member_string(&c->json, "tokenizer", tokenizer_describe(t));
    json_member_string(&c->json, "fingerprint", tokenizer_fingerprint(t));
    json_member_i64(&c->json, "lines", (int64_t)n->lines);
    json_member_i64(&c->json, "blank_lines", (int64_t)n->blank);
    json_member_i64(&c->json, "tokens", (int64_t)n->tokens);
    json_member_i64(&c->json, "text_bytes", (int64_t)n->bytes);
    json_member_i64(&c->json, "threads", threads);
    json_member_double(&c->json, "seconds", seconds);
    json_put_object_end(&c->json);
}

static int tokenize(struct call *c, const struct haggle_tokenize *x, FILE *in, struct err *e) {
    const struct tokenize_options o = {.decode = x->decode,
                                       .plain = x->plain,
                                       .threads =
                                           x->threads > 0 ? x->threads : pool_machine_cpus()};
    struct tokenize_counts counts;
    struct tokenizer *t;
    TRY(open_tokenizer(&t, x->tokenizer, e));
    uint64_t start = clock_ns();
    int rc = tokenize_lines(t, &o, in, c->out, &counts, e);
    if (rc == 0)
        report(c, t, &counts, o.threads, 1e-9 * (double)(clock_ns() - start));
    tokenizer_close(t);
    return rc;
}

int haggle_tokenize(const struct haggle_tokenize *o, FILE *in, const struct haggle_sink *sink,
                    struct haggle_error *e) {
    struct call c;
    call_begin(&c, sink);
    return call_end(&c, tokenize(&c, o, in, &c.err), e);
}
