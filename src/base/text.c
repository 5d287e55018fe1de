// text.c - numbers and units as people write them, both ways, and suggestions for misspelt names.
//
// The parsers check the spelling before they call strtod. strtod would also accept spaces, hex,
// "inf" and "nan", none of which belongs in a recipe. The number must be the whole string.
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { NUMBER_MAX_CHARS = 512, SUGGEST_MAX_CHARS = 96 };

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

const char *text_bytes(char out[TEXT_UNIT_BYTES], uint64_t bytes) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double x = (double)bytes;
    size_t u = 0;
    // 1023.995 would print as "1024.00", so it already takes the next unit.
    while (x >= 1023.995 && u + 1 < sizeof unit / sizeof *unit) {
        x /= 1024.0;
        u++;
    }
    if (bytes < 1024)
        snprintf(out, TEXT_UNIT_BYTES, "%u B", (unsigned)bytes);
    else
        snprintf(out, TEXT_UNIT_BYTES, "%.2f %s", x, unit[u]);
    return out;
}

const char *text_count(char out[TEXT_UNIT_BYTES], double n) {
    static const char *const unit[] = {"", "K", "M", "G", "T", "P", "E"};
    double x = n;
    size_t u = 0;
    while (fabs(x) >= (u ? 999.95 : 999.5) && u + 1 < sizeof unit / sizeof *unit) {
        x /= 1000.0;
        u++;
    }
    if (!isfinite(n) || fabs(x) >= 1e6)
        snprintf(out, TEXT_UNIT_BYTES, "%g", n);
    else if (u == 0)
        snprintf(out, TEXT_UNIT_BYTES, "%.3g", x);
    else
        snprintf(out, TEXT_UNIT_BYTES, "%.*f%s", fabs(x) < 9.995 ? 2 : 1, x, unit[u]);
    return out;
}

const char *text_duration(char out[TEXT_UNIT_BYTES], double seconds) {
    const char *sign = signbit(seconds) && seconds != 0 ? "-" : "";
    double s = fabs(seconds);
    if (!isfinite(s) || s > 1e15) {
        snprintf(out, TEXT_UNIT_BYTES, "%g s", seconds);
    } else if (s < 59.95) {
        static const struct {
            double scale, below;
            const char *unit;
        } steps[] = {{1e9, 999.5, "ns"}, {1e6, 999.5, "us"}, {1e3, 999.5, "ms"}, {1, 60, "s"}};
        size_t i = 0;
        while (i < 3 && s * steps[i].scale >= steps[i].below)
            i++;
        double x = s * steps[i].scale;
        snprintf(out, TEXT_UNIT_BYTES, "%s%.*f %s", sign, i == 0 || x >= 99.95 ? 0 : 1, x,
                 steps[i].unit);
    } else {
        uint64_t whole = (uint64_t)(s + 0.5);
        if (whole < 3600)
            snprintf(out, TEXT_UNIT_BYTES, "%s%um %02us", sign, (unsigned)(whole / 60),
                     (unsigned)(whole % 60));
        else if (whole < 86400)
            snprintf(out, TEXT_UNIT_BYTES, "%s%uh %02um", sign, (unsigned)(whole / 3600),
                     (unsigned)(whole / 60 % 60));
        else
            snprintf(out, TEXT_UNIT_BYTES, "%s%llud %02uh", sign,
                     (unsigned long long)(whole / 86400), (unsigned)(whole / 3600 % 24));
    }
    return out;
}

int text_parse_i64(const char *s, int64_t *out, struct err *e) {
    const char *p = s;
    if (*p == '-' || *p == '+')
        p++;
    const char *digits = p;
    while (is_digit(*p))
        p++;
    if (p == digits || *p)
        return err_set(e, ERR_USAGE, "'%s' is not a whole number (such as 12 or -3)", s);
    errno = 0;
    long long x = strtoll(s, NULL, 10);
    if (errno == ERANGE)
        return err_set(e, ERR_USAGE, "'%s' is outside the range of 64-bit integers", s);
    *out = x;
    return 0;
}

// Length of the unsigned decimal number at s (digits, optional fraction, optional exponent), or 0
// when there is none. An 'e' without digits after it is not part of the number. *whole is true when
// the number has only digits.
static size_t scan_number(const char *s, bool *whole) {
    const char *p = s;
    size_t digits = 0;
    while (is_digit(*p))
        p++, digits++;
    *whole = true;
    if (*p == '.') {
        *whole = false;
        p++;
        while (is_digit(*p))
            p++, digits++;
    }
    if (digits == 0)
        return 0;
    if (*p == 'e' || *p == 'E') {
        const char *q = p + 1;
        if (*q == '-' || *q == '+')
            q++;
        if (is_digit(*q)) {
            *whole = false;
            while (is_digit(*q))
                q++;
            p = q;
        }
    }
    return (size_t)(p - s);
}

