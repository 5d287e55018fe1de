// chosen.c - see chosen.h.
#include "model/chosen.h"

#include "base/text.h"

#include <string.h>

bool chosen_has_adapter(const struct chosen *c) {
    return c->adapter && c->adapter->rank > 0;
}

// Whether `word` is `name`, or a part of it that begins and ends at a dot or at an end.
static bool is_part(const char *name, const char *word, size_t n) {
    for (const char *at = name; *at != '\0'; at++)
        if (strncmp(at, word, n) == 0 && (at == name || at[-1] == '.') &&
            (at[n] == '\0' || at[n] == '.'))
            return true;
    return false;
}

bool chosen_lists(const char *list, const char *tensor) {
    const char *word;
    size_t n;
    while (text_next_item(&list, &word, &n))
        if (is_part(tensor, word, n))
            return true;
    return false;
}

bool chosen_trains(const struct chosen *c, const char *tensor, bool of_adapter) {
    const bool wanted = of_adapter || !chosen_has_adapter(c) || chosen_lists(c->also, tensor);
    return wanted && !chosen_lists(c->freeze, tensor);
}

// Whether a word stands for a weight, or for a tensor of the adapter where `pairs` is set.
static bool stands(const struct chosen *c, const struct model_shape *s, const char *word, size_t n,
                   bool pairs) {
    struct model_param p;
    for (int64_t i = 0; model_param_at(s, i, &p); i++)
        if (is_part(p.name, word, n))
            return true;
    for (int64_t i = 0; pairs && chosen_has_adapter(c) && adapter_param_at(c->adapter, s, i, &p);
         i++)
        if (is_part(p.name, word, n))
            return true;
    return false;
}

static int check_list(const struct chosen *c, const struct model_shape *s, const char *knob,
                      const char *list, bool pairs, struct err *e) {
    const char *at = list, *word;
    struct model_param first = {.name = ""};
    size_t n;
    model_param_at(s, 0, &first);
    while (text_next_item(&at, &word, &n))
        if (!stands(c, s, word, n, pairs))
            return err_set(
                e, ERR_USAGE,
                "%s=%.*s: %s has no weight of that name%s; accepted: names such as "
                "%s, or a part of one between dots, such as layers.0 or h.0",
                knob, (int)(n < 100 ? n : 100), word, s->name,
                s->tied && strncmp(word, "lm_head", 7) == 0 ? " (its head is the embedding)" : "",
                first.name);
    return 0;
}

int chosen_check(const struct chosen *c, const struct model_shape *s, struct err *e) {
    struct model_param p;
    bool any = false;
    if (c->also && c->also[0] != '\0' && !chosen_has_adapter(c))
        return err_set(e, ERR_USAGE,
                       "train.also=%.100s names weights that train beside an adapter, but "
                       "lora.rank is 0 and all weights train; accepted: lora.rank above 0, or "
                       "train.freeze for the weights that should not train",
                       c->also);
    TRY(check_list(c, s, "train.also", c->also, false, e));
    TRY(check_list(c, s, "train.freeze", c->freeze, true, e));
    for (int64_t i = 0; model_param_at(s, i, &p); i++) {
        if (chosen_lists(c->also, p.name) && chosen_lists(c->freeze, p.name))
            return err_set(e, ERR_USAGE, "train.also and train.freeze both name '%s'", p.name);
        any |= chosen_trains(c, p.name, false);
    }
    for (int64_t i = 0; !any && chosen_has_adapter(c) && adapter_param_at(c->adapter, s, i, &p);
         i++)
        any = chosen_trains(c, p.name, true);
    return any ? 0
               : err_set(e, ERR_USAGE, "train.freeze=%.100s leaves nothing to train", c->freeze);
}

bool chosen_at(const struct chosen *c, const struct model_shape *s, int64_t i,
               struct model_param *out, bool *of_adapter) {
    *of_adapter = false;
    if (!chosen_has_adapter(c))
        return model_param_at(s, i, out);
    for (int64_t k = 0; c->also && c->also[0] != '\0' && model_param_at(s, k, out); k++)
        if (chosen_trains(c, out->name, false) && i-- == 0)
            return true;
    *of_adapter = true;
    return i >= 0 && adapter_param_at(c->adapter, s, i, out);
}
