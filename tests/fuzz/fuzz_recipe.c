// fuzz_recipe.c - base/yaml.h and recipes: all settings are set or none, and they can be written
// and read back to the same values.
#include "fuzz.h"

#include "base/yaml.h"
#include "knob/knob.h"

#include <stdbool.h>

struct parsed {
    struct region region;
    struct yaml_entry *entries;
    size_t count;
};

static int parse(struct parsed *p, const char *text, size_t bytes) {
    struct err e = {0};
    *p = (struct parsed){0};
    int rc = yaml_read_text("input", text, bytes, &p->region, &p->entries, &p->count, &e);
    FUZZ_CHECK_RESULT(rc, &e);
    FUZZ_CHECK(rc == 0 || (p->entries == NULL && p->count == 0));
    return rc;
}

// Whether `cut` is the same setting as `all`, or, for the last one, the first items of its list.
static bool is_whole(const struct yaml_entry *cut, const struct yaml_entry *all, bool last) {
    size_t n = strlen(cut->value);
    if (strcmp(cut->key, all->key) != 0)
        return false;
    return strcmp(cut->value, all->value) == 0 ||
           (last && strncmp(cut->value, all->value, n) == 0 && all->value[n] == ',');
}

// A prefix of a valid text is refused, or has the first settings of the whole text.
static void check_prefix(const struct parsed *all, const char *text, size_t bytes) {
    struct parsed cut;
    if (parse(&cut, text, bytes) == 0) {
        FUZZ_CHECK(cut.count <= all->count);
        for (size_t i = 0; i < cut.count; i++)
            FUZZ_CHECK(is_whole(&cut.entries[i], &all->entries[i], i + 1 == cut.count));
    }
    region_free(&cut.region);
}

static void check_entries(const char *text, size_t bytes) {
    struct parsed all;
    int rc = parse(&all, text, bytes);
    for (size_t i = 0; i < all.count; i++) {
        FUZZ_CHECK(all.entries[i].key[0] != '\0' && all.entries[i].line > 0);
        for (size_t j = 0; j < i; j++)
            FUZZ_CHECK(strcmp(all.entries[i].key, all.entries[j].key) != 0);
    }
    for (size_t n = 1; rc == 0 && n < bytes; n += 1 + bytes / 16)
        check_prefix(&all, text, n);
    for (size_t n = 1; rc == 0 && n < bytes && bytes <= 512; n++)
        if (text[n - 1] == '\n')
            check_prefix(&all, text, n);
    region_free(&all.region);
}

static void check_round_trip(const struct knobs *k) {
    struct knobs back;
    struct err e = {0};
    char *text = NULL, a[KNOB_VALUE_BYTES], b[KNOB_VALUE_BYTES];
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    FUZZ_CHECK(f != NULL);
    FUZZ_CHECK(knobs_write_recipe(k, f, &e) == 0);
    FUZZ_CHECK(fclose(f) == 0);
    knobs_init(&back);
    int rc = knobs_load_recipe_text(&back, "written", text, bytes, &e);
    if (rc != 0)
        fprintf(stderr, "%s\n", e.text);
    FUZZ_CHECK(rc == 0);
    for (int i = 0; i < KNOB_COUNT; i++)
        FUZZ_CHECK(strcmp(knobs_value(k, i, a), knobs_value(&back, i, b)) == 0);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct knobs k, before;
    struct err e = {0};
    char *own = malloc(bytes > 0 ? bytes : 1);
    FUZZ_CHECK(own != NULL);
    memcpy(own, data, bytes);
    check_entries(own, bytes);
    knobs_init(&k);
    before = k;
    int rc = knobs_load_recipe_text(&k, "input", own, bytes, &e);
    FUZZ_CHECK_RESULT(rc, &e);
    if (rc == 0)
        check_round_trip(&k);
    else
        FUZZ_CHECK(memcmp(&k, &before, sizeof k) == 0);
    free(own);
    return 0;
}
