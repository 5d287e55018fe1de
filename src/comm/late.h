// late.h - what ranks are doing, and the message about ranks that do not come.
//
// Place: every engine gives this message when a wait takes too long, so that it reads the same
// whether ranks are threads or processes.
#ifndef HAGGLE_COMM_LATE_H
#define HAGGLE_COMM_LATE_H

#include "comm/comm.h"

struct doing {
    char now[COMM_ABOUT_BYTES];    // "": work that has no note
    char before[COMM_ABOUT_BYTES]; // what was completed last; "": nothing yet
};

// about becomes what is done now, and what was done before is completed. NULL: it is completed, and
// what follows has no note.
void doing_note(struct doing *d, const char *about);
enum { DOING_TEXT_BYTES = 2 * COMM_ABOUT_BYTES + 32 };
const char *doing_text(char out[DOING_TEXT_BYTES], const struct doing *d); // "in X, after Y"

enum late_where {
    LATE_HERE,
    LATE_ABSENT, // has not joined the job
    LATE_LEFT,   // has left the job in an orderly way
    LATE_UNKNOWN // nothing is known of it
};

struct late_rank {
    struct doing doing;
    enum late_where where;
    bool waits;         // says that it waits too long
    bool missing;       // another rank waits for it
    uint64_t silent_ns; // it has not answered for so long; 0: it answers
};

// A rank that others wait for is not to blame if it waits itself: a chain of waits is told by its
// end. A rank that does not answer is always named.
void late_text(char out[ERR_TEXT_BYTES], const struct late_rank *all, int world,
               uint64_t waited_ns);

#endif
