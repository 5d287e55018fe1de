// c_locale.h - makes numbers use a decimal point, whatever locale the host program has set.
//
// Place: every function of haggle.h that reads or writes text enters the C locale, and so does
// every thread that haggle starts. In a program that called setlocale, 0.5 may print as 0,5:
// recipes would be misread, and JSON, CSV and SVG would be invalid. The change affects the calling
// thread only. Nothing is allocated.
#ifndef HAGGLE_BASE_C_LOCALE_H
#define HAGGLE_BASE_C_LOCALE_H

#include <locale.h>

// Returns the previous locale, for c_locale_leave. Threads that haggle starts never leave.
static inline locale_t c_locale_enter(void) {
    // For "C", newlocale returns the C library's static object, so nothing has to be freed.
    return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

static inline void c_locale_leave(locale_t before) {
    uselocale(before);
}

#endif
