// build.h - which build of haggle this is.
//
// Place: the build is part of every key under which measurements are kept (trials, times of ops).
// Changed code therefore never reuses measurements of the old code.
#ifndef HAGGLE_BASE_BUILD_H
#define HAGGLE_BASE_BUILD_H

enum { BUILD_ID_BYTES = 48 };
// The linker's build id, as hex digits, of the program or library that contains this code. The
// version where there is no build id.
void build_id(char out[BUILD_ID_BYTES]);

#endif
