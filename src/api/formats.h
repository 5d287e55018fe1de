// formats.h - a model in the formats that it can generate in: as given, in 16 bits, and quantized.
//
// Place: `tune --goal generate` and `bench tradeoffs` compare them. Each quantized format is made
// once, by haggle_quantize, in a temporary folder that formats_close removes. With it comes the
// divergence from the model as given (KL), on data that was named or on text that the model makes
// itself. Making and comparing happen in processes apart, because the caller forks to measure and
// may have no threads and no open device.
#ifndef HAGGLE_API_FORMATS_H
#define HAGGLE_API_FORMATS_H

#include "api/api.h"
#include "tune/gen_lab.h"

struct formats_order {
    const char *data;   // to compare on; NULL: text of the model itself
    double kl;          // limit for all formats; 0: 0.005, for int4 0.1
    const char *method; // of quantizing; NULL: the default
    bool likeness;      // measure the divergence
    int64_t context;    // tokens of a text; more than the model has positions is refused
};

struct formats {
    struct call *call;
    struct formats_order order;
    struct knobs given, base; // as named by the user; with the folder that it is
    char dir[PATH_MAX];       // temporary
    int lock;
    char source[PATH_MAX];   // what is quantized: the model as named, or a folder of the shape
    char own_text[PATH_MAX]; // records of ids that the model made; "": the data were named
    bool shape;              // random weights: a divergence means nothing
    bool adapter;
    bool looks;                              // the method of quantizing looks at text
    struct gen_format list[GEN_VALUES_MOST]; // [0] is as given
    struct knobs knobs[GEN_VALUES_MOST];
    char flags[GEN_VALUES_MOST][64]; // of haggle quantize; "": it is not quantized
    int n;
};

// Call formats_close in every case. A format that cannot be made or is too far from the model is in
// the list with its reason.
int formats_open(struct formats *f, struct call *c, const struct knobs *k,
                 const struct formats_order *o, struct err *e);
void formats_close(struct formats *f);

#endif
