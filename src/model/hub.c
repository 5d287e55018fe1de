// hub.c - see hub.h.
//
// The cache's layout: models--ORG--NAME/refs/main holds the name of a commit, and
// models--ORG--NAME/snapshots/COMMIT the files of that commit, as links. What a ref says becomes
// part of a path, so it is checked first.
#include "model/hub.h"

#include "base/file.h"
#include "model/shape.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MOST = 96, REF_MOST = 64 };

// A plain name: no slash, no ".." and nothing that a shell or a terminal would take amiss.
static bool is_plain(const char *s, size_t n) {
    static const char accepted[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                   "-_.";
    if (n == 0 || s[0] == '.' || s[0] == '-')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!strchr(accepted, s[i]) || (s[i] == '.' && i + 1 < n && s[i + 1] == '.'))
            return false;
    return true;
}

// "ORG/NAME", or "NAME" as a few old models are called.
static bool can_be_on_hub(const char *name) {
    const size_t n = strlen(name);
    const char *slash = strchr(name, '/');
    if (n > NAME_MOST || (n > 5 && strcmp(name + n - 5, ".yaml") == 0))
        return false;
    if (!slash)
        return is_plain(name, n);
    return is_plain(name, (size_t)(slash - name)) && is_plain(slash + 1, strlen(slash + 1));
}

// False when no variable says where the cache is.
static bool cache_folder(char out[PATH_MAX]) {
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *value = getenv(places[i].variable);
        if (!value || !*value)
            continue;
        const int n = snprintf(out, PATH_MAX, "%s%s", value, places[i].below);
        return n > 0 && n < PATH_MAX;
    }
    return false;
}

// The commit that refs/main names.
static int read_ref(const char *repo, char out[REF_MOST + 1], struct err *e) {
    char path[PATH_MAX], *text = NULL;
    size_t bytes = 0;
    TRY(file_join(path, sizeof path, repo, "refs/main", e));
    TRY(file_read_all(path, REF_MOST + 1, &text, &bytes, e));
    while (bytes > 0 && (text[bytes - 1] == '\n' || text[bytes - 1] == '\r'))
        bytes--;
    const bool fits = bytes <= REF_MOST && is_plain(text, bytes);
    if (fits) {
        memcpy(out, text, bytes);
        out[bytes] = '\0';
    }
    free(text);
    return fits ? 0
                : err_set(e, ERR_FORMAT,
                          "%s names no commit; accepted: letters, digits, '-', '_' and '.'", path);
}

static int find_snapshot(const char *repo, char out[PATH_MAX], struct err *e) {
    char commit[REF_MOST + 1], snapshots[PATH_MAX];
    TRY(read_ref(repo, commit, e));
    TRY(file_join(snapshots, sizeof snapshots, repo, "snapshots", e));
    TRY(file_join(out, PATH_MAX, snapshots, commit, e));
    return file_is_dir(out)
               ? 0
               : err_set(e, ERR_IO, "refs/main names a snapshot that is not there: %s", out);
}

int hub_resolve(char *name, size_t bytes, bool *replaced, struct err *e) {
    char cache[PATH_MAX] = "", folder[NAME_MOST + 16], repo[PATH_MAX] = "", found[PATH_MAX];
    const char *slash = strchr(name, '/');
    if (replaced)
        *replaced = false;
    if (file_is_dir(name) || model_shape_is_builtin(name) || !can_be_on_hub(name))
        return 0;
    snprintf(folder, sizeof folder, "models--%.*s%s%s", slash ? (int)(slash - name) : NAME_MOST,
             name, slash ? "--" : "", slash ? slash + 1 : "");
    if (cache_folder(cache))
        TRY(file_join(repo, sizeof repo, cache, folder, e));
    if (!file_is_dir(repo)) {
        if (!slash) // more likely a misspelt built-in name
            return 0;
        return err_set(
            e, ERR_IO,
            "'%s' is neither a folder here nor a model in the Hugging Face cache (%.300s); "
            "'hf download %s' (or 'huggingface-cli download %s') fetches it from the hub",
            name, *cache ? cache : "set HF_HOME", name, name);
    }
    if (find_snapshot(repo, found, e) != 0)
        return err_context(e,
                           "'%s' is in the Hugging Face cache but cannot be used ('hf download "
                           "%s' mends that)",
                           name, name);
    if (strlen(found) >= bytes)
        return err_set(e, ERR_USAGE,
                       "the path of '%s' in the Hugging Face cache has %zu bytes; at "
                       "most %zu are accepted",
                       name, strlen(found), bytes - 1);
    memcpy(name, found, strlen(found) + 1);
    if (replaced)
        *replaced = true;
    return 0;
}
