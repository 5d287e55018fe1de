// skips.h - how a case says that it cannot run here. Include it after cmocka.h.
//
// `make test` prints the reasons at its end (scripts/test.sh looks for lines with this beginning).
#ifndef HAGGLE_TESTS_SKIPS_H
#define HAGGLE_TESTS_SKIPS_H

// skip_because("no folder %s", path): what is missing, as printf takes it.
#define skip_because(...)                                                                          \
    do {                                                                                           \
        print_message("skipped: " __VA_ARGS__);                                                    \
        print_message("\n");                                                                       \
        skip();                                                                                    \
    } while (0)

#endif
