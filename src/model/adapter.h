// adapter.h - low-rank adapters of a model (Hu et al., 2021): which weights have one, and the
// names, sizes and initial values of their pairs.
//
// A weight W of a block's linear layer, from `in` to `out` features, stays as it is. Beside it lie
// A [rank, in] and B [out, rank], and the layer computes x W' + scale (x A') B'.
#ifndef HAGGLE_MODEL_ADAPTER_H
#define HAGGLE_MODEL_ADAPTER_H

#include "model/shape.h"

enum { ADAPTER_TARGETS_BYTES = 512, ADAPTER_RANK_MOST = 1024 };
// In a file of an adapter, names of tensors have the prefix that PEFT writes.
#define ADAPTER_PREFIX "base_model.model."
#define ADAPTER_FILE   "adapter_model.safetensors"

struct adapter {  // all zero: no adapter
    int64_t rank; // 0: none
    double alpha;
    double dropout; // part of the inputs of A that training sets to zero; 0: none
    bool rslora;    // the scale is alpha / sqrt(rank), not alpha / rank
    // Separated by commas: all, attention, mlp, or the last names of linear layers: q_proj, c_attn,
    // ... A name may have more than one part (attn.c_proj). Empty: all.
    char targets[ADAPTER_TARGETS_BYTES];
};

// 0 without an adapter.
double adapter_scale(const struct adapter *a);
// Checks the numbers, the rank against the sizes of the layers, and that every name in targets is
// a linear layer of the shape's blocks. The error names what is accepted. Rank 0 passes.
int adapter_check(const struct adapter *a, const struct model_shape *s, struct err *e);
// True if the weight has a pair.
bool adapter_targets(const struct adapter *a, const struct model_shape *s,
                     const struct model_param *weight);
// The last name of a linear layer: "q_proj" for model.layers.0.self_attn.q_proj.weight. Returns
// false if the weight is not a linear layer of a block.
bool adapter_module(const struct model_param *weight, char out[64]);
// The features that a layer reads and makes, whichever way the family stores its matrix.
void adapter_features(const struct model_shape *s, const struct model_param *weight, int64_t *in,
                      int64_t *out);
// One tensor of a weight's pair. role, layer and order are those of the weight.
//   name  "<weight's name without .weight>.lora_A.weight" [rank, in] and ".lora_B.weight"
//         [out, rank], in every family (GPT-2's matrices are stored [in, out]; the pair is not)
// A is uniform within 1/sqrt(in) of 0, which is what PEFT draws. B is zero.
void adapter_param(const struct adapter *a, const struct model_shape *s,
                   const struct model_param *weight, bool b, struct model_param *out);
// The i-th tensor of the adapter, in the order of the base's parameters, A before B. False past the
// end.
bool adapter_param_at(const struct adapter *a, const struct model_shape *s, int64_t i,
                      struct model_param *out);
int64_t adapter_param_count(const struct adapter *a, const struct model_shape *s);

#endif
