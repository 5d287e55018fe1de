// lookout_frame.h - the messages between lookouts, as bytes.
//
// Place: lookout.c sends and receives them. Bytes come from the network, so a stranger may have
// written them: reading is a pure function, bounded, and refuses all that is not exactly a message.
//
//   magic "HGL1", type, length of the payload: 4 bytes each, little-endian; then the payload:
//   HELLO    world, rank (4 bytes each), key
//   WELCOME  nothing
//   STATE    bytes of the first text (2), what is done now, what was completed before
//   LATE     nanoseconds waited (8), the missing ranks (2 each)
//   FAIL     the reason
//   BYE      nothing
#ifndef HAGGLE_COMM_LOOKOUT_FRAME_H
#define HAGGLE_COMM_LOOKOUT_FRAME_H

#include "comm/late.h"

enum {
    LOOKOUT_KEY_BYTES = 32,
    LOOKOUT_HEADER_BYTES = 12,
    LOOKOUT_HELLO_BYTES = LOOKOUT_HEADER_BYTES + 8 + LOOKOUT_KEY_BYTES,
    LOOKOUT_STATE_MOST = LOOKOUT_HEADER_BYTES + 2 + 2 * (COMM_ABOUT_BYTES - 1),
    LOOKOUT_FAIL_MOST = LOOKOUT_HEADER_BYTES + ERR_TEXT_BYTES - 1,
    LOOKOUT_FRAME_MOST = LOOKOUT_HEADER_BYTES + 8 + 2 * COMM_RANKS_MOST // LATE, the longest
};

enum lookout_type {
    LOOKOUT_HELLO = 1, // to rank 0, before anything else
    LOOKOUT_WELCOME,   // the answer; or FAIL, which says why not
    LOOKOUT_STATE,     // the sender is alive, and what it does
    LOOKOUT_LATE,      // to rank 0: the sender has waited too long
    LOOKOUT_FAIL,      // to rank 0: why the sender has failed; from rank 0: why the job has
    LOOKOUT_BYE        // the connection ends, and that is no failure
};

struct lookout_frame {
    enum lookout_type type;
    uint32_t world, rank; // HELLO
    unsigned char key[LOOKOUT_KEY_BYTES];
    struct doing doing;                // STATE
    uint64_t waited_ns;                // LATE
    int n_missing;                     // at most COMM_RANKS_MOST
    uint16_t missing[COMM_RANKS_MOST]; // each below COMM_RANKS_MOST
    char why[ERR_TEXT_BYTES];          // FAIL; not empty
};

// Reads the message at the beginning of n bytes. *used is its length, or 0 when it is not complete
// yet. Texts are cleaned. ERR_FORMAT as soon as the bytes cannot become a message.
int lookout_frame_read(const uint8_t *data, size_t n, struct lookout_frame *f, size_t *used,
                       struct err *e);
// Writes a message and returns its length.
size_t lookout_frame_write(const struct lookout_frame *f, uint8_t out[LOOKOUT_FRAME_MOST]);
// Copies a text that can be printed anywhere: valid UTF-8, without what controls terminals or the
// direction of writing. '?' stands for each such character and each broken byte. What does not fit
// is cut off.
void lookout_clean(char *out, size_t room, const void *text, size_t n);

#endif
