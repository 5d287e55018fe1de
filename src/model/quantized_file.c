// quantized_file.c - the tensors of a quantized matrix in a folder's weight files. See quantized.h.
#include "model/quantized.h"
#include "model/names.h"

#include <stdio.h>
#include <string.h>

static void set(struct quantized_tensor *t, const char *param, const char *ending, enum dtype dtype,
                int rank, int64_t rows, int64_t cols, uint64_t at, uint64_t bytes) {
    *t = (struct quantized_tensor){
        .dtype = dtype, .rank = rank, .dims = {rows, cols}, .at = at, .bytes = bytes};
    snprintf(t->name, sizeof t->name, "%s.%s", param, ending);
}

int quantized_tensors(struct storage s, const struct model_param *turned,
                      struct quantized_tensor out[QUANTIZED_TENSORS]) {
    struct storage_parts p;
    const int64_t rows = turned->dims[0];
    if (!storage_layout(s, rows, turned->dims[1], &p))
        return 0;
    const bool int8 = s.kind == STORAGE_INT8;
    set(&out[0], turned->name, "q", int8 ? DTYPE_I8 : DTYPE_U8, 2, rows, (int64_t)p.row_bytes,
        p.codes, p.codes_bytes);
    set(&out[1], turned->name, "scales", p.scale_type, int8 ? 1 : 2, rows, p.groups, p.scales,
        p.scales_bytes);
    if (s.minima)
        set(&out[2], turned->name, "minima", p.scale_type, 2, rows, p.groups, p.minima,
            p.minima_bytes);
    return s.minima ? 3 : 2;
}

bool quantized_holds(const struct weights *w, const char *param) {
    char name[QUANTIZED_NAME_BYTES];
    snprintf(name, sizeof name, "%s.q", param);
    return weights_find(w, name) != NULL;
}

static int check_entry(const struct safetensors_entry *entry, const struct quantized_tensor *t,
                       const char *param, struct storage s, struct err *e) {
    char quoted[NAMES_QUOTE_BYTES], text[STORAGE_TEXT_BYTES];
    if (!entry)
        return err_set(e, ERR_FORMAT,
                       "the weights have no tensor %s, which '%s' needs: config.json says that it "
                       "is kept in %s",
                       names_quote(quoted, t->name), param, storage_text(s, text));
    if (entry->dtype != t->dtype)
        return err_set(e, ERR_MISMATCH, "tensor %s has type %s; %s of %s needs %s",
                       names_quote(quoted, t->name), entry->dtype_name, storage_text(s, text),
                       param, dtype_safetensors(t->dtype));
    bool same = entry->rank == t->rank && entry->bytes == t->bytes;
    for (int i = 0; same && i < t->rank; i++)
        same = entry->dims[i] == t->dims[i];
    if (same)
        return 0;
    char want[64];
    if (t->rank == 2)
        snprintf(want, sizeof want, "[%lld, %lld]", (long long)t->dims[0], (long long)t->dims[1]);
    else
        snprintf(want, sizeof want, "[%lld]", (long long)t->dims[0]);
    return err_set(e, ERR_MISMATCH,
                   "tensor %s has %lld elements in other dimensions than %s of '%s' needs: %s",
                   names_quote(quoted, t->name), (long long)entry->elements, storage_text(s, text),
                   param, want);
}

int quantized_load(struct weights *w, struct storage s, const struct model_param *turned, void *out,
                   struct err *e) {
    struct quantized_tensor tensors[QUANTIZED_TENSORS];
    struct storage_parts parts;
    const int n = quantized_tensors(s, turned, tensors);
    if (n == 0 || !storage_layout(s, turned->dims[0], turned->dims[1], &parts))
        return err_set(e, ERR_INTERNAL, "'%s' has no quantized layout", turned->name);
    memset(out, 0, parts.bytes); // also the gaps between the parts
    for (int i = 0; i < n; i++) {
        const struct safetensors_entry *entry = weights_find(w, tensors[i].name);
        TRY(check_entry(entry, &tensors[i], turned->name, s, e));
        TRY(weights_read(w, entry, 0, entry->elements, (char *)out + tensors[i].at,
                         tensors[i].dtype, e));
    }
    return storage_check(s, &parts, out, turned->name, e);
}
