// knob_each.h - one pass over knob.def.
//
// This file has no include guard, because knob.h and knob.c include it once for each thing they
// generate. Before that they define the macros they need. A type macro that is not defined becomes
// KNOB(type, field), and an undefined KNOB becomes nothing. At the end all macros are undefined
// again.
#ifndef KNOB
#define KNOB(type, field)
#endif
#ifndef INT
#define INT(field, name, initial, least, most, flags, help) KNOB(KNOB_INT, field)
#endif
#ifndef FLOAT
#define FLOAT(field, name, initial, least, most, flags, help) KNOB(KNOB_FLOAT, field)
#endif
#ifndef BOOL
#define BOOL(field, name, initial, flags, help) KNOB(KNOB_BOOL, field)
#endif
#ifndef CHOICE
#define CHOICE(field, name, initial, values, flags, help) KNOB(KNOB_CHOICE, field)
#endif
#ifndef STRING
#define STRING(field, name, initial, flags, help) KNOB(KNOB_STRING, field)
#endif
#ifndef BYTES
#define BYTES(field, name, initial, least, most, flags, help) KNOB(KNOB_BYTES, field)
#endif
#ifndef DURATION
#define DURATION(field, name, initial, least, most, flags, help) KNOB(KNOB_DURATION, field)
#endif
#ifndef PERIOD
#define PERIOD(field, name, initial, most, flags, help) KNOB(KNOB_PERIOD, field)
#endif

#include "knob/knob.def"

#undef KNOB
#undef INT
#undef FLOAT
#undef BOOL
#undef CHOICE
#undef STRING
#undef BYTES
#undef DURATION
#undef PERIOD
#undef V
