// hardware.c - see hardware.h. Reads the lines of the catalog and finds devices by name.
#include "planner/hardware.h"

#include "base/array.h"
#include "base/file.h"
#include "base/text.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char hardware_builtin[]; // data/hardware.csv, made a string by CMakeLists.txt

enum { FILE_BYTES_MOST = 4 << 20, ENTRIES_MOST = 4096, FIELDS = 5 };

// Which number of an entry a figure is, and what is accepted.
struct figure {
    const char *name;
    size_t at;
    double least, most;
};

#define DEVICE(field, least, most)                                                                 \
    { #field, offsetof(struct hardware_device, field), least, most }
static const struct figure device_figures[] = {
    DEVICE(memory_gib, 0.01, 1e6),
    DEVICE(memory_gbps, 0.1, 1e6),
    DEVICE(fp32_tflops, 1e-4, 1e6),
    DEVICE(tf32_tflops, 0, 1e6),
    DEVICE(half_tflops, 0, 1e6),
    DEVICE(fp8_tflops, 0, 1e6),
    DEVICE(bf16, 0, 1),
    DEVICE(units, 1, 1e6),
    DEVICE(tdp_w, 0, 1e5),
    DEVICE(link_gbps, 0.01, 1e5),
    DEVICE(node_gpus, 1, 1024),
    DEVICE(nic_gbits, 0, 1e5),
};
#define NETWORK(field, least, most)                                                                \
    { #field, offsetof(struct hardware_network, field), least, most }
static const struct figure network_figures[] = {
    NETWORK(gbits, 0.01, 1e5),
    NETWORK(latency_us, 0, 1e6),
};
#define NODE(field, least, most)                                                                   \
    { #field, offsetof(struct hardware_node, field), least, most }
static const struct figure node_figures[] = {
    NODE(gpus, 1, 1024),
    NODE(nic_gbits, 0, 1e6),
    NODE(usd_per_hour, 0, 1e6),
};

static const char *const arch_names[ARCH_COUNT] = {
#define X(name, text) text,
    HARDWARE_ARCH_LIST(X)
#undef X
};

const char *hardware_arch_name(enum hardware_arch a) {
    return arch_names[a];
}

struct line {
    const char *file;
    int number;
    char field[FIELDS][160]; // kind, name, figure, value, source
};

static int bad(const struct line *l, struct err *e, const char *what, const char *value,
               const char *accepted) {
    return err_set(e, ERR_FORMAT, "%s:%d: %s '%.60s' is not accepted; accepted: %s", l->file,
                   l->number, what, value, accepted);
}

static int set_figure(const struct line *l, const struct figure *f, size_t n, void *entry,
                      struct err *e) {
    char names[256] = "", range[64];
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(f[i].name, l->field[2]) == 0) {
            double value = 0;
            snprintf(range, sizeof range, "a number from %g to %g", f[i].least, f[i].most);
            if (text_parse_double(l->field[3], &value, NULL) != 0 || !isfinite(value) ||
                value < f[i].least || value > f[i].most)
                return bad(l, e, f[i].name, l->field[3], range);
            memcpy((char *)entry + f[i].at, &value, sizeof value);
            return 0;
        }
        used +=
            (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", f[i].name);
    }
    return bad(l, e, "the figure", l->field[2], names);
}

// The entry of that name, made if it is not there. All entries begin with their name.
static void *entry_of(void *array, int *n, size_t *capacity, size_t bytes, const char *name) {
    char **at = array;
    for (int i = 0; i < *n; i++)
        if (strcmp(*at + (size_t)i * bytes, name) == 0)
            return *at + (size_t)i * bytes;
    if (*n >= ENTRIES_MOST || !array_room(array, (size_t)*n, 1, capacity, bytes, 32))
        return NULL;
    char *entry = *at + (size_t)(*n)++ * bytes;
    memset(entry, 0, bytes);
    snprintf(entry, HARDWARE_NAME_BYTES, "%s", name);
    return entry;
}

static int take_device(struct hardware *h, const struct line *l, struct err *e) {
    struct hardware_device *d =
        entry_of(&h->devices, &h->n_devices, &h->device_capacity, sizeof *d, l->field[1]);
    if (!d)
        return err_set(e, ERR_MEMORY, "%s has no room for device '%s'", l->file, l->field[1]);
    if (strcmp(l->field[2], "arch") != 0)
        return set_figure(l, device_figures, sizeof device_figures / sizeof *device_figures, d, e);
    char names[128] = "";
    size_t used = 0;
    for (int i = 0; i < ARCH_COUNT; i++) {
        if (strcmp(arch_names[i], l->field[3]) == 0) {
            d->arch = (enum hardware_arch)i;
            return 0;
        }
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "",
                                 arch_names[i]);
    }
    return bad(l, e, "arch", l->field[3], names);
}

static int take_network(struct hardware *h, const struct line *l, struct err *e) {
    struct hardware_network *w =
        entry_of(&h->networks, &h->n_networks, &h->network_capacity, sizeof *w, l->field[1]);
    if (!w)
        return err_set(e, ERR_MEMORY, "%s has no room for network '%s'", l->file, l->field[1]);
    return set_figure(l, network_figures, sizeof network_figures / sizeof *network_figures, w, e);
}

static int take_node(struct hardware *h, const struct line *l, struct err *e) {
    struct hardware_node *n =
        entry_of(&h->nodes, &h->n_nodes, &h->node_capacity, sizeof *n, l->field[1]);
    if (!n)
        return err_set(e, ERR_MEMORY, "%s has no room for node '%s'", l->file, l->field[1]);
    if (strcmp(l->field[2], "device") == 0) {
        snprintf(n->device, sizeof n->device, "%.*s", HARDWARE_NAME_BYTES - 1, l->field[3]);
        return 0;
    }
    if (strcmp(l->field[2], "usd_per_hour") == 0)
        snprintf(n->price, sizeof n->price, "%.*s", (int)sizeof n->price - 1, l->field[4]);
    return set_figure(l, node_figures, sizeof node_figures / sizeof *node_figures, n, e);
}

static bool name_is_fine(const char *name) {
    for (const char *c = name; *c; c++)
        if (!islower((unsigned char)*c) && !isdigit((unsigned char)*c) && !strchr("-_.", *c))
            return false;
    return *name && strlen(name) < HARDWARE_NAME_BYTES;
}

static int take_line(struct hardware *h, struct line *l, const char *text, size_t n,
                     struct err *e) {
    size_t from = 0;
    for (int f = 0; f < FIELDS; f++) {
        size_t to = from;
        while (to < n && text[to] != ',')
            to++;
        if (to - from >= sizeof l->field[f])
            return err_set(e, ERR_FORMAT, "%s:%d: field %d is longer than %zu bytes", l->file,
                           l->number, f + 1, sizeof l->field[f] - 1);
        snprintf(l->field[f], sizeof l->field[f], "%.*s", (int)(to - from), text + from);
        if ((to == n) != (f == FIELDS - 1))
            return err_set(e, ERR_FORMAT,
                           "%s:%d: %s than five fields; accepted: kind,name,figure,value,source",
                           l->file, l->number, to == n ? "fewer" : "more");
        from = to + 1;
    }
    if (!name_is_fine(l->field[1]))
        return bad(l, e, "the name", l->field[1], "small letters, digits, '-', '_' and '.'");
    if (!*l->field[4])
        return err_set(e, ERR_FORMAT, "%s:%d: the source of the figure is missing", l->file,
                       l->number);
    if (strcmp(l->field[0], "device") == 0)
        return take_device(h, l, e);
    if (strcmp(l->field[0], "network") == 0)
        return take_network(h, l, e);
    if (strcmp(l->field[0], "node") == 0)
        return take_node(h, l, e);
    return bad(l, e, "the kind", l->field[0], "device, network, node");
}

// A device without these can compute nothing.
static int check_devices(const struct hardware *h, const char *file, struct err *e) {
    for (int i = 0; i < h->n_devices; i++) {
        const struct hardware_device *d = &h->devices[i];
        const char *missing = d->memory_gib <= 0    ? "memory_gib"
                              : d->memory_gbps <= 0 ? "memory_gbps"
                              : d->fp32_tflops <= 0 ? "fp32_tflops"
                              : d->units <= 0       ? "units"
                              : d->link_gbps <= 0   ? "link_gbps"
                              : d->node_gpus <= 0   ? "node_gpus"
                                                    : NULL;
        if (missing)
            return err_set(e, ERR_FORMAT, "%s: device '%s' has no %s", file, d->name, missing);
    }
    return 0;
}

int hardware_read_text(struct hardware *h, const char *name, const char *text, size_t bytes,
                       struct err *e) {
    struct line l = {.file = name};
    if (memchr(text, '\0', bytes))
        return err_set(e, ERR_FORMAT, "%s is not text: it has a NUL byte", name);
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t n = end ? (size_t)(end - text) - at : bytes - at;
        const size_t next = at + n + 1;
        if (n > 0 && text[at + n - 1] == '\r')
            n--;
        l.number++;
        if (n > 0 && text[at] != '#')
            TRY(take_line(h, &l, text + at, n, e));
        at = next;
    }
    return check_devices(h, name, e);
}

