// names.c - the table behind names.h: open addressing, linear probing, at most half full.
#include "model/names.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

// At half load a good hash keeps runs of used slots below about 100, even for a million names. A
// run longer than PROBE_LIMIT means that the names were chosen to collide. That would make loading
// quadratic, so it is refused.
enum { PROBE_LIMIT = 512, FIRST_CAPACITY = 64 };

static size_t start_of(const struct names *t, uint64_t hash) {
    return (size_t)hash & (t->capacity - 1);
}

// The slot that holds the name, or the free slot where it belongs. NULL past the probe limit.
static struct names_slot *slot_of(const struct names *t, const char *name, uint64_t hash) {
    size_t i = start_of(t, hash);
    for (int probe = 0; probe < PROBE_LIMIT; probe++) {
        struct names_slot *slot = &t->slots[i];
        if (slot->name == NULL ||
            (slot->tag == (uint32_t)(hash >> 32) && strcmp(slot->name, name) == 0))
            return slot;
        i = (i + 1) & (t->capacity - 1);
    }
    return NULL;
}

static int collide(struct err *e) {
    return err_set(
        e, ERR_FORMAT,
        "more than %d tensor names collide in the name table: the file looks made to be slow",
        PROBE_LIMIT);
}

static int grow(struct names *t, size_t capacity, struct err *e) {
    struct names bigger = {.capacity = capacity, .count = t->count};
    bigger.slots = calloc(bigger.capacity, sizeof *bigger.slots);
    if (bigger.slots == NULL)
        return err_set(e, ERR_MEMORY, "no memory for a table of %zu names", bigger.capacity);
    for (size_t i = 0; i < t->capacity; i++) {
        const struct names_slot *old = &t->slots[i];
        if (old->name == NULL)
            continue;
        struct names_slot *slot =
            slot_of(&bigger, old->name, hash_u64(old->name, strlen(old->name)));
        if (slot == NULL) {
            free(bigger.slots);
            return collide(e);
        }
        *slot = *old;
    }
    free(t->slots);
    *t = bigger;
    return 0;
}

int names_reserve(struct names *t, size_t count, struct err *e) {
    size_t capacity = FIRST_CAPACITY;
    while (capacity / 2 <= count)
        capacity *= 2;
    return capacity > t->capacity ? grow(t, capacity, e) : 0;
}

int names_put(struct names *t, const char *name, uint32_t value, bool *fresh, struct err *e) {
    if (t->count * 2 >= t->capacity)
        TRY(grow(t, t->capacity != 0 ? t->capacity * 2 : FIRST_CAPACITY, e));
    uint64_t hash = hash_u64(name, strlen(name));
    struct names_slot *slot = slot_of(t, name, hash);
    if (slot == NULL)
        return collide(e);
    *fresh = slot->name == NULL;
    if (*fresh) {
        *slot = (struct names_slot){.name = name, .tag = (uint32_t)(hash >> 32), .value = value};
        t->count++;
    }
    return 0;
}

bool names_find(const struct names *t, const char *name, uint32_t *value) {
    if (t->capacity == 0)
        return false;
    const struct names_slot *slot = slot_of(t, name, hash_u64(name, strlen(name)));
    if (slot == NULL || slot->name == NULL)
        return false;
    *value = slot->value;
    return true;
}

void names_free(struct names *t) {
    free(t->slots);
    *t = (struct names){0};
}

const char *names_quote(char out[NAMES_QUOTE_BYTES], const char *name) {
    size_t n = 0;
    out[n++] = '"';
    for (; *name != '\0' && n < NAMES_QUOTE_BYTES - 5; name++) {
        unsigned char c = (unsigned char)name[0], next = (unsigned char)name[1];
        bool wide_control = c == 0xc2 && next >= 0x80 && next <= 0x9f; // U+0080 to U+009F
        out[n++] = c < 0x20 || c == 0x7f || wide_control ? '?' : name[0];
        name += wide_control;
    }
    if (*name != '\0') {
        // Cuts before the character that did not fit, not inside it. Bytes 10xxxxxx continue a
        // UTF-8 character.
        while (n > 1 && ((unsigned char)*name & 0xc0) == 0x80) {
            name--;
            n--;
        }
        memcpy(out + n, "...", 3);
        n += 3;
    }
    out[n++] = '"';
    out[n] = '\0';
    return out;
}
