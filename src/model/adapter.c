// adapter.c - the pairs of a low-rank adapter. All layers of a model are alike, so the pairs of
// layer 0 say where every other pair is.
#include "model/adapter.h"

#include "base/text.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

// Linear layers of a block, in the order of the parameters.
static const struct {
    enum model_role role;
    const char *group;
} linear[] = {
    {ROLE_QKV_W, "attention"}, {ROLE_Q_W, "attention"},   {ROLE_K_W, "attention"},
    {ROLE_V_W, "attention"},   {ROLE_OUT_W, "attention"}, {ROLE_GATE_W, "mlp"},
    {ROLE_UP_W, "mlp"},        {ROLE_DOWN_W, "mlp"},
};
enum { LINEAR_COUNT = sizeof linear / sizeof linear[0] };

double adapter_scale(const struct adapter *a) {
    if (a->rank <= 0)
        return 0;
    return a->alpha / (a->rslora ? sqrt((double)a->rank) : (double)a->rank);
}

static const char *group_of(enum model_role role) {
    for (int i = 0; i < LINEAR_COUNT; i++)
        if (linear[i].role == role)
            return linear[i].group;
    return NULL;
}

// The layer's name without what stands before the block's own names: "self_attn.q_proj". Empty if
// it has none.
static int path_in_block(const struct model_param *weight, const char **path) {
    const char *name = weight->name, *end = name + strlen(name), *at = name;
    if (weight->layer < 0 || end - name < 7 || strcmp(end - 7, ".weight") != 0)
        return 0;
    while (*at != '\0' && !(at[0] == '.' && isdigit((unsigned char)at[1])))
        at++;
    const char *dot = *at != '\0' ? strchr(at + 1, '.') : NULL;
    *path = dot ? dot + 1 : NULL;
    return dot && dot + 1 < end - 7 ? (int)(end - 7 - *path) : 0;
}

bool adapter_module(const struct model_param *weight, char out[64]) {
    const char *path;
    int n = path_in_block(weight, &path), last = n;
    if (n == 0 || group_of(weight->role) == NULL)
        return false;
    while (last > 0 && path[last - 1] != '.')
        last--;
    snprintf(out, 64, "%.*s", n - last, path + last);
    return true;
}

void adapter_features(const struct model_shape *s, const struct model_param *weight, int64_t *in,
                      int64_t *out) {
    *in = weight->dims[s->in_out_weights ? 0 : 1];
    *out = weight->dims[s->in_out_weights ? 1 : 0];
}

// Does the word [begin, begin + n) of targets name the weight?
static bool names(const char *begin, size_t n, const struct model_param *weight) {
    const char *group = group_of(weight->role), *path;
    if (n == 3 && memcmp(begin, "all", 3) == 0)
        return true;
    if (n == strlen(group) && memcmp(begin, group, n) == 0)
        return true;
    size_t length = (size_t)path_in_block(weight, &path);
    return n > 0 && n <= length && memcmp(path + length - n, begin, n) == 0 &&
           (n == length || path[length - n - 1] == '.');
}

bool adapter_targets(const struct adapter *a, const struct model_shape *s,
                     const struct model_param *weight) {
    const char *at = a->targets, *word;
    size_t n;
    (void)s;
    if (a->rank <= 0 || group_of(weight->role) == NULL)
        return false;
    if (!text_next_item(&at, &word, &n))
        return true;
    do {
        if (names(word, n, weight))
            return true;
    } while (text_next_item(&at, &word, &n));
    return false;
}

void adapter_param(const struct adapter *a, const struct model_shape *s,
                   const struct model_param *weight, bool b, struct model_param *out) {
    int64_t features[2]; // in, out
    int stem = (int)strlen(weight->name) - (int)strlen(".weight");
    adapter_features(s, weight, &features[0], &features[1]);
    *out = (struct model_param){.role = weight->role, .layer = weight->layer, .rank = 2};
    snprintf(out->name, sizeof out->name, "%.*s.lora_%c.weight", stem, weight->name, b ? 'B' : 'A');
    out->dims[0] = b ? features[1] : a->rank;
    out->dims[1] = b ? a->rank : features[0];
    out->matrix = true;
    out->init = b ? INIT_ZERO : INIT_UNIFORM;
    out->init_std = b ? 0 : (float)(1.0 / sqrt((double)features[0]));
}

