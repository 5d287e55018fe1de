// knobs_check.h - the training run that observations of knobs (bench/effects.h) make.
#ifndef HAGGLE_API_KNOBS_CHECK_H
#define HAGGLE_API_KNOBS_CHECK_H

#include "bench/effects.h"

effects_train_fn knobs_check_train;

#endif
