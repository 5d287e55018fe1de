// cmd_doctor.c - haggle doctor.
#include "cli.h"

const struct flag doctor_flags[] = {
    {"fresh", 0, NULL, "measure again, even what was measured before and kept"},
    {0},
};

const char doctor_help[] =
    "Reports the CPU, its instruction sets and caches, memory and huge pages; measures memory\n"
    "bandwidth, the cost of starting all threads, and matrix products with each library that is\n"
    "installed; then lists what is missing, what it is for, and the line that installs it.\n"
    "\n"
    "Examples\n"
    "  haggle doctor\n"
    "  haggle doctor threads=1 --fresh\n"
    "  haggle doctor --json -\n";

int cmd_doctor(struct cli *c) {
    struct haggle_error e = {0};
    struct haggle_config *config = NULL;
    int rc = args_words(&c->args, 0, "flags and knob=value", &e);
    if (rc == 0)
        rc = cli_config(c, &config, &e);
    if (rc == 0)
        rc = haggle_doctor(config, args_get(&c->args, "fresh") != NULL, &c->sink, &e);
    haggle_config_free(config);
    return rc == 0 ? EXIT_OK : cli_fail(c, &e);
}
