// schema.h - the tables, as a list of steps from one version to the next.
#ifndef HAGGLE_STORE_SCHEMA_H
#define HAGGLE_STORE_SCHEMA_H

#include "store/sql.h"

// "hagl" in the header of the file: what tells a store from other databases.
enum { SCHEMA_APPLICATION_ID = 0x6861676c };

// The SQL that leads to each version from the one before: steps[0] makes version 1 from an empty file.
struct schema {
    const char *const *steps;
    int version; // how many
};
extern const struct schema schema_current;

// A new file is filled, an older one brought up to date, in one transaction. ERR_UNSUPPORTED for a
// newer one, ERR_FORMAT for one that is no store; neither is changed.
int schema_bring(struct store *s, const struct schema *schema, struct err *e);
// ERR_FORMAT unless every table and index of the schema is there, word for word. Others may be too.
int schema_check(struct store *s, const struct schema *schema, struct err *e);
// From the numbers in the header: 0, or why the file is refused.
int schema_accepts(const struct store *s, const struct schema *schema, int64_t application_id,
                   int64_t version, struct err *e);

#endif