int text_parse_double(const char *s, double *out, struct err *e) {
    const char *p = *s == '-' || *s == '+' ? s + 1 : s;
    bool whole;
    size_t n = scan_number(p, &whole);
    if (n == 0 || p[n])
        return err_set(e, ERR_USAGE, "'%s' is not a number (such as 0.1 or 3e-4)", s);
    if (n > NUMBER_MAX_CHARS)
        return err_set(e, ERR_USAGE, "a number has %zu characters; at most %d are accepted", n,
                       NUMBER_MAX_CHARS);
    double x = strtod(s, NULL);
    if (!isfinite(x))
        return err_set(e, ERR_USAGE, "'%s' is too large for a double", s);
    *out = x;
    return 0;
}

struct unit {
    const char *name;
    uint64_t scale;
};
// From the largest unit to the smallest. Of two names for a unit, the first is printed.
static const struct unit BYTE_UNITS[] = {{"TiB", UINT64_C(1) << 40},
                                         {"GiB", UINT64_C(1) << 30},
                                         {"TB", UINT64_C(1000000000000)},
                                         {"T", UINT64_C(1000000000000)},
                                         {"MiB", UINT64_C(1) << 20},
                                         {"GB", UINT64_C(1000000000)},
                                         {"G", UINT64_C(1000000000)},
                                         {"KiB", UINT64_C(1) << 10},
                                         {"MB", UINT64_C(1000000)},
                                         {"M", UINT64_C(1000000)},
                                         {"KB", UINT64_C(1000)},
                                         {"K", UINT64_C(1000)},
                                         {"B", 1},
                                         {"", 1}};
static const struct unit DURATION_UNITS[] = {
    {"h", UINT64_C(3600000000000)}, {"m", UINT64_C(60000000000)}, {"s", UINT64_C(1000000000)},
    {"ms", UINT64_C(1000000)},      {"us", UINT64_C(1000)},       {"ns", 1},
};
#define COUNT(array) (sizeof(array) / sizeof *(array))

// Parses "number [spaces] unit", scaled and rounded to a whole count. Whole numbers are exact over
// all 64 bits. Fractions go through long double. Returns 0, 1 for a wrong spelling, or 2 for a
// value out of range.
static int parse_scaled(const char *s, const struct unit *units, size_t n_units, bool any_case,
                        uint64_t *out) {
    bool whole;
    size_t n = scan_number(s, &whole);
    if (n == 0 || n > NUMBER_MAX_CHARS)
        return 1;
    const char *suffix = s + n;
    while (*suffix == ' ')
        suffix++;
    if (!*suffix && suffix != s + n)
        return 1;
    uint64_t scale = 0;
    for (size_t i = 0; i < n_units; i++)
        if ((any_case ? strcasecmp : strcmp)(suffix, units[i].name) == 0)
            scale = units[i].scale;
    char number[NUMBER_MAX_CHARS + 1];
    memcpy(number, s, n);
    number[n] = '\0';
    if (scale == 0) {
        // This unit table does not list "", so a unit is required. Only 0 needs none.
        if (*suffix || strtod(number, NULL) != 0)
            return 1;
        *out = 0;
        return 0;
    }
    if (whole) {
        errno = 0;
        unsigned long long x = strtoull(number, NULL, 10);
        uint64_t product;
        if (errno == ERANGE || __builtin_mul_overflow((uint64_t)x, scale, &product))
            return 2;
        *out = product;
        return 0;
    }
    long double x = roundl(strtold(number, NULL) * (long double)scale);
    if (!(x < 18446744073709551616.0L))
        return 2;
    *out = (uint64_t)x;
    return 0;
}

// Prints x exactly, in the first unit that gives a whole number.
static const char *print_scaled(char out[TEXT_UNIT_BYTES], uint64_t x, const struct unit *unit) {
    while (x % unit->scale != 0)
        unit++;
    if (x == 0)
        snprintf(out, TEXT_UNIT_BYTES, "0");
    else
        snprintf(out, TEXT_UNIT_BYTES, "%" PRIu64 "%s", x / unit->scale, unit->name);
    return out;
}

const char *text_exact_bytes(char out[TEXT_UNIT_BYTES], uint64_t bytes) {
    return print_scaled(out, bytes, BYTE_UNITS);
}

const char *text_exact_ns(char out[TEXT_UNIT_BYTES], uint64_t ns) {
    return print_scaled(out, ns, DURATION_UNITS);
}

