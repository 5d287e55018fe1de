// c_locale.h - numbers as text have a point, whatever the program around this library has set.
//
// Place: entered by every function of haggle.h that reads or writes text, and by every thread we start.
// A program that has called setlocale may write 0,5: then recipes would be misread, and JSON, CSV
// and SVG be none. Only the calling thread is concerned; nothing is allocated.
#ifndef HAGGLE_BASE_C_LOCALE_H
#define HAGGLE_BASE_C_LOCALE_H

#include <locale.h>

// Returns what c_locale_leave takes. A thread of ours never leaves.
static inline locale_t c_locale_enter(void) {
    return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0)); // the C library's own, not a copy
}

static inline void c_locale_leave(locale_t before) {
    uselocale(before);
}

#endif
