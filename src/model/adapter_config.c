// adapter_config.c - reads adapter_config.json. adapter_file.h says what is refused.
//
// The table `fields` has one line for each setting that PEFT writes or has written. The last group
// is refused unless it is empty: null, false, "", [] or {}.
#include "model/adapter_file.h"
#include "model/names.h"

#include "base/file.h"
#include "base/json.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX_BYTES = 1 << 20 };

struct reading {
    struct json_reader r;
    const struct model_shape *shape;
    struct adapter_config *out;
};

struct field {
    const char *key;
    int (*read)(struct reading *x, const struct field *f);
    const char *why; // the end of a refusal
};

static bool is_null(struct reading *x) {
    return json_peek(&x->r) == JSON_NULL;
}

// ---------------------------------------------------------------- single values

static int read_nothing(struct reading *x, const struct field *f) {
    (void)f;
    return json_skip(&x->r);
}

static int read_word(struct reading *x, const struct field *f, const char *accepted) {
    char quoted[NAMES_QUOTE_BYTES];
    const char *text;
    TRY(json_read_string(&x->r, &text, NULL));
    if (strcmp(text, accepted) != 0)
        return json_fail(&x->r, ERR_UNSUPPORTED, "\"%s\" is %s; accepted is \"%s\": %s", f->key,
                         names_quote(quoted, text), accepted, f->why);
    return 0;
}

static int read_type(struct reading *x, const struct field *f) {
    return read_word(x, f, "LORA");
}

static int read_task(struct reading *x, const struct field *f) {
    return is_null(x) ? json_read_null(&x->r) : read_word(x, f, "CAUSAL_LM");
}

static int read_bias(struct reading *x, const struct field *f) {
    return read_word(x, f, "none");
}

static int read_rank(struct reading *x, const struct field *f) {
    struct adapter *a = &x->out->adapter;
    TRY(json_read_i64(&x->r, &a->rank));
    if (a->rank < 1)
        return json_fail(&x->r, ERR_FORMAT, "\"%s\" is %lld; it must be 1 or more", f->key,
                         (long long)a->rank);
    return 0;
}

static int read_alpha(struct reading *x, const struct field *f) {
    (void)f;
    return json_read_double(&x->r, &x->out->adapter.alpha);
}

static int read_dropout(struct reading *x, const struct field *f) {
    (void)f;
    return json_read_double(&x->r, &x->out->adapter.dropout);
}

static int read_flag(struct reading *x, bool *out) {
    *out = false;
    return is_null(x) ? json_read_null(&x->r) : json_read_bool(&x->r, out);
}

static int read_rslora(struct reading *x, const struct field *f) {
    (void)f;
    return read_flag(x, &x->out->adapter.rslora);
}

static int read_orientation(struct reading *x, const struct field *f) {
    bool in_out;
    TRY(read_flag(x, &in_out));
    if (in_out != x->shape->in_out_weights)
        return json_fail(&x->r, ERR_MISMATCH,
                         "\"%s\" is %s, but this model's matrices are stored [%s]: the adapter is "
                         "for a model of another family",
                         f->key, in_out ? "true" : "false",
                         x->shape->in_out_weights ? "in, out" : "out, in");
    return 0;
}

// Only initial values that leave the base as it is: the others are loaded on a changed base.
static int read_init(struct reading *x, const struct field *f) {
    static const char *const accepted[] = {"gaussian", "eva", "orthogonal"};
    char quoted[NAMES_QUOTE_BYTES];
    const char *text;
    bool flag;
    if (json_peek(&x->r) != JSON_STRING)
        return read_flag(x, &flag);
    TRY(json_read_string(&x->r, &text, NULL));
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++)
        if (strcmp(text, accepted[i]) == 0)
            return 0;
    return json_fail(
        &x->r, ERR_UNSUPPORTED,
        "\"%s\" is %s, which may change the base's weights; accepted are: true, "
        "false, gaussian, eva, orthogonal. PEFT converts such an adapter when it saves "
        "it with path_initial_model_for_weight_conversion",
        f->key, names_quote(quoted, text));
}

static int read_base(struct reading *x, const struct field *f) {
    const char *text;
    (void)f;
    if (is_null(x))
        return json_read_null(&x->r);
    TRY(json_read_string(&x->r, &text, NULL));
    snprintf(x->out->base, sizeof x->out->base, "%s", text);
    return 0;
}

