// table.c - see table.h.
#include "api/table.h"

#include <string.h>

void table_init(struct table *t, const struct table_column *columns, int n_columns) {
    *t = (struct table){.columns = columns, .n_columns = n_columns};
}

void table_free(struct table *t) {
    region_free(&t->region);
}

bool table_add_row(struct table *t) {
    const char ***rows = region_grow(&t->region, t->rows, t->n, &t->capacity, sizeof *t->rows);
    const char **row = region_alloc(&t->region, (size_t)t->n_columns * sizeof *row);
    if (!rows || !row)
        return false;
    for (int c = 0; c < t->n_columns; c++)
        row[c] = "";
    t->rows = rows;
    t->rows[t->n++] = row;
    return true;
}

bool table_put_at(struct table *t, size_t row, int column, const char *text) {
    const char *copy = region_copy(&t->region, text);
    if (copy)
        t->rows[row][column] = copy;
    return copy != NULL;
}

bool table_put(struct table *t, int column, const char *text) {
    return table_put_at(t, t->n - 1, column, text);
}

// ---------------------------------------------------------------- text from anywhere

// Bytes of a control character at `s`, of either set; 0 when it is none.
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

// Characters as put_text writes them: bytes that do not go on with one.
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

static int column_width(const struct table *t, int column) {
    int width = 0;
    for (size_t i = 0; i < t->n; i++) {
        int w = width_of(t->rows[i][column]);
        width = w > width ? w : width;
    }
    int title = width_of(t->columns[column].title);
    return width > 0 && title > width ? title : width; // 0: nothing in it
}

static void print_cell(const struct table *t, int column, const char *text, int width, FILE *f) {
    int pad = width - width_of(text);
    bool left = t->columns[column].left;
    fprintf(f, "| %*s", left ? 0 : pad, "");
    put_text(text, "|", f); // Markdown cannot hold a bar inside a cell
    // Nothing follows the last column that would have to stand in line.
    fprintf(f, "%*s ", left && column < t->n_columns - 1 ? pad : 0, "");
}

void table_print_markdown(const struct table *t, FILE *f) {
    enum { COLUMNS_MOST = 64 };
    int width[COLUMNS_MOST];
    int n = t->n_columns < COLUMNS_MOST ? t->n_columns : COLUMNS_MOST;
    for (int c = 0; c < n; c++)
        width[c] = column_width(t, c);
    for (int c = 0; c < n; c++)
        if (width[c] > 0)
            print_cell(t, c, t->columns[c].title, width[c], f);
    fprintf(f, "|\n");
    for (int c = 0; c < n; c++) {
        if (width[c] == 0)
            continue;
        fputs(t->columns[c].left ? "|:" : "|-", f);
        int dashes = c < n - 1 ? width[c] : width_of(t->columns[c].title);
        for (int i = 0; i < dashes; i++)
            fputc('-', f);
        fputc(t->columns[c].left ? '-' : ':', f);
    }
    fprintf(f, "|\n");
    for (size_t i = 0; i < t->n; i++) {
        for (int c = 0; c < n; c++)
            if (width[c] > 0)
                print_cell(t, c, t->rows[i][c], width[c], f);
        fprintf(f, "|\n");
    }
}

// ---------------------------------------------------------------- CSV

static void print_field(const char *text, FILE *f) {
    bool quoted = strpbrk(text, ",\"") != NULL;
    if (quoted)
        fputc('"', f);
    while (*text) {
        int skip = control(text); // line breaks too: a row is one line
        if (*text == '"')
            fputc('"', f);
        fputc(skip > 0 ? ' ' : *text, f);
        text += skip > 0 ? skip : 1;
    }
    if (quoted)
        fputc('"', f);
}

void table_print_csv(const struct table *t, FILE *f) {
    for (int c = 0; c < t->n_columns; c++)
        fprintf(f, "%s%s", c ? "," : "", t->columns[c].title);
    fputc('\n', f);
    for (size_t i = 0; i < t->n; i++) {
        for (int c = 0; c < t->n_columns; c++) {
            if (c > 0)
                fputc(',', f);
            print_field(t->rows[i][c], f);
        }
        fputc('\n', f);
    }
}
