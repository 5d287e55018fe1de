// rows.c - see rows.h. Records of the file, and the prediction of each.
#include "planner/rows.h"

#include "base/array.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MOST = 256 << 20, FIELDS_MOST = 256, ROWS_MOST = 1000000 };

static const char *const column_names[ROWS_COLUMNS] = {
#define X(name) #name,
    ROWS_COLUMN_LIST(X)
#undef X
};

struct reader {
    const char *name, *at, *end;
    int line;
    struct region *region;
};

// Reads one field, and what ends it: ',', '\n' or 0 at the end of the file. NULL: an error.
static const char *read_field(struct reader *r, char *stop, struct err *e) {
    const char *from = r->at;
    const bool quoted = from < r->end && *from == '"';
    const char *to = from + quoted;
    size_t n = 0;
    while (to < r->end && (quoted ? !(*to == '"' && (to + 1 == r->end || to[1] != '"'))
                                  : *to != ',' && *to != '\n')) {
        r->line += *to == '\n';
        to += quoted && *to == '"' ? 2 : 1;
        n++;
    }
    if (quoted && to >= r->end) {
        err_set(e, ERR_FORMAT, "%s:%d: a quoted field does not end", r->name, r->line);
        return NULL;
    }
    char *out = region_alloc(r->region, n + 1);
    if (!out) {
        err_set(e, ERR_MEMORY, "out of memory while reading %s", r->name);
        return NULL;
    }
    const char *c = from + quoted;
    for (size_t i = 0; i < n; i++) {
        out[i] = *c;
        c += quoted && *c == '"' ? 2 : 1;
    }
    r->at = to + quoted;
    if (r->at < r->end && *r->at == '\r')
        r->at++;
    if (r->at < r->end && *r->at != ',' && *r->at != '\n') {
        err_set(e, ERR_FORMAT, "%s:%d: a field goes on behind its closing quote", r->name, r->line);
        return NULL;
    }
    *stop = r->at < r->end ? *r->at : 0;
    r->at += r->at < r->end;
    if (!quoted && n > 0 && out[n - 1] == '\r')
        out[n - 1] = '\0';
    return out;
}

// A record's fields. Returns how many, or a negative code.
static int read_record(struct reader *r, const char *fields[FIELDS_MOST], const char **text,
                       size_t *bytes, struct err *e) {
    int n = 0;
    char stop = ',';
    *text = r->at;
    while (stop == ',') {
        if (n == FIELDS_MOST)
            return err_set(e, ERR_FORMAT, "%s:%d: more than %d fields", r->name, r->line,
                           FIELDS_MOST);
        fields[n] = read_field(r, &stop, e);
        if (!fields[n++])
            return e ? e->code : ERR_FORMAT;
    }
    *bytes = (size_t)(r->at - *text) - (stop == '\n');
    while (*bytes > 0 && (*text)[*bytes - 1] == '\r')
        --*bytes;
    r->line += stop == '\n';
    return n;
}

static int read_head(struct reader *r, struct rows *out, int place[ROWS_COLUMNS], struct err *e) {
    const char *fields[FIELDS_MOST];
    const int n = read_record(r, fields, &out->head, &out->head_bytes, e);
    if (n < 0)
        return n;
    for (int c = 0; c < ROWS_COLUMNS; c++) {
        place[c] = -1;
        for (int i = 0; i < n; i++)
            if (strcmp(fields[i], column_names[c]) == 0) {
                if (place[c] >= 0)
                    return err_set(e, ERR_FORMAT, "%s:1: the column '%s' is there twice", r->name,
                                   column_names[c]);
                place[c] = i;
            }
    }
    static const enum rows_column needed[] = {ROWS_layers, ROWS_hidden, ROWS_heads, ROWS_gpu,
                                              ROWS_gpus};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (place[needed[i]] < 0)
            return err_set(e, ERR_FORMAT,
                           "%s:1: the column '%s' is missing; accepted: a head with at least "
                           "layers, hidden, heads, gpu, gpus",
                           r->name, column_names[needed[i]]);
    return n;
}