static int read_empty(struct reading *x, const struct field *f) {
    const char *text = "", *key;
    char quoted[NAMES_QUOTE_BYTES];
    bool flag = false, any = false;
    switch (json_peek(&x->r)) {
    case JSON_NULL:
        return json_read_null(&x->r);
    case JSON_BOOL:
        TRY(json_read_bool(&x->r, &flag));
        any = flag;
        break;
    case JSON_STRING:
        TRY(json_read_string(&x->r, &text, NULL));
        any = *text != '\0';
        break;
    case JSON_ARRAY:
        TRY(json_enter_array(&x->r));
        any = json_next_element(&x->r);
        break;
    case JSON_OBJECT:
        TRY(json_enter_object(&x->r));
        any = json_next_key(&x->r, &key);
        break;
    default:
        TRY(json_skip(&x->r));
        any = true;
    }
    TRY(x->r.rc);
    return any ? json_fail(&x->r, ERR_UNSUPPORTED, "%s is set: %s", names_quote(quoted, f->key),
                           f->why)
               : 0;
}

// ---------------------------------------------------------------- lists of modules

// haggle's words for groups of layers are not names in a file.
static bool is_module_name(const char *text) {
    if (strcmp(text, "all") == 0 || strcmp(text, "attention") == 0 || strcmp(text, "mlp") == 0)
        return false;
    for (const char *p = text; *p != '\0'; p++)
        if (!isalnum((unsigned char)*p) && strchr("_.-", *p) == NULL)
            return false;
    return *text != '\0';
}

static int add_module(struct reading *x, const struct field *f, char *list, size_t room) {
    char quoted[NAMES_QUOTE_BYTES];
    const char *text;
    const size_t used = strlen(list);
    TRY(json_read_string(&x->r, &text, NULL));
    if (!is_module_name(text))
        return json_fail(&x->r, ERR_UNSUPPORTED,
                         "\"%s\" lists %s, which is not the name of a layer", f->key,
                         names_quote(quoted, text));
    if (used + strlen(text) + 2 > room)
        return json_fail(&x->r, ERR_UNSUPPORTED,
                         "\"%s\" lists names of more than %zu bytes together; that is the most",
                         f->key, room - 1);
    snprintf(list + used, room - used, "%s%s", used > 0 ? "," : "", text);
    return 0;
}

static int read_modules(struct reading *x, const struct field *f, char *list, size_t room) {
    TRY(json_enter_array(&x->r));
    while (json_next_element(&x->r))
        TRY(add_module(x, f, list, room));
    return x->r.rc;
}

static int read_targets(struct reading *x, const struct field *f) {
    char *targets = x->out->adapter.targets;
    const char *text;
    if (is_null(x))
        return json_fail(&x->r, ERR_UNSUPPORTED,
                         "\"%s\" is null; it must name the layers that have an adapter", f->key);
    if (json_peek(&x->r) != JSON_STRING) {
        TRY(read_modules(x, f, targets, ADAPTER_TARGETS_BYTES));
        return *targets != '\0' ? 0
                                : json_fail(&x->r, ERR_UNSUPPORTED,
                                            "\"%s\" is empty; it must name linear layers", f->key);
    }
    TRY(json_read_string(&x->r, &text, NULL));
    x->out->by_pattern = strcmp(text, "all-linear") != 0;
    if (!x->out->by_pattern)
        strcpy(targets, "all");
    return 0;
}

static int read_whole(struct reading *x, const struct field *f) {
    return is_null(x) ? json_read_null(&x->r)
                      : read_modules(x, f, x->out->whole, ADAPTER_WHOLE_BYTES);
}

// ---------------------------------------------------------------- the object

#define ONE_SIZE "haggle's pairs are alike in all layers"
static const struct field fields[] = {
    // The first four must be there.
    {"peft_type", read_type, "haggle reads only LoRA"},
    {"r", read_rank, NULL},
    {"lora_alpha", read_alpha, NULL},
    {"target_modules", read_targets, NULL},
    {"task_type", read_task, "haggle's models predict the next token"},
    {"bias", read_bias, "haggle's adapters train no bias"},
    {"lora_dropout", read_dropout, NULL},
    {"use_rslora", read_rslora, NULL},
    {"fan_in_fan_out", read_orientation, NULL},
    {"init_lora_weights", read_init, NULL},
    {"modules_to_save", read_whole, NULL},
    {"base_model_name_or_path", read_base, NULL},
    // These say nothing about a finished adapter, or only what another setting turns on.
    {"auto_mapping", read_nothing, NULL},
    {"revision", read_nothing, NULL},
    {"inference_mode", read_nothing, NULL},
    {"peft_version", read_nothing, NULL},
    {"runtime_config", read_nothing, NULL},
    {"megatron_core", read_nothing, NULL},
    {"layers_pattern", read_nothing, NULL},
    {"loftq_config", read_nothing, NULL},
    {"eva_config", read_nothing, NULL},
    {"corda_config", read_nothing, NULL},
    {"lora_ga_config", read_nothing, NULL},
    {"qalora_group_size", read_nothing, NULL},
    {"ensure_weight_tying", read_nothing, NULL},
    {"use_dora", read_empty, "haggle does not compute DoRA"},
    {"lora_bias", read_empty, "haggle's adapters have no bias"},
    {"rank_pattern", read_empty, ONE_SIZE},
    {"alpha_pattern", read_empty, ONE_SIZE},
    {"layers_to_transform", read_empty, ONE_SIZE},
    {"exclude_modules", read_empty, ONE_SIZE},
};
enum { FIELDS = sizeof fields / sizeof *fields, REQUIRED = 4 };

