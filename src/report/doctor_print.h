// doctor_print.h - what `haggle doctor` found, for people and for programs.
#ifndef HAGGLE_REPORT_DOCTOR_PRINT_H
#define HAGGLE_REPORT_DOCTOR_PRINT_H

#include "predict/doctor.h"

#include <stdio.h>

void doctor_print(const struct doctor *d, FILE *f);
void doctor_put_json(const struct doctor *d, struct json_writer *w); // members

#endif
