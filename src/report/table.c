// table.c - see table.h.
#include "report/table.h"

#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

void table_init(struct table *t, const struct table_column *columns, int n_columns,
                enum table_format format, struct table_style style) {
    *t = (struct table){
        .columns = columns, .n_columns = n_columns, .style = style, .people = format != TABLE_CSV};
    if (!t->style.unknown || !t->people)
        t->style.unknown = "";
}

void table_free(struct table *t) {
    region_free(&t->region);
}

void table_row(struct table *t) {
    const char ***rows = region_grow(&t->region, t->rows, t->n, &t->capacity, sizeof *t->rows);
    const char **row = region_alloc(&t->region, (size_t)t->n_columns * sizeof *row);
    t->failed = t->failed || !rows || !row;
    if (t->failed)
        return;
    for (int c = 0; c < t->n_columns; c++)
        row[c] = "";
    t->rows = rows;
    t->rows[t->n++] = row;
    t->at = 0;
}

// ---------------------------------------------------------------- cells

void table_set(struct table *t, size_t row, int column, const char *text) {
    const char *copy = region_copy(&t->region, text);
    t->failed = t->failed || !copy;
    if (!t->failed)
        t->rows[row][column] = copy;
}

void table_text(struct table *t, const char *text) {
    if (!t->failed && t->at < t->n_columns)
        table_set(t, t->n - 1, t->at++, text);
}

static void put_v(struct table *t, const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, again);
    va_end(again);
    char *text = n < 0 ? NULL : region_alloc(&t->region, (size_t)n + 1);
    t->failed = t->failed || !text;
    if (text)
        vsnprintf(text, (size_t)n + 1, format, args);
    if (!t->failed && t->at < t->n_columns)
        t->rows[t->n - 1][t->at++] = text;
}

void table_put(struct table *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    put_v(t, format, args);
    va_end(args);
}

void table_rest(struct table *t, const char *format, ...) {
    va_list args;
    if (!t->people)
        return;
    va_start(args, format);
    put_v(t, format, args);
    va_end(args);
    for (; !t->failed && t->at < t->n_columns; t->at++)
        t->rows[t->n - 1][t->at] = NULL;
}

void table_i64(struct table *t, int64_t x) {
    table_put(t, "%" PRId64, x);
}

void table_opt(struct table *t, int64_t x) {
    if (x != 0)
        table_i64(t, x);
    else
        table_text(t, t->style.unknown);
}

// Writes a number that is unknown or for programs. Returns false for a number for people.
static bool put_raw(struct table *t, double x) {
    if (!isfinite(x))
        table_text(t, t->style.unknown);
    else if (!t->people && t->style.digits > 0)
        table_put(t, "%.*g", t->style.digits, x);
    else
        return false;
    return true;
}

static void put_real(struct table *t, double x, int decimals, const char *after) {
    if (fabs(x) < 1e12)
        table_put(t, "%.*f%s", decimals, x, after);
    else // from a damaged file: it could have 300 digits
        table_put(t, "%.3g%s", x, after);
}

void table_real(struct table *t, double x, int decimals) {
    if (!put_raw(t, x))
        put_real(t, x, decimals, "");
}

void table_significant(struct table *t, double x, int figures) {
    if (!put_raw(t, x))
        table_put(t, "%.*g", figures, x);
}

void table_share(struct table *t, double x, int decimals) {
    if (!put_raw(t, x))
        put_real(t, 100 * x, decimals, " %");
}

void table_percentile(struct table *t, double ms, bool bounded) {
    if (!put_raw(t, ms))
        put_real(t, ms, 2, bounded || !t->people ? "" : "?");
}

void table_bytes(struct table *t, uint64_t bytes) {
    char text[TEXT_UNIT_BYTES];
    if (bytes > 0 && !t->people && t->style.digits > 0)
        table_put(t, "%" PRIu64, bytes);
    else
        table_text(t, bytes > 0 ? text_bytes(text, bytes) : t->style.unknown);
}

// ---------------------------------------------------------------- text from anywhere

// The bytes of the control character at `s` (C0, DEL or C1); 0 when it is not one.
static int control(const char *s) {
    unsigned char c = (unsigned char)s[0], next = (unsigned char)s[1];
    if (c < 0x20 || c == 0x7f)
        return 1;
    return c == 0xc2 && next >= 0x80 && next < 0xa0 ? 2 : 0;
}

static void put_text(const char *text, const char *also, FILE *f) {
    while (*text) {
        int skip = control(text);
        if (skip > 0 || strchr(also, *text))
            fputc(' ', f);
        else
            fputc(*text, f);
        text += skip > 0 ? skip : 1;
    }
}

void table_print_text(const char *text, FILE *f) {
    put_text(text, "", f);
}

// Characters that put_text writes: bytes that do not continue a UTF-8 character.
static int width_of(const char *text) {
    int width = 0;
    while (*text) {
        int skip = control(text);
        width += skip > 0 || ((unsigned char)*text & 0xc0) != 0x80;
        text += skip > 0 ? skip : 1;
    }
    return width;
}

// ---------------------------------------------------------------- Markdown

enum { COLUMNS_MOST = 64 };

// How a column is laid out. The last one needs no padding on its right.
struct column {
    int width;
    bool shown, left, last;
};

