// lookout_frame.c - see lookout_frame.h.
#include "comm/lookout_frame.h"

#include "base/utf8.h"

#include <string.h>

static const uint8_t magic[4] = {'H', 'G', 'L', '1'};

// Lengths of payloads.
static const struct {
    const char *name;
    uint32_t least, most;
} kinds[] = {
    [LOOKOUT_HELLO] = {"hello", 8 + LOOKOUT_KEY_BYTES, 8 + LOOKOUT_KEY_BYTES},
    [LOOKOUT_WELCOME] = {"welcome", 0, 0},
    [LOOKOUT_STATE] = {"state", 2, LOOKOUT_STATE_MOST - LOOKOUT_HEADER_BYTES},
    [LOOKOUT_LATE] = {"late", 8, LOOKOUT_FRAME_MOST - LOOKOUT_HEADER_BYTES},
    [LOOKOUT_FAIL] = {"fail", 1, LOOKOUT_FAIL_MOST - LOOKOUT_HEADER_BYTES},
    [LOOKOUT_BYE] = {"bye", 0, 0},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static uint64_t get(const uint8_t *p, int bytes) {
    uint64_t x = 0;
    for (int i = bytes; i-- > 0;)
        x = x << 8 | p[i];
    return x;
}

static uint8_t *set(uint8_t *p, uint64_t x, int bytes) {
    for (int i = 0; i < bytes; i++, x >>= 8)
        *p++ = (uint8_t)x;
    return p;
}

static uint8_t *set_text(uint8_t *p, const char *text, size_t most) {
    const size_t n = strnlen(text, most);
    memcpy(p, text, n);
    return p + n;
}

// C0, DEL and C1; line separators; marks, embeddings and isolates of the direction of writing; the
// byte order mark.
static bool unprintable(uint32_t c) {
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == UTF8_BAD || (c >= 0x200b && c <= 0x200f) ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) || c == 0xfeff;
}

void lookout_clean(char *out, size_t room, const void *text, size_t n) {
    const uint8_t *p = text, *end = p + n;
    size_t used = 0;
    while (p < end) {
        unsigned bytes;
        const bool bad = unprintable(utf8_decode(p, end, &bytes));
        const size_t more = bad ? 1 : bytes;
        if (used + more >= room)
            break;
        memcpy(out + used, bad ? (const uint8_t *)"?" : p, more);
        used += more;
        p += bytes;
    }
    out[used] = '\0';
}

// ---------------------------------------------------------------- reading

static int read_state(const uint8_t *p, uint32_t n, struct lookout_frame *f, struct err *e) {
    const uint64_t now = get(p, 2), before = n - 2 - now;
    if (now > n - 2u || now >= COMM_ABOUT_BYTES || before >= COMM_ABOUT_BYTES)
        return err_set(e, ERR_FORMAT, "a state of %u bytes begins with a text of %llu", n,
                       (unsigned long long)now);
    lookout_clean(f->doing.now, sizeof f->doing.now, p + 2, now);
    lookout_clean(f->doing.before, sizeof f->doing.before, p + 2 + now, before);
    return 0;
}

static int read_late(const uint8_t *p, uint32_t n, struct lookout_frame *f, struct err *e) {
    if (n % 2 != 0)
        return err_set(e, ERR_FORMAT, "a list of ranks ends in the middle of a number");
    f->waited_ns = get(p, 8);
    f->n_missing = (int)(n - 8) / 2;
    for (int i = 0; i < f->n_missing; i++) {
        f->missing[i] = (uint16_t)get(p + 8 + 2 * i, 2);
        if (f->missing[i] >= COMM_RANKS_MOST)
            return err_set(e, ERR_FORMAT, "rank %d does not exist; there are at most %d ranks",
                           f->missing[i], COMM_RANKS_MOST);
    }
    return 0;
}

static int read_payload(const uint8_t *p, uint32_t n, struct lookout_frame *f, struct err *e) {
    switch (f->type) {
    case LOOKOUT_HELLO:
        f->world = (uint32_t)get(p, 4);
        f->rank = (uint32_t)get(p + 4, 4);
        memcpy(f->key, p + 8, sizeof f->key);
        return 0;
    case LOOKOUT_STATE:
        return read_state(p, n, f, e);
    case LOOKOUT_LATE:
        return read_late(p, n, f, e);
    case LOOKOUT_FAIL:
        lookout_clean(f->why, sizeof f->why, p, n);
        return 0;
    case LOOKOUT_WELCOME:
    case LOOKOUT_BYE:
        break;
    }
    return 0;
}

int lookout_frame_read(const uint8_t *data, size_t n, struct lookout_frame *f, size_t *used,
                       struct err *e) {
    *used = 0;
    if (memcmp(data, magic, n < sizeof magic ? n : sizeof magic) != 0)
        return err_set(e, ERR_FORMAT, "what came is no message of a haggle rank");
    if (n < LOOKOUT_HEADER_BYTES)
        return 0;
    const uint32_t type = (uint32_t)get(data + 4, 4), length = (uint32_t)get(data + 8, 4);
    if (type < LOOKOUT_HELLO || type >= KINDS)
        return err_set(e, ERR_FORMAT, "there is no message of type %u", type);
    if (length < kinds[type].least || length > kinds[type].most)
        return err_set(e, ERR_FORMAT, "a message '%s' has %u bytes; accepted: %u to %u",
                       kinds[type].name, length, kinds[type].least, kinds[type].most);
    if (n - LOOKOUT_HEADER_BYTES < length)
        return 0;
    memset(f, 0, sizeof *f);
    f->type = (enum lookout_type)type;
    TRY(read_payload(data + LOOKOUT_HEADER_BYTES, length, f, e));
    *used = LOOKOUT_HEADER_BYTES + length;
    return 0;
}

// ---------------------------------------------------------------- writing

static uint8_t *write_payload(uint8_t *p, const struct lookout_frame *f) {
    switch (f->type) {
    case LOOKOUT_HELLO:
        p = set(set(p, f->world, 4), f->rank, 4);
        memcpy(p, f->key, sizeof f->key);
        return p + sizeof f->key;
    case LOOKOUT_STATE:
        p = set(p, strnlen(f->doing.now, COMM_ABOUT_BYTES - 1), 2);
        p = set_text(p, f->doing.now, COMM_ABOUT_BYTES - 1);
        return set_text(p, f->doing.before, COMM_ABOUT_BYTES - 1);
    case LOOKOUT_LATE:
        p = set(p, f->waited_ns, 8);
        for (int i = 0; i < f->n_missing; i++)
            p = set(p, f->missing[i], 2);
        return p;
    case LOOKOUT_FAIL:
        return f->why[0] != '\0' ? set_text(p, f->why, ERR_TEXT_BYTES - 1) : set_text(p, "?", 1);
    case LOOKOUT_WELCOME:
    case LOOKOUT_BYE:
        break;
    }
    return p;
}

size_t lookout_frame_write(const struct lookout_frame *f, uint8_t out[LOOKOUT_FRAME_MOST]) {
    const uint8_t *end = write_payload(out + LOOKOUT_HEADER_BYTES, f);
    const size_t bytes = (size_t)(end - out);
    memcpy(out, magic, sizeof magic);
    set(set(out + 4, (uint64_t)f->type, 4), bytes - LOOKOUT_HEADER_BYTES, 4);
    return bytes;
}
