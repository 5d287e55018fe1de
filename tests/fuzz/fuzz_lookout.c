// fuzz_lookout.c - bytes that a stranger sends to the port where ranks meet.
//
// The input is a stream. It is read as it arrives: a message that is not complete is neither
// refused nor taken for another one, and every message that is accepted can be written and read
// again.
#include "fuzz.h"

#include "base/utf8.h"
#include "comm/lookout_frame.h"

static void check_text(const char *text, size_t room) {
    const size_t n = strnlen(text, room);
    FUZZ_CHECK(n < room);
    for (size_t i = 0; i < n;) {
        unsigned bytes;
        const uint8_t *p = (const uint8_t *)text + i;
        const uint32_t c = utf8_decode(p, (const uint8_t *)text + n, &bytes);
        FUZZ_CHECK(c != UTF8_BAD && c >= 0x20 && (c < 0x7f || c > 0x9f));
        i += bytes;
    }
}

static void check(const struct lookout_frame *f) {
    FUZZ_CHECK(f->type >= LOOKOUT_HELLO && f->type <= LOOKOUT_BYE);
    FUZZ_CHECK(f->n_missing >= 0 && f->n_missing <= COMM_RANKS_MOST);
    for (int i = 0; i < f->n_missing; i++)
        FUZZ_CHECK(f->missing[i] < COMM_RANKS_MOST);
    FUZZ_CHECK((f->type == LOOKOUT_FAIL) == (f->why[0] != '\0'));
    check_text(f->why, sizeof f->why);
    check_text(f->doing.now, sizeof f->doing.now);
    check_text(f->doing.before, sizeof f->doing.before);
}

static void check_again(const struct lookout_frame *f) {
    static struct lookout_frame again;
    static uint8_t bytes[LOOKOUT_FRAME_MOST];
    struct err e = {0};
    size_t used;
    const size_t n = lookout_frame_write(f, bytes);
    FUZZ_CHECK(n >= LOOKOUT_HEADER_BYTES && n <= sizeof bytes);
    FUZZ_CHECK(lookout_frame_read(bytes, n, &again, &used, &e) == 0 && used == n);
    FUZZ_CHECK(memcmp(f, &again, sizeof again) == 0);
    FUZZ_CHECK(lookout_frame_read(bytes, n - 1, &again, &used, &e) == 0 && used == 0);
}

// Fewer bytes of a message are not complete. They are no other message.
static void check_prefixes(const uint8_t *data, size_t bytes) {
    static struct lookout_frame f;
    size_t used;
    for (size_t n = 0; n < bytes; n += n < 64 ? 1 : 61)
        FUZZ_CHECK(lookout_frame_read(data, n, &f, &used, NULL) == 0 && used == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static struct lookout_frame f;
    size_t at = 0, used;
    while (at < bytes) {
        struct err e = {0};
        const int rc = lookout_frame_read(data + at, bytes - at, &f, &used, &e);
        FUZZ_CHECK_RESULT(rc, &e);
        FUZZ_CHECK(used <= bytes - at && (rc == 0 || used == 0));
        if (used == 0) {
            FUZZ_CHECK(rc != 0 || bytes - at < LOOKOUT_FRAME_MOST);
            break;
        }
        check(&f);
        check_again(&f);
        check_prefixes(data + at, used);
        at += used;
    }
    return 0;
}
