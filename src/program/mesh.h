// mesh.h - where a rank stands among the ranks of a job.
//
// Ranks form a mesh with three axes. Each rank has a coordinate on each axis:
//   data     replicas of the model, which train on different sequences
//   tensor   ranks that share the heads, the MLP and the vocabulary of every layer
//   pipe     stages, which share the layers
// Ranks count along tensor first, then data, then pipe: neighbours talk most in a tensor group.
//
// A group is all ranks that differ only on some axes. It follows from the mesh, and it is known by
// its members: two groups with the same members are one group, whatever they are called.
#ifndef HAGGLE_PROGRAM_MESH_H
#define HAGGLE_PROGRAM_MESH_H

enum mesh_axis { AXIS_DATA, AXIS_TENSOR, AXIS_PIPE, AXIS_COUNT };
enum { // sets of axes
    MESH_DATA = 1 << AXIS_DATA,
    MESH_TENSOR = 1 << AXIS_TENSOR,
    MESH_PIPE = 1 << AXIS_PIPE,
    MESH_WORLD = MESH_DATA | MESH_TENSOR | MESH_PIPE,
};
enum { MESH_RANKS_MOST = 1024 };

// All zero: one rank alone.
struct mesh {
    int size[AXIS_COUNT]; // 0 counts as 1
    int at[AXIS_COUNT];   // this rank's coordinates
};

struct mesh mesh_make(int data, int tensor, int pipe, int rank);
const char *mesh_axis_name(enum mesh_axis a);
int mesh_size(const struct mesh *m, enum mesh_axis a); // at least 1
int mesh_world(const struct mesh *m);
int mesh_rank(const struct mesh *m);                             // of these coordinates
int mesh_peer(const struct mesh *m, enum mesh_axis a, int at);   // the rank with another one
int mesh_group(const struct mesh *m, unsigned axes, int *ranks); // ascending; returns how many
int mesh_count(const struct mesh *m, unsigned axes);             // ranks of such a group

#endif
