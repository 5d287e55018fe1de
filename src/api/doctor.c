// doctor.c - haggle_doctor: what this machine is, how fast it is, and what is missing.
#include "api/api.h"

#include "report/doctor_print.h"

#include <stdlib.h>

int haggle_doctor(const struct haggle_config *config, bool fresh, const struct haggle_sink *sink,
                  struct haggle_error *e) {
    struct call c;
    struct doctor *d = malloc(sizeof *d);
    call_begin(&c, sink);
    log_put(&c.log, LOG_INFO, "measuring; this takes a few seconds");
    int rc = d ? doctor_examine(d, &config->knobs, fresh, &c.err)
               : err_set(&c.err, ERR_MEMORY, "out of memory for the list of libraries");
    if (rc == 0 && c.out)
        doctor_print(d, c.out);
    if (rc == 0 && call_json_begin(&c, "doctor", &config->knobs)) {
        doctor_put_json(d, &c.json);
        json_put_object_end(&c.json);
    }
    free(d);
    return call_end(&c, rc, e);
}
