// test_log.c - log.h: levels, color, and the live line, which appears only on a (pseudo-)terminal.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/log.h"
#include "skips.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static void test_plain(void **state) {
    (void)state;
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    struct log l;
    log_init(&l, f);
    assert_false(l.color);
    log_put(&l, LOG_INFO, "step %d", 3);
    log_put(&l, LOG_WARN, "slow");
    log_put(&l, LOG_ERROR, "%s", "bad");
    assert_int_equal(log_live(&l, "loss 1.0"), 0); // not a terminal
    log_live_end(&l);
    fclose(f);
    assert_string_equal(text, "step 3\nwarning: slow\nerror: bad\n");
    free(text);
}

static void test_color_and_clear(void **state) {
    (void)state;
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    struct log l = {.stream = f, .color = true, .live = true};
    log_put(&l, LOG_ERROR, "bad");
    assert_false(l.live);
    log_put(&l, LOG_WARN, "slow");
    log_put(&l, LOG_INFO, "plain");
    fclose(f);
    assert_string_equal(
        text, "\r\033[K\033[1;31merror:\033[0m bad\n\033[1;33mwarning:\033[0m slow\nplain\n");
    free(text);
}

// With least = LOG_WARN, warnings and errors are still shown.
static void test_least(void **state) {
    (void)state;
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    struct log l;
    log_init(&l, f);
    assert_true(log_shows(&l, LOG_INFO));
    l.least = LOG_WARN;
    assert_false(log_shows(&l, LOG_INFO));
    assert_true(log_shows(&l, LOG_WARN) && log_shows(&l, LOG_ERROR));
    log_put(&l, LOG_INFO, "step %d", 3);
    log_put(&l, LOG_WARN, "slow");
    log_put(&l, LOG_ERROR, "bad");
    fclose(f);
    assert_string_equal(text, "warning: slow\nerror: bad\n");
    free(text);
    log_init(&l, NULL);
    assert_false(log_shows(&l, LOG_ERROR) || log_shows(NULL, LOG_ERROR));
}

static void test_silent(void **state) {
    (void)state;
    struct log l;
    log_init(&l, NULL);
    log_put(&l, LOG_ERROR, "nobody");
    assert_int_equal(log_live(&l, "nobody"), 0);
    log_live_end(&l);
    log_put(NULL, LOG_INFO, "nobody");
    assert_int_equal(log_live(NULL, "x"), 0);
    log_live_end(NULL);
}

// Reads what has arrived at the other end of the terminal so far.
static size_t drain(int master, char *out, size_t out_bytes) {
    size_t used = 0;
    ssize_t n;
    while (used + 1 < out_bytes && (n = read(master, out + used, out_bytes - 1 - used)) > 0)
        used += (size_t)n;
    out[used] = '\0';
    return used;
}

static void test_terminal(void **state) {
    (void)state;
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0)
        skip_because("no pseudo-terminal here");
    const char *name = ptsname(master);
    FILE *f = name ? fopen(name, "w") : NULL;
    if (!f)
        skip_because("no pseudo-terminal here");
    struct termios raw;
    assert_int_equal(tcgetattr(fileno(f), &raw), 0);
    cfmakeraw(&raw);
    assert_int_equal(tcsetattr(fileno(f), TCSANOW, &raw), 0);
    struct winsize size = {.ws_row = 24, .ws_col = 11};
    assert_int_equal(ioctl(master, TIOCSWINSZ, &size), 0);
    char text[512];
    struct log l;

    setenv("TERM", "xterm", 1);
    setenv("NO_COLOR", "1", 1);
    log_init(&l, f);
    assert_false(l.color);
    setenv("NO_COLOR", "", 1); // an empty value does not count
    log_init(&l, f);
    assert_true(l.color);
    assert_int_equal(log_live(&l, "loss 1"), 1);
    assert_true(l.live);
    drain(master, text, sizeof text);
    assert_string_equal(text, "\r\033[Kloss 1");
    // Cut to ten columns. Each character counts as one, whatever its bytes. Color counts as none.
    log_live(&l, "\033[1m\xC3\xA9\xC3\xA9 456789abcdef\033[0m");
    drain(master, text, sizeof text);
    assert_string_equal(text, "\r\033[K\033[1m\xC3\xA9\xC3\xA9 456789a\033[0m");
    log_put(&l, LOG_INFO, "saved");
    drain(master, text, sizeof text);
    assert_string_equal(text, "\r\033[Ksaved\n");
    log_live_end(&l); // nothing live any more
    assert_int_equal(drain(master, text, sizeof text), 0);
    log_live(&l, "two\nlines");
    log_live_end(&l);
    drain(master, text, sizeof text);
    assert_string_equal(text, "\r\033[Ktwo\n");

    l.least = LOG_WARN; // no live line when LOG_INFO is not shown
    assert_int_equal(log_live(&l, "x"), 0);

    setenv("TERM", "dumb", 1);
    log_init(&l, f);
    assert_false(l.color);
    assert_int_equal(log_live(&l, "x"), 0);
    fclose(f);
    close(master);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),    cmocka_unit_test(test_color_and_clear),
        cmocka_unit_test(test_least),    cmocka_unit_test(test_silent),
        cmocka_unit_test(test_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