static bool takes_rest(const struct table *t, size_t row, int column) {
    return column + 1 < t->n_columns && t->rows[row][column + 1] == NULL;
}

static int lay_out(const struct table *t, struct column out[COLUMNS_MOST]) {
    int n = t->n_columns < COLUMNS_MOST ? t->n_columns : COLUMNS_MOST, last = -1;
    for (int c = 0; c < n; c++) {
        int width = 0;
        for (size_t i = 0; i < t->n; i++)
            if (t->rows[i][c] && !takes_rest(t, i, c)) {
                int w = width_of(t->rows[i][c]);
                width = w > width ? w : width;
            }
        const char *title = t->columns[c].title;
        out[c] = (struct column){.left = t->columns[c].side == TABLE_LEFT,
                                 .shown = title && (width > 0 || t->style.whole)};
        if (title) {
            out[c].width = width_of(title) > width ? width_of(title) : width;
            last = c;
        }
    }
    if (last >= 0)
        out[last].last = true;
    return n;
}

static void print_cell(const struct table *t, const struct column *c, const char *text, FILE *f) {
    int pad = t->style.compact ? 0 : c->width - width_of(text);
    fprintf(f, "| %*s", c->left ? 0 : pad, "");
    put_text(text, "|", f); // Markdown cannot hold a bar inside a cell
    fprintf(f, "%*s ", c->left && !c->last ? pad : 0, "");
}

static void print_rule(const struct table *t, const struct column *c, const char *title, FILE *f) {
    int dashes = c->left && c->last ? width_of(title) : c->width;
    if (t->style.compact) {
        fputs(c->left ? "|---" : "|--:", f);
        return;
    }
    fputs(c->left ? "|:" : "|-", f);
    for (int i = 0; i < dashes; i++)
        fputc('-', f);
    fputc(c->left ? '-' : ':', f);
}

static void print_markdown(const struct table *t, FILE *f) {
    struct column columns[COLUMNS_MOST];
    int n = lay_out(t, columns);
    for (int c = 0; c < n; c++)
        if (columns[c].shown)
            print_cell(t, &columns[c], t->columns[c].title, f);
    fputs("|\n", f);
    for (int c = 0; c < n; c++)
        if (columns[c].shown)
            print_rule(t, &columns[c], t->columns[c].title, f);
    fputs("|\n", f);
    for (size_t i = 0; i < t->n; i++) {
        for (int c = 0; c < n && t->rows[i][c]; c++)
            if (takes_rest(t, i, c))
                print_cell(t, &(struct column){.left = true, .last = true}, t->rows[i][c], f);
            else if (columns[c].shown)
                print_cell(t, &columns[c], t->rows[i][c], f);
        fputs("|\n", f);
    }
}

// ---------------------------------------------------------------- CSV

static void print_field(const char *text, FILE *f) {
    bool quoted = strpbrk(text, ",\"") != NULL;
    if (quoted)
        fputc('"', f);
    while (*text) {
        int skip = control(text); // includes line breaks: a row is one line
        if (*text == '"')
            fputc('"', f);
        fputc(skip > 0 ? ' ' : *text, f);
        text += skip > 0 ? skip : 1;
    }
    if (quoted)
        fputc('"', f);
}

static void print_line(const struct table *t, const char *const *cells, FILE *f) {
    const char *comma = "";
    for (int c = 0; c < t->n_columns; c++)
        if (t->columns[c].name) {
            fputs(comma, f);
            print_field(cells ? cells[c] : t->columns[c].name, f);
            comma = ",";
        }
    fputc('\n', f);
}

int table_print(const struct table *t, FILE *f, struct err *e) {
    if (t->failed)
        return err_set(e, ERR_MEMORY, "no memory for a table of %zu rows", t->n);
    if (t->people)
        print_markdown(t, f);
    else
        print_line(t, NULL, f);
    for (size_t i = 0; !t->people && i < t->n; i++)
        print_line(t, t->rows[i], f);
    return ferror(f) ? err_set(e, ERR_IO, "the table could not be written") : 0;
}

// ---------------------------------------------------------------- JSON

bool table_member_object(struct json_writer *w, const char *key, bool shown) {
    if (shown)
        json_member_object(w, key);
    else
        json_member_null(w, key);
    return shown;
}

void table_member_opt(struct json_writer *w, const char *key, int64_t x) {
    if (x != 0)
        json_member_i64(w, key, x);
    else
        json_member_null(w, key);
}

void table_put_array(struct json_writer *w, size_t n, table_object_fn *put, const void *arg) {
    json_put_array_begin(w);
    for (size_t i = 0; i < n; i++)
        put(arg, i, w);
    json_put_array_end(w);
}

int table_print_json(enum table_format format, size_t n, table_object_fn *put, const void *arg,
                     FILE *f, struct err *e) {
    struct json_writer w;
    bool lines = format == TABLE_JSONL;
    for (size_t i = 0; i < (lines ? n : 1); i++) {
        json_writer_to_file(&w, f, lines ? 0 : 2);
        if (lines)
            put(arg, i, &w);
        else
            table_put_array(&w, n, put, arg);
        TRY(json_writer_finish(&w, e));
        fputc('\n', f);
    }
    return ferror(f) ? err_set(e, ERR_IO, "the table could not be written") : 0;
}