static int read_members(struct reading *x) {
    bool seen[FIELDS] = {false};
    const char *key;
    TRY(json_enter_object(&x->r));
    while (json_next_key(&x->r, &key)) {
        const struct field unknown = {key, read_empty,
                                      "haggle does not know this setting, and it may change what "
                                      "the adapter computes"};
        int i = 0;
        while (i < FIELDS && strcmp(fields[i].key, key) != 0)
            i++;
        if (i < FIELDS && seen[i])
            return json_fail(&x->r, ERR_FORMAT, "\"%s\" is given twice", key);
        if (i < FIELDS)
            seen[i] = true;
        TRY(i < FIELDS ? fields[i].read(x, &fields[i]) : unknown.read(x, &unknown));
    }
    TRY(json_finish(&x->r));
    for (int i = 0; i < REQUIRED; i++)
        if (!seen[i])
            return err_set(x->r.e, ERR_FORMAT, "%.400s: \"%s\" is missing", x->r.name,
                           fields[i].key);
    return 0;
}

// ---------------------------------------------------------------- weights that are replaced

// The weight's name without its last part: the name of its module.
static size_t module_bytes(const struct model_param *weight) {
    const char *dot = strrchr(weight->name, '.');
    return dot != NULL ? (size_t)(dot - weight->name) : 0;
}

// PEFT replaces every module whose name ends in a listed name, at whatever letter that begins.
static bool ends_in(const struct model_param *weight, const char *word, size_t n) {
    const size_t m = module_bytes(weight);
    return n > 0 && n <= m && memcmp(weight->name + m - n, word, n) == 0;
}

bool adapter_config_replaces(const struct adapter_config *c, const struct model_param *weight) {
    for (const char *at = c->whole; *at != '\0'; at += at[0] == ',') {
        const size_t n = strcspn(at, ",");
        if (ends_in(weight, at, n))
            return true;
        at += n;
    }
    return false;
}

static int check_word(const struct reading *x, const char *word, size_t n) {
    struct model_param p;
    for (int64_t i = 0; model_param_at(x->shape, i, &p); i++)
        if (ends_in(&p, word, n))
            return 0;
    return err_set(x->r.e, ERR_MISMATCH,
                   "%.400s: \"modules_to_save\" lists '%.*s', but the model has no such module",
                   x->r.name, n < 64 ? (int)n : 64, word);
}

static int check_whole(const struct reading *x) {
    const struct adapter_config *c = x->out;
    struct model_param p;
    for (const char *at = c->whole; *at != '\0'; at += at[0] == ',') {
        const size_t n = strcspn(at, ",");
        TRY(check_word(x, at, n));
        at += n;
    }
    for (int64_t i = 0; *c->whole != '\0' && model_param_at(x->shape, i, &p); i++) {
        if (!adapter_config_replaces(c, &p))
            continue;
        if (p.role == ROLE_WTE && x->shape->tied)
            return err_set(x->r.e, ERR_UNSUPPORTED,
                           "%.400s: \"modules_to_save\" replaces '%s', which is also the model's "
                           "head; haggle cannot give the two different values",
                           x->r.name, p.name);
        if (!c->by_pattern && adapter_targets(&c->adapter, x->shape, &p))
            return err_set(x->r.e, ERR_UNSUPPORTED,
                           "%.400s: '%s' is in \"modules_to_save\" and in \"target_modules\"; "
                           "accepted is one of them",
                           x->r.name, p.name);
    }
    return 0;
}

// ---------------------------------------------------------------- the file

static int check_config(struct reading *x) {
    struct adapter probe = x->out->adapter;
    if (x->out->by_pattern) // its targets are not known yet
        strcpy(probe.targets, "all");
    int rc = adapter_check(&probe, x->shape, x->r.e);
    if (rc == 0)
        return check_whole(x);
    err_context(x->r.e, "%.400s", x->r.name);
    return rc;
}

int adapter_config_read(struct adapter_config *out, const char *path, const struct model_shape *s,
                        struct err *e) {
    char *text;
    size_t bytes;
    struct region strings = {0};
    struct reading x = {.shape = s, .out = out};
    *out = (struct adapter_config){0};
    TRY(file_read_all(path, CONFIG_MAX_BYTES, &text, &bytes, e));
    json_reader_init(&x.r, path, text, bytes, &strings, e);
    int rc = read_members(&x);
    if (rc == 0)
        rc = check_config(&x);
    region_free(&strings);
    free(text);
    return rc;
}