int text_parse_bytes(const char *s, uint64_t *out, struct err *e) {
    switch (parse_scaled(s, BYTE_UNITS, COUNT(BYTE_UNITS), true, out)) {
    case 0:
        return 0;
    case 2:
        return err_set(e, ERR_USAGE, "'%s' is more bytes than 64 bits can count", s);
    default:
        return err_set(e, ERR_USAGE,
                       "'%s' is not a size; write a number and B, K, M, G, T (powers of 1000) or "
                       "KiB, MiB, GiB, TiB, such as 6GiB",
                       s);
    }
}

int text_parse_duration_ns(const char *s, uint64_t *out, struct err *e) {
    switch (parse_scaled(s, DURATION_UNITS, COUNT(DURATION_UNITS), false, out)) {
    case 0:
        return 0;
    case 2:
        return err_set(e, ERR_USAGE, "'%s' is longer than 64 bits of nanoseconds can count", s);
    default:
        return err_set(e, ERR_USAGE,
                       "'%s' is not a duration; write a number and ns, us, ms, s, m or h, such as "
                       "80ms",
                       s);
    }
}

int text_parse_bool(const char *s, bool *out, struct err *e) {
    static const char *const words[] = {"true", "false", "yes", "no", "on", "off", "1", "0"};
    for (size_t i = 0; i < COUNT(words); i++)
        if (strcasecmp(s, words[i]) == 0) {
            *out = i % 2 == 0;
            return 0;
        }
    return err_set(e, ERR_USAGE, "'%s' is neither true nor false (true/false, yes/no, on/off, 1/0)",
                   s);
}

int text_hex_digit(int c) {
    return is_digit((char)c)      ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

int32_t text_hex(const char *p, const char *end, int n) {
    int32_t x = 0;
    for (int i = 0; i < n; i++) {
        int digit = p + i < end ? text_hex_digit(p[i]) : -1;
        if (digit < 0)
            return -1;
        x = x << 4 | digit;
    }
    return x;
}

static unsigned least(unsigned a, unsigned b) {
    return a < b ? a : b;
}

// Damerau-Levenshtein distance in its "optimal string alignment" form: swapping two neighbours
// counts
// 1. Ignores case. Both lengths must be at most SUGGEST_MAX_CHARS. Three rows are enough, because a
// swap looks two rows back.
static unsigned edit_distance(const char *a, size_t na, const char *b, size_t nb) {
    unsigned rows[3][SUGGEST_MAX_CHARS + 1];
    for (size_t j = 0; j <= nb; j++)
        rows[0][j] = (unsigned)j;
    for (size_t i = 1; i <= na; i++) {
        unsigned *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        int ca = tolower((unsigned char)a[i - 1]);
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= nb; j++) {
            int cb = tolower((unsigned char)b[j - 1]);
            unsigned d = least(least(last[j], now[j - 1]) + 1, last[j - 1] + (ca != cb));
            if (i > 1 && j > 1 && ca == tolower((unsigned char)b[j - 2]) &&
                cb == tolower((unsigned char)a[i - 2]))
                d = least(d, before[j - 2] + 1);
            now[j] = d;
        }
    }
    return rows[na % 3][nb];
}

const char *text_suggest(const char *word, const char *const *names, size_t n) {
    size_t length = strlen(word);
    if (length == 0 || length > SUGGEST_MAX_CHARS)
        return NULL;
    // Two mistakes in three letters are another word: "mps" is not "cpu".
    unsigned limit = length > 8 ? (unsigned)(length / 3) : length > 3 ? 2 : 1;
    // At least one character of the word must match, or "a" would suggest "x".
    if (limit >= length)
        limit = (unsigned)length - 1;
    const char *best = NULL;
    unsigned best_distance = limit + 1;
    for (size_t i = 0; i < n; i++) {
        size_t other = strlen(names[i]);
        if (other > SUGGEST_MAX_CHARS)
            continue;
        unsigned d = edit_distance(word, length, names[i], other);
        // "micro" for "batch.micro": a missing group counts as one mistake, whatever its length.
        const char *dot = strrchr(names[i], '.');
        if (dot)
            d = least(d, edit_distance(word, length, dot + 1, strlen(dot + 1)) + 1);
        if (d < best_distance) {
            best_distance = d;
            best = names[i];
        }
    }
    return best;
}

bool text_next_item(const char **at, const char **item, size_t *n) {
    const char *p = *at ? *at : "";
    p += strspn(p, " ,");
    *item = p;
    *n = strcspn(p, ",");
    *at = p + *n;
    while (*n > 0 && p[*n - 1] == ' ')
        --*n;
    return *n > 0;
}
