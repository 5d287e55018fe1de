// build.h - which build of haggle this is.
//
// Place: part of every key under which measurements are kept (trials, times of ops): code that changed is
// not credited with what other code measured.
#ifndef HAGGLE_BASE_BUILD_H
#define HAGGLE_BASE_BUILD_H

enum { BUILD_ID_BYTES = 48 };
// Of the program or library that holds this code: the linker's build id as digits; the version where there
// is none.
void build_id(char out[BUILD_ID_BYTES]);

#endif
