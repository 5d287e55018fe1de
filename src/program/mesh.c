// mesh.c - see mesh.h.
#include "program/mesh.h"

// From the axis along which ranks count first.
static const enum mesh_axis order[AXIS_COUNT] = {AXIS_TENSOR, AXIS_DATA, AXIS_PIPE};

const char *mesh_axis_name(enum mesh_axis a) {
    static const char *const names[AXIS_COUNT] = {"data", "tensor", "pipe"};
    return names[a];
}

int mesh_size(const struct mesh *m, enum mesh_axis a) {
    return m->size[a] > 1 ? m->size[a] : 1;
}

struct mesh mesh_make(int data, int tensor, int pipe, int rank) {
    struct mesh m = {.size = {[AXIS_DATA] = data, [AXIS_TENSOR] = tensor, [AXIS_PIPE] = pipe}};
    for (int i = 0; i < AXIS_COUNT; i++) {
        m.at[order[i]] = rank % mesh_size(&m, order[i]);
        rank /= mesh_size(&m, order[i]);
    }
    return m;
}

int mesh_count(const struct mesh *m, unsigned axes) {
    int n = 1;
    for (int a = 0; a < AXIS_COUNT; a++)
        n *= axes >> a & 1 ? mesh_size(m, (enum mesh_axis)a) : 1;
    return n;
}

int mesh_world(const struct mesh *m) {
    return mesh_count(m, MESH_WORLD);
}

int mesh_rank(const struct mesh *m) {
    int rank = 0;
    for (int i = AXIS_COUNT - 1; i >= 0; i--)
        rank = rank * mesh_size(m, order[i]) + m->at[order[i]];
    return rank;
}

int mesh_peer(const struct mesh *m, enum mesh_axis a, int at) {
    struct mesh peer = *m;
    peer.at[a] = at;
    return mesh_rank(&peer);
}

int mesh_group(const struct mesh *m, unsigned axes, int *ranks) {
    int n = 0;
    for (int rank = 0; rank < mesh_world(m); rank++) {
        const struct mesh other =
            mesh_make(m->size[AXIS_DATA], m->size[AXIS_TENSOR], m->size[AXIS_PIPE], rank);
        int differs = 0;
        for (int a = 0; a < AXIS_COUNT; a++)
            differs |= !(axes >> a & 1) && other.at[a] != m->at[a];
        if (!differs)
            ranks[n++] = rank;
    }
    return n;
}
