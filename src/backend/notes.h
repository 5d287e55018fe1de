// notes.h - what was found out about a device by measuring, kept from run to run: a value for a
// key, both of them text, in a file of the user's cache folder.
//
// A file holds lines, each with a check sum, and only ever grows at its end. A line that is torn,
// changed or too long is as good as absent, and so is a whole file that is not ours. When several
// processes note the same key, the first one counts for all of them.
#ifndef HAGGLE_BACKEND_NOTES_H
#define HAGGLE_BACKEND_NOTES_H

#include "base/err.h"

#include <stdbool.h>

struct notes;

enum { NOTE_BYTES = 2048 }; // of a key and its value, at most

// `name` says what the notes are about and is part of the file's name: letters, digits, '.' and '-'
// stay, anything else becomes '-'. Folder NULL, or one that cannot be written: the notes are kept
// until they are closed. Fails only without memory.
int notes_open(struct notes **out, const char *folder, const char *name, struct err *e);
void notes_close(struct notes *n); // NULL is fine
// The value of a key; NULL: none. Valid until the next notes_add.
const char *notes_find(const struct notes *n, const char *key);
// Notes a value, and returns the one that counts: another process may have been earlier. NULL
// without memory, or when key or value is empty, too long, or has a tab or a line break.
const char *notes_add(struct notes *n, const char *key, const char *value);
bool notes_kept(const struct notes *n); // there is a file

#endif
