// cmd_doctor.c - haggle doctor.
#include "cli.h"

const struct flag doctor_flags[] = {
    {"fresh", 0, NULL, "measure again instead of using stored measurements"},
    {0},
};

const char doctor_help[] =
    "Reports the CPU, its instruction sets and caches, memory and huge pages. Measures memory\n"
    "bandwidth, the cost of starting all threads, and matrix products with each installed "
    "library.\n"
    "On a GPU it measures what its kernels reach: matrix products, attention, copies and "
    "launches.\n"
    "Then lists what is missing, what it is for, and the command that installs it.\n"
    "\n"
    "Examples\n"
    "  haggle doctor\n"
    "  haggle doctor threads=1 --fresh\n"
    "  haggle doctor --json -\n";

int cmd_doctor(struct cli *c, struct haggle_error *e) {
    TRY(args_words(&c->args, 0, "flags and knob=value", e));
    TRY(cli_config(c, e));
    return haggle_doctor(c->config, args_get(&c->args, "fresh") != NULL, &c->sink, e);
}
