// schema.h - the tables, as a list of steps from each version to the next.
#ifndef HAGGLE_STORE_SCHEMA_H
#define HAGGLE_STORE_SCHEMA_H

#include "store/sql.h"

// "hagl" in the header of the file: distinguishes a store from other databases.
enum { SCHEMA_APPLICATION_ID = 0x6861676c };

// The SQL that makes each version from the one before. steps[0] makes version 1 from an empty file.
struct schema {
    const char *const *steps;
    int version; // number of steps
};
extern const struct schema schema_current;

// Fills a new file, or updates an older one, in one transaction. ERR_UNSUPPORTED for a newer file,
// ERR_FORMAT for a file that is not a store; neither is changed.
int schema_bring(struct store *s, const struct schema *schema, struct err *e);
// ERR_FORMAT unless every table and index of the schema exists, word for word. Other objects may
// exist.
int schema_check(struct store *s, const struct schema *schema, struct err *e);
// Checks the numbers in the header: 0, or the reason why the file is refused.
int schema_accepts(const struct store *s, const struct schema *schema, int64_t application_id,
                   int64_t version, struct err *e);

#endif
