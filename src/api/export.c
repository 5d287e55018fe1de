// export.c - haggle_export: writes a run's checkpoint as a Hugging Face folder, or checks
// one, or writes a GGUF file.
#include "api/api.h"

#include "base/text.h"
#include "export/export.h"

#include <string.h>

// Hugging Face's writer used this file size for years. Newer releases allow more, and all read it.
static const uint64_t SHARD_BYTES = UINT64_C(5000000000);

static int read_dtype(const char *text, struct export_options *o, struct err *e) {
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    o->as_source = text == NULL || strcmp(text, "as-source") == 0;
    o->dtype = DTYPE_F32;
    if (o->as_source)
        return 0;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(text, dtype_text(types[i])) == 0) {
            o->dtype = types[i];
            return 0;
        }
    return err_set(e, ERR_USAGE,
                   "--dtype %s is not accepted; accepted: fp32, bf16, fp16, as-source", text);
}

static int read_options(const struct haggle_export *x, struct export_options *o, struct err *e) {
    if (x->run_dir == NULL || x->out_dir == NULL)
        return err_set(e, ERR_USAGE, "an export needs a run's folder and a folder to write");
    if (x->data != NULL && !x->merge)
        return err_set(e, ERR_USAGE,
                       "--data says where the loss of a merge is measured; it needs --merge");
    TRY(read_dtype(x->dtype, o, e));
    o->shard_bytes = SHARD_BYTES;
    if (x->shard_bytes == NULL)
        return 0;
    if (text_parse_bytes(x->shard_bytes, &o->shard_bytes, e) != 0)
        return err_context(e, "--shard-bytes");
    if (o->shard_bytes == 0)
        return err_set(e, ERR_USAGE, "--shard-bytes 0 is not accepted; accepted: 1 or more");
    return 0;
}

static int read_gguf(const struct haggle_export *x, struct export_options *o, struct err *e) {
    const int type = gguf_type_find(x->type != NULL ? x->type : "f16");
    if (type < 0)
        return err_set(e, ERR_USAGE,
                       "--type %s is not accepted; accepted: f32, f16, bf16, q8_0, q4_0", x->type);
    if (x->run_dir == NULL || x->out_dir != NULL)
        return err_set(e, ERR_USAGE, "--gguf needs a run or a folder, and writes one file");
    if (x->dtype != NULL || x->shard_bytes != NULL || x->data != NULL)
        return err_set(e, ERR_USAGE,
                       "%s is for folders; accepted with --gguf: --type, --best, --source, "
                       "--merge, --probe",
                       x->dtype != NULL         ? "--dtype"
                       : x->shard_bytes != NULL ? "--shard-bytes"
                                                : "--data");
    o->gguf = (enum gguf_type)type;
    o->out_dir = x->gguf;
    return 0;
}

static int work(struct call *c, const struct knobs *k, const struct haggle_export *x,
                struct err *e) {
    struct export_options o = {.run_dir = x->run_dir,
                               .out_dir = x->out_dir,
                               .best = x->best,
                               .source = x->source,
                               .knobs = k,
                               .merge = x->merge,
                               .data = x->data,
                               .probe = x->probe,
                               .listener = {&c->log, call_say}};
    struct export_result r = {0};
    if (x->gguf == NULL && x->type != NULL)
        return err_set(e, ERR_USAGE, "--type is for GGUF files; accepted: --gguf FILE --type %s",
                       x->type);
    TRY(x->gguf != NULL ? read_gguf(x, &o, e) : read_options(x, &o, e));
    int rc = x->gguf != NULL ? export_gguf(&o, &r, e)
             : x->check      ? export_check(&o, &r, e)
                             : export_run(&o, &r, e);
    // A folder with a figure outside its tolerance still has figures to show.
    const bool shown = rc == 0 || (rc == ERR_NUMERIC && r.n_figures > 0);
    if (shown && c->out)
        export_print(&r, c->out);
    if (shown && call_json_begin(c, "export", k)) {
        export_put_json(&r, &c->json);
        if (rc != 0)
            call_json_error(&c->json, e->code, e->text);
        json_put_object_end(&c->json);
    }
    export_free(&r);
    return rc;
}

int haggle_export(const struct haggle_config *config, const struct haggle_export *x,
                  const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    call_begin(&c, sink);
    return call_end(&c, work(&c, &config->knobs, x, &c.err), e);
}
