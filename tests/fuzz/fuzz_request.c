// fuzz_request.c - lines of requests to a hybrid run, as a hostile client might send them.
//
// The input is a line. An accepted line fills its rows as request.h says: ids of the vocabulary,
// positions that count from a document's start, and at least one trained token, as many as
// reported. Reading only the id of a request gives the same id as reading all of it.
#include "fuzz.h"

#include "base/file.h"
#include "data/dataset.h"
#include "serve/request.h"

enum { MICRO = 3, SEQ = 16, COLUMNS = MICRO * SEQ, VOCAB = 320 };

static struct {
    struct knobs knobs;
    struct request_reader *reader;
} all;

static void set(const char *assignment) {
    struct err e = {0};
    FUZZ_CHECK(knobs_set_assignment(&all.knobs, assignment, SET_BY_COMMAND_LINE, &e) == 0);
}

// Two records are kept in memory, so that {"index": n} has something to find.
static void prepare(void) {
    static const char records[] = "{\"text\": \"ab\"}\n{\"text\": \"cde\"}\n";
    char dir[256], path[300], text[320];
    const struct request_options o = {.knobs = &all.knobs, .vocab = VOCAB};
    struct err e = {0};
    FUZZ_CHECK(file_make_temp_dir(dir, sizeof dir, "fuzz", &e) == 0);
    snprintf(path, sizeof path, "%s/a.jsonl", dir);
    FUZZ_CHECK(file_write_atomic(path, records, sizeof records - 1, &e) == 0);
    knobs_init(&all.knobs);
    set("goal=hybrid");
    snprintf(text, sizeof text, "interactive.micro=%d", MICRO);
    set(text);
    snprintf(text, sizeof text, "interactive.seq=%d", SEQ);
    set(text);
    snprintf(text, sizeof text, "interactive.data=%s", path);
    set(text);
    FUZZ_CHECK(request_reader_open(&all.reader, &o, &e) == 0);
    FUZZ_CHECK(file_remove_tree(dir, &e) == 0);
}

static void check(const struct request *x, int32_t columns[REQUEST_ROWS][COLUMNS]) {
    int64_t trained = 0;
    for (int c = 0; c < COLUMNS; c++) {
        const int32_t target = columns[1][c], position = columns[2][c], start = columns[3][c];
        FUZZ_CHECK(columns[0][c] >= 0 && columns[0][c] < VOCAB);
        FUZZ_CHECK(target == DATASET_NOT_TRAINED || (target >= 0 && target < VOCAB));
        FUZZ_CHECK(position >= 0 && start >= 0 && start + position == c % SEQ);
        trained += target != DATASET_NOT_TRAINED;
    }
    FUZZ_CHECK(trained > 0 && trained == x->trained_tokens);
    FUZZ_CHECK(x->tokens >= trained && x->tokens <= COLUMNS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static int32_t columns[REQUEST_ROWS][COLUMNS];
    int32_t *const rows[REQUEST_ROWS] = {columns[0], columns[1], columns[2], columns[3]};
    struct request x, whose;
    struct err e = {0}, looking = {0};
    if (all.reader == NULL)
        prepare();
    memset(columns, 0x5a, sizeof columns);
    int rc = request_read(all.reader, (const char *)data, bytes, rows, &x, &e);
    FUZZ_CHECK_RESULT(rc, &e);
    FUZZ_CHECK(strlen(x.id.text) <= REQUEST_ID_BYTES);
    if (rc == 0)
        check(&x, columns);
    int looked = request_read(all.reader, (const char *)data, bytes, NULL, &whose, &looking);
    FUZZ_CHECK_RESULT(looked, &looking);
    FUZZ_CHECK(rc != 0 || looked == 0);
    FUZZ_CHECK(whose.id.type == x.id.type && whose.id.number == x.id.number);
    FUZZ_CHECK(strcmp(whose.id.text, x.id.text) == 0);
    return 0;
}
