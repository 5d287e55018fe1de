// verify.c - haggle_verify: prints the figures of each folder and returns one result for all.
#include "api/api.h"

#include "train/verify.h"

_Static_assert((int)HAGGLE_VERIFY_REFERENCE == (int)VERIFY_REFERENCE &&
                   (int)HAGGLE_VERIFY_CHECKING == (int)VERIFY_CHECKING,
               "haggle.h and train/verify.h mean the same");

// After a folder with a figure outside its tolerance the next ones are still compared. A folder
// that cannot be compared ends the call.
static int verify(struct call *c, const struct knobs *k, const char *const *folders, size_t n,
                  unsigned how, struct err *e) {
    size_t off = 0;
    if (call_json_begin(c, "verify", k))
        json_member_array(&c->json, "folders");
    for (size_t i = 0; i < n; i++) {
        struct verify_result r = {0};
        int rc = verify_folder(folders[i], k, how, &r, e);
        if (rc == 0 || rc == ERR_NUMERIC) {
            off += rc != 0;
            if (c->out)
                verify_print(&r, c->out, true);
            if (c->wants_json)
                verify_put_json(&r, &c->json);
        }
        verify_free(&r);
        if (rc != 0 && rc != ERR_NUMERIC)
            return rc;
    }
    if (c->wants_json) {
        json_put_array_end(&c->json);
        json_member_bool(&c->json, "ok", off == 0);
        json_put_object_end(&c->json);
    }
    if (off > 1) // for a single folder *e already has a sentence
        return err_set(e, ERR_NUMERIC, "%zu of %zu folders have figures outside their tolerance",
                       off, n);
    return off == 0 ? 0 : ERR_NUMERIC;
}

int haggle_verify(const struct haggle_config *config, const char *const *folders, size_t n,
                  unsigned how, const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    call_begin(&c, sink);
    return call_end(&c, verify(&c, &config->knobs, folders, n, how, &c.err), e);
}
