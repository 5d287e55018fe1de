// err.h - how every function that can fail reports failure.
//
// Such a function returns 0 or one of the negative codes below. On failure it fills the caller's
// `struct err` with a sentence that a user can act on: what failed, which value, what is accepted.
// Callers add context in front (err_context) and never replace the text, so the first failure is
// kept. `struct err *` may be NULL everywhere.
#ifndef HAGGLE_BASE_ERR_H
#define HAGGLE_BASE_ERR_H

#include <stdarg.h>
#include <stddef.h>

// Name, code, meaning. The codes are part of the public API: only append.
#define ERR_LIST(X)                                                                                \
    X(ERR_USAGE, -1, "a value or argument is not accepted")                                        \
    X(ERR_IO, -2, "a file or directory could not be read or written")                              \
    X(ERR_FORMAT, -3, "a file's content is not what its format requires")                          \
    X(ERR_MEMORY, -4, "there is not enough memory, or a memory budget is too small")               \
    X(ERR_UNSUPPORTED, -5, "this build or machine cannot do that")                                 \
    X(ERR_MISMATCH, -6, "two things that must agree do not")                                       \
    X(ERR_NUMERIC, -7, "a number is not finite or outside its tolerance")                          \
    X(ERR_STOPPED, -8, "stopped on request, after saving")                                         \
    X(ERR_INTERNAL, -9, "there is a bug in haggle: please report it")                              \
    X(ERR_BUSY, -10, "other programs left too little of the machine to measure anything")          \
    X(ERR_RANK, -11, "a rank that trains with others has failed or does not answer")

enum err_code {
    ERR_OK = 0,
#define X(name, value, phrase) name = value,
    ERR_LIST(X)
#undef X
};

enum { ERR_TEXT_BYTES = 1024 };

struct err {
    int code;
    char text[ERR_TEXT_BYTES];
};

#define ERR_PRINTF(f, a) __attribute__((format(printf, f, a)))

// Fills `e` (when not NULL) and returns `code`, so that a failing path is one line:
//     return err_set(e, ERR_IO, ...);
int err_set(struct err *e, int code, const char *format, ...) ERR_PRINTF(3, 4);
// Puts "context: " in front of the existing text and returns the existing code. Returns
// ERR_INTERNAL when there is no code or `e` is NULL, because a failing path must never return 0.
int err_context(struct err *e, const char *format, ...) ERR_PRINTF(2, 3);
const char *err_name(int code);   // "ERR_IO"; "OK" for 0; "unknown" otherwise
const char *err_phrase(int code); // the phrase above
void err_clear(struct err *e);

// TRY(f(x, e)) returns f's code from the calling function when it is not 0. Where cleanup is
// needed, write the `goto` by hand.
#define TRY(call)                                                                                  \
    do {                                                                                           \
        int try_rc_ = (call);                                                                      \
        if (try_rc_ != 0)                                                                          \
            return try_rc_;                                                                        \
    } while (0)

#endif
