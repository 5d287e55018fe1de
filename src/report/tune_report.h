// tune_report.h - writes the HTML page of a search that has just ended, or of one from the store.
#ifndef HAGGLE_REPORT_TUNE_REPORT_H
#define HAGGLE_REPORT_TUNE_REPORT_H

#include "tune/stored.h"
#include "tune/tuning.h"

int tune_report_write(const struct tuning *t, const char *path, struct err *e);
// *bytes becomes the size of the page.
int tune_report_write_stored(const struct stored *s, const char *path, uint64_t *bytes,
                             struct err *e);

#endif
