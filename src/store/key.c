// key.c - what may be compared: keys of trials, hashes of settings.
#include "store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(struct hash *h, const char *text) {
    hash_add(h, text, strlen(text) + 1); // with the NUL: different lists give different bytes
}

// The shape is hashed as its config.json: every number that programs are built from, and no path.
int store_key(const struct store_key_parts *p, char out[HASH_TEXT_BYTES], struct err *e) {
    char *text = NULL;
    size_t bytes = 0;
    struct hash *h = hash_new();
    FILE *f = open_memstream(&text, &bytes);
    int rc = h && f ? model_shape_write_config(p->shape, f, e)
                    : err_set(e, ERR_MEMORY, "no memory for the key of a trial");
    if (f && fclose(f) != 0 && rc == 0)
        rc = err_set(e, ERR_MEMORY, "no memory for the key of a trial");
    if (rc == 0) {
        add(h, text);
        add(h, p->data);
        add(h, p->hardware);
        add(h, p->build);
        hash_text(h, out);
    }
    free(text);
    hash_free(h);
    return rc;
}

int store_setting(const struct knobs *k, char out[HASH_TEXT_BYTES], struct err *e) {
    char value[KNOB_VALUE_BYTES];
    struct hash *h = hash_new();
    if (!h)
        return err_set(e, ERR_MEMORY, "no memory for the hash of a setting");
    for (int i = 0; i < KNOB_COUNT; i++) {
        const struct knob_info *info = knob_info(i);
        // Output during a trial (validation, checkpoints) is not part of its setting. The noise
        // scale is: it is measured inside the steps.
        const bool beside = (info->flags & KNOB_OUTPUT) && i != KNOB_noise_every;
        if (!(info->flags & (KNOB_SPEED | KNOB_MEMORY)) || beside || i == KNOB_model ||
            knobs_idle(k, i))
            continue;
        add(h, info->name);
        add(h, knobs_value(k, i, value));
    }
    hash_text(h, out);
    hash_free(h);
    return 0;
}

int store_knobs_text(const struct knobs *k, char **out, struct err *e) {
    char value[KNOB_VALUE_BYTES], initial[KNOB_VALUE_BYTES];
    size_t bytes = 0;
    int n = 0;
    *out = NULL;
    FILE *f = open_memstream(out, &bytes);
    if (!f)
        return err_set(e, ERR_MEMORY, "no memory for the knobs of a trial");
    for (int i = 0; i < KNOB_COUNT; i++) {
        knobs_value(k, i, value);
        if (strcmp(value, knob_default(i, initial)) != 0)
            fprintf(f, "%s%s=%s", n++ ? "\n" : "", knob_info(i)->name, value);
    }
    if (fclose(f) == 0)
        return 0;
    free(*out);
    *out = NULL;
    return err_set(e, ERR_MEMORY, "no memory for the knobs of a trial");
}
