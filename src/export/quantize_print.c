// quantize_print.c - a quantized folder's figures, for people and as JSON.
#include "export/quantize_folder.h"

#include "base/text.h"
#include "model/chosen.h"

#include <inttypes.h>

void quantize_print(const struct quantize_summary *s, FILE *f) {
    char before[TEXT_UNIT_BYTES], after[TEXT_UNIT_BYTES], text[STORAGE_TEXT_BYTES];
    fprintf(f, "%s\n", s->out_dir);
    fprintf(f, "  format         %s, by %s, %" PRId64 " matrices\n",
            storage_text(s->how.storage, text), quantize_method_name(s->how.method), s->matrices);
    fprintf(f, "  weights        %s, before %s (%.1f %%)\n", text_bytes(after, s->bytes_after),
            text_bytes(before, s->bytes_before),
            100 * (double)s->bytes_after / (double)(s->bytes_before ? s->bytes_before : 1));
    fprintf(f, "  error          %.2f %% of the weights' size; largest in %s: %.2f %%\n",
            100 * s->error, s->worst, 100 * s->worst_error);
    for (size_t i = 0; i < s->stored.n_others; i++) {
        const struct quantized_other *o = &s->stored.others[i];
        const bool wide = storage_plain(o->storage),
                   listed = s->wider && s->wider[0] && chosen_lists(s->wider, o->name);
        fprintf(f, "  %-14s %s%s\n", wide ? "wide" : "int8", o->name,
                wide     ? ", as asked for"
                : listed ? ", as asked for by --wider"
                         : ": its rows are no whole groups");
    }
}

void quantize_put_json(const struct quantize_summary *s, struct json_writer *w) {
    json_member_string(w, "out", s->out_dir);
    json_member_string(w, "method", quantize_method_name(s->how.method));
    json_put_key(w, "quantization_config");
    quantized_put_json(&s->stored, w);
    json_member_i64(w, "matrices", s->matrices);
    json_member_i64(w, "bytes_before", (int64_t)s->bytes_before);
    json_member_i64(w, "bytes_after", (int64_t)s->bytes_after);
    json_member_double(w, "relative_error", s->error);
    json_member_string(w, "worst", s->worst);
    json_member_double(w, "worst_relative_error", s->worst_error);
}