static int read_rows(struct reader *r, struct rows *out, struct err *e) {
    int place[ROWS_COLUMNS];
    const char *fields[FIELDS_MOST];
    const int columns = read_head(r, out, place, e);
    if (columns < 0)
        return columns;
    while (r->at < r->end) {
        struct row row = {.line = r->line};
        const int n = read_record(r, fields, &row.text, &row.bytes, e);
        if (n < 0)
            return n;
        if (n == 1 && row.bytes == 0)
            continue;
        if (n != columns)
            return err_set(e, ERR_FORMAT, "%s:%d: %d fields where the head has %d", r->name,
                           row.line, n, columns);
        for (int c = 0; c < ROWS_COLUMNS; c++)
            row.field[c] = place[c] >= 0 ? fields[place[c]] : "";
        if (out->n == ROWS_MOST)
            return err_set(e, ERR_FORMAT, "%s has more than %d rows", r->name, ROWS_MOST);
        if (!array_room(&out->rows, (size_t)out->n, 1, &out->capacity, sizeof row, 256))
            return err_set(e, ERR_MEMORY, "out of memory while reading %s", r->name);
        out->rows[out->n++] = row;
    }
    return 0;
}

int rows_read_text(struct rows *r, const char *name, char *text, size_t bytes, struct err *e) {
    *r = (struct rows){.file = text};
    struct reader x = {name, text, text + bytes, 1, &r->region};
    if (memchr(text, '\0', bytes))
        return err_set(e, ERR_FORMAT, "%s is not a table of text: it has a NUL byte", name);
    return read_rows(&x, r, e);
}

int rows_read_file(struct rows *r, const char *path, struct err *e) {
    char *text;
    size_t bytes;
    *r = (struct rows){0};
    TRY(file_read_all(path, FILE_BYTES_MOST, &text, &bytes, e));
    return rows_read_text(r, path, text, bytes, e);
}

void rows_free(struct rows *r) {
    free(r->file);
    free(r->rows);
    region_free(&r->region);
    *r = (struct rows){0};
}

// ---------------------------------------------------------------- predictions

static void put_quoted(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text; text++)
        fputs(*text == '"' ? "\"\"" : (char[]){*text == '\n' ? ' ' : *text, '\0'}, out);
    fputc('"', out);
}

static void put_row(const struct row *r, const struct row_setup *s, const struct estimate *x,
                    const char *why, FILE *out) {
    char reason[2 * ROWS_TEXT_BYTES];
    fwrite(r->text, 1, r->bytes, out);
    if (!x) {
        fputs(",,,,,,,", out);
        put_quoted(out, why);
        fputc('\n', out);
        return;
    }
    const struct planner_profile *f = s->setup.profile;
    fprintf(out, ",%.6g,%.6g,%.6g,%.4g,%s,%s,", x->step_s, x->low_s, x->high_s, x->peak_bytes / 1e9,
            x->fits ? "yes" : "no", f->name);
    snprintf(reason, sizeof reason, "modelled%s%s%s", *s->assumed ? "; assumed: " : "", s->assumed,
             f->repositories < 2 ? "; default constants: fewer than two repositories in the fit"
                                 : "");
    put_quoted(out, reason);
    fputc('\n', out);
}

int rows_predict(const struct rows *r, const struct hardware *h, const struct planner_constants *k,
                 FILE *out, struct rows_counts *counts, struct err *e) {
    *counts = (struct rows_counts){.rows = r->n};
    fwrite(r->head, 1, r->head_bytes, out);
    fputs(",predicted_step_s,low_s,high_s,predicted_mem_gb,fits,profile,reason\n", out);
    for (int i = 0; i < r->n; i++) {
        struct row_setup s;
        struct estimate x;
        struct err why = {0};
        int rc = row_setup(&r->rows[i], h, &s, &why);
        const bool usable = rc == 0 && s.usable;
        struct planner_sample *sample = NULL;
        if (rc == 0)
            rc = row_settle(&s, h, k, &sample, &x, &why);
        planner_sample_free(sample);
        if (rc == ERR_MEMORY || rc == ERR_INTERNAL) {
            *e = why;
            return err_context(e, "row %d of the file", r->rows[i].line);
        }
        counts->usable += usable;
        counts->predicted += rc == 0;
        counts->usable_predicted += usable && rc == 0;
        put_row(&r->rows[i], &s, rc == 0 ? &x : NULL, why.text, out);
    }
    return 0;
}