// The weights of one layer that have a pair. Returns their number.
static int in_layer(const struct adapter *a, const struct model_shape *s, int layer,
                    struct model_param out[LINEAR_COUNT]) {
    int n = 0;
    for (int i = 0; i < LINEAR_COUNT; i++)
        if (model_param_get(s, linear[i].role, layer, &out[n]) && adapter_targets(a, s, &out[n]))
            n++;
    return n;
}

int64_t adapter_param_count(const struct adapter *a, const struct model_shape *s) {
    struct model_param weights[LINEAR_COUNT];
    return a->rank > 0 ? 2 * s->layers * in_layer(a, s, 0, weights) : 0;
}

bool adapter_param_at(const struct adapter *a, const struct model_shape *s, int64_t i,
                      struct model_param *out) {
    struct model_param weights[LINEAR_COUNT];
    int64_t per_layer = a->rank > 0 ? 2 * in_layer(a, s, 0, weights) : 0;
    if (i < 0 || i >= s->layers * per_layer)
        return false;
    in_layer(a, s, (int)(i / per_layer), weights);
    adapter_param(a, s, &weights[i % per_layer / 2], i % 2 == 1, out);
    return true;
}

// "q_proj, k_proj, ...": each last name once.
static void accepted(const struct model_shape *s, char *out, size_t bytes) {
    char seen[LINEAR_COUNT][64];
    int n = 0;
    size_t at = 0;
    out[0] = '\0';
    for (int i = 0; i < LINEAR_COUNT; i++) {
        struct model_param w;
        bool known = !model_param_get(s, linear[i].role, 0, &w) || !adapter_module(&w, seen[n]);
        for (int k = 0; k < n && !known; k++)
            known = strcmp(seen[k], seen[n]) == 0;
        if (known)
            continue;
        int wrote = snprintf(out + at, bytes - at, "%s%s", n > 0 ? ", " : "", seen[n]);
        at += wrote > 0 && (size_t)wrote < bytes - at ? (size_t)wrote : 0;
        n++;
    }
}

int adapter_check(const struct adapter *a, const struct model_shape *s, struct err *e) {
    if (a->rank == 0)
        return 0;
    if (a->rank < 0 || a->rank > ADAPTER_RANK_MOST)
        return err_set(e, ERR_USAGE, "an adapter of rank %lld: accepted is 1 to %d",
                       (long long)a->rank, ADAPTER_RANK_MOST);
    if (!isfinite(a->alpha) || a->alpha <= 0)
        return err_set(e, ERR_USAGE, "an adapter's alpha is %g: it must be above 0", a->alpha);
    if (!(a->dropout >= 0 && a->dropout < 1))
        return err_set(e, ERR_USAGE, "an adapter's dropout is %g: accepted is 0 to below 1",
                       a->dropout);
    char known[256];
    accepted(s, known, sizeof known);
    const char *at = a->targets, *word;
    size_t n;
    while (text_next_item(&at, &word, &n)) {
        bool found = false;
        for (int i = 0; i < LINEAR_COUNT && !found; i++) {
            struct model_param w;
            found = model_param_get(s, linear[i].role, 0, &w) && names(word, n, &w);
        }
        if (!found)
            return err_set(e, ERR_USAGE,
                           "the adapter's target '%.*s' is no linear layer of a block of %s: "
                           "accepted are all, attention, mlp, %s",
                           (int)(n < 64 ? n : 64), word, s->name, known);
    }
    for (int i = 0; i < LINEAR_COUNT; i++) {
        struct model_param w;
        int64_t in, out;
        if (!model_param_get(s, linear[i].role, 0, &w) || !adapter_targets(a, s, &w))
            continue;
        adapter_features(s, &w, &in, &out);
        if (a->rank > in || a->rank > out)
            return err_set(e, ERR_USAGE,
                           "an adapter of rank %lld does not fit '%s', which goes from %lld to "
                           "%lld features: the rank may be at most the smaller of the two",
                           (long long)a->rank, w.name, (long long)in, (long long)out);
    }
    return 0;
}