int hardware_read_file(struct hardware *h, const char *path, struct err *e) {
    char *text;
    size_t bytes;
    TRY(file_read_all(path, FILE_BYTES_MOST, &text, &bytes, e));
    const int rc = hardware_read_text(h, path, text, bytes, e);
    free(text);
    return rc;
}

int hardware_open(struct hardware *h, struct err *e) {
    *h = (struct hardware){0};
    return hardware_read_text(h, "hardware.csv", hardware_builtin, strlen(hardware_builtin), e);
}

void hardware_free(struct hardware *h) {
    free(h->devices);
    free(h->networks);
    free(h->nodes);
    *h = (struct hardware){0};
}

// ---------------------------------------------------------------- names

static int unknown(const struct hardware *h, const char *name, struct err *e) {
    const char **names = calloc((size_t)h->n_devices + (size_t)h->n_nodes + 1, sizeof *names);
    char list[640] = "";
    size_t n = 0, used = 0;
    if (!names)
        return err_set(e, ERR_MEMORY, "out of memory for the names of devices");
    for (int i = 0; i < h->n_devices; i++)
        names[n++] = h->devices[i].name;
    for (int i = 0; i < h->n_nodes; i++)
        names[n++] = h->nodes[i].name;
    const char *near = text_suggest(name, names, n);
    // A name that begins with the word is likelier meant than one that is spelled like it.
    for (size_t i = 0; *name && i < n; i++)
        if (strncmp(names[i], name, strlen(name)) == 0) {
            near = names[i];
            break;
        }
    for (size_t i = 0; i < n && used + HARDWARE_NAME_BYTES + 8 < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    err_set(e, ERR_USAGE, "the catalog has no device or node '%.60s'%s%s%s; there are: %s", name,
            near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "", list);
    free(names);
    return ERR_USAGE;
}

static const struct hardware_device *find(const struct hardware *h, const char *name) {
    for (int i = 0; i < h->n_devices; i++)
        if (strcmp(h->devices[i].name, name) == 0)
            return &h->devices[i];
    return NULL;
}

int hardware_find(const struct hardware *h, const char *name, struct hardware_device *out,
                  struct err *e) {
    const struct hardware_device *d = find(h, name);
    if (!d)
        return unknown(h, name, e);
    *out = *d;
    return 0;
}

// Whether a name begins with a word, whole to the next '-'; "rtx4090" is rtx-4090.
static bool begins(const char *name, const char *word) {
    for (; *word; name++) {
        if (*name == *word)
            word++;
        else if (*name != '-')
            return false;
    }
    return *name == '\0' || *name == '-';
}

// "A100-80GB-SXM" is read as words: a100, 80gb, sxm. The device whose name begins with the first
// word and is nearest in memory is meant; of equals the first in the catalog, so that plain names
// mean the usual kind.
int hardware_find_written(const struct hardware *h, const char *text, struct hardware_device *out,
                          char changed[96], struct err *e) {
    char words[96] = "", *save = NULL, *first = NULL;
    double gib = 0;
    bool pcie = false, nvl = false;
    snprintf(words, sizeof words, "%.*s", (int)sizeof words - 1, text);
    words[strcspn(words, "(")] = '\0';
    for (char *c = words; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    changed[0] = '\0';
    for (char *w = strtok_r(words, " -_/", &save); w; w = strtok_r(NULL, " -_/", &save)) {
        char *end;
        const double n = strtod(w, &end);
        if (!first)
            first = w;
        else if (end != w && (strcmp(end, "gb") == 0 || strcmp(end, "g") == 0))
            gib = n;
        pcie |= strcmp(w, "pcie") == 0;
        nvl |= strcmp(w, "nvl") == 0;
    }
    const struct hardware_device *best = NULL;
    double distance = 0;
    for (int i = 0; first && i < h->n_devices; i++) {
        const struct hardware_device *d = &h->devices[i];
        if (!begins(d->name, first))
            continue;
        if (pcie != (strstr(d->name, "pcie") != NULL) || nvl != (strstr(d->name, "nvl") != NULL))
            continue;
        // Without a size the larger one is assumed: it is the one that most runs had.
        const double away = gib > 0 ? fabs(d->memory_gib - gib) : -d->memory_gib;
        if (!best || away < distance) {
            best = d;
            distance = away;
        }
    }
    if (!best)
        return unknown(h, first ? first : text, e);
    *out = *best;
    if (gib > 0 && fabs(gib - best->memory_gib) > 0.02 * best->memory_gib) {
        out->memory_gib = gib;
        snprintf(changed, 96, "%s with %g GiB", best->name, gib);
    } else if (gib <= 0 && strchr(best->name, '-')) {
        snprintf(changed, 96, "gpu: %s", best->name);
    }
    return 0;
}

// ---------------------------------------------------------------- clusters

static int check_size(struct cluster *c, int64_t nodes, int64_t per_node, struct err *e) {
    enum { MOST = 65536 };
    if (nodes < 1 || per_node < 1 || nodes > MOST || per_node > 1024 || nodes * per_node > MOST)
        return err_set(e, ERR_USAGE,
                       "cluster '%.80s' has %lld nodes of %lld devices; accepted: 1 to %d devices "
                       "in all, at most 1024 in a node",
                       c->text, (long long)nodes, (long long)per_node, MOST);
    c->nodes = (int)nodes;
    c->per_node = (int)per_node;
    return 0;
}

enum { LATENCY_US = 5 }; // of a message between nodes where no network is named: an assumption

int cluster_make(struct cluster *c, const struct hardware_device *d, int n, struct err *e) {
    const int node = (int)d->node_gpus, per = n < node ? n : node;
    *c = (struct cluster){.device = *d, .latency_s = 1e-6 * LATENCY_US};
    snprintf(c->text, sizeof c->text, "%dx%s", n, d->name);
    if (n > per && n % per != 0)
        return err_set(e, ERR_USAGE,
                       "%d x %s do not fill nodes of %d; accepted: 1 to %d devices, a multiple of "
                       "%d (%d, %d), or nodes by size as 3x4x%s",
                       n, d->name, per, per, per, n / per * per, (n / per + 1) * per, d->name);
    TRY(check_size(c, n / (per > 0 ? per : 1), per, e));
    c->node_bytes_per_s = d->nic_gbits * 1e9 / 8 * per;
    return 0;
}

// "@400" or "@8xib-hdr".
static int take_network_of(struct cluster *c, const struct hardware *h, const char *text,
                           struct err *e) {
    char *end;
    double gbits = strtod(text, &end);
    if (end != text && (*end == '\0' || strcmp(end, "g") == 0) && gbits > 0 && gbits <= 1e6) {
        c->node_bytes_per_s = gbits * 1e9 / 8;
        return 0;
    }
    const long ports = end != text && *end == 'x' ? (long)gbits : 1;
    const char *name = end != text && *end == 'x' ? end + 1 : text;
    const char *names[64];
    size_t n = 0;
    for (int i = 0; i < h->n_networks; i++) {
        if (n < 64)
            names[n++] = h->networks[i].name;
        if (strcmp(h->networks[i].name, name) == 0 && ports >= 1 && ports <= 1024) {
            c->node_bytes_per_s = (double)ports * h->networks[i].gbits * 1e9 / 8;
            c->latency_s = 1e-6 * h->networks[i].latency_us;
            return 0;
        }
    }
    const char *near = text_suggest(name, names, n);
    return err_set(e, ERR_USAGE,
                   "network '%.40s' is not accepted%s%s%s; accepted: Gbit/s of a node as @400, or "
                   "ports of a network of the catalog as @8xib-ndr",
                   text, near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "");
}

static const struct hardware_node *find_node(const struct hardware *h, const char *name) {
    for (int i = 0; i < h->n_nodes; i++)
        if (strcmp(h->nodes[i].name, name) == 0)
            return &h->nodes[i];
    return NULL;
}

static int of_node(struct cluster *c, const struct hardware *h, const struct hardware_node *node,
                   int64_t n, struct err *e) {
    TRY(hardware_find(h, node->device, &c->device, e));
    TRY(check_size(c, n, (int64_t)node->gpus, e));
    c->node_bytes_per_s = node->nic_gbits * 1e9 / 8;
    c->usd_per_hour = node->usd_per_hour * (double)n;
    memcpy(c->price, node->price, sizeof c->price);
    return 0;
}

int cluster_parse(struct cluster *c, const struct hardware *h, const char *text, struct err *e) {
    char copy[96], given[96];
    int64_t n[2] = {1, 0};
    int numbers = 0;
    const char *at = copy;
    if (strlen(text) >= sizeof copy)
        return err_set(e, ERR_USAGE, "a cluster's text of %zu bytes is too long", strlen(text));
    snprintf(copy, sizeof copy, "%s", text);
    snprintf(given, sizeof given, "%s", text);
    char *network = strchr(copy, '@');
    if (network)
        *network++ = '\0';
    while (numbers < 2 && isdigit((unsigned char)*at)) {
        char *end;
        const long long value = strtoll(at, &end, 10);
        if (*end != 'x')
            break;
        n[numbers++] = value;
        at = end + 1;
    }
    *c = (struct cluster){.latency_s = 1e-6 * LATENCY_US};
    memcpy(c->text, given, sizeof given);
    const struct hardware_node *node = find_node(h, at);
    if (node && numbers < 2) {
        TRY(of_node(c, h, node, n[0], e));
    } else {
        struct hardware_device d;
        TRY(hardware_find(h, at, &d, e));
        if (numbers < 2) {
            TRY(check_size(c, n[0], 1, e));
            TRY(cluster_make(c, &d, (int)n[0], e));
        } else {
            c->device = d;
            TRY(check_size(c, n[0], n[1], e));
            c->node_bytes_per_s = d.nic_gbits * 1e9 / 8 * (double)n[1];
        }
    }
    if (network)
        TRY(take_network_of(c, h, network, e));
    memcpy(c->text, given, sizeof given);
    if (c->nodes > 1 && c->node_bytes_per_s <= 0)
        return err_set(e, ERR_USAGE,
                       "cluster '%s' has %d nodes, and the catalog knows no network for %s; "
                       "accepted: %s@100 (Gbit/s of a node), or %s@4xib-hdr",
                       text, c->nodes, c->device.name, text, text);
    return 0;
}
