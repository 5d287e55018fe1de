// build.c - see build.h.
#include "base/build.h"

#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// Finds the note of type NT_GNU_BUILD_ID in a segment of notes and writes its bytes as hex digits.
// A note's name and contents are each padded to 4 bytes.
static bool find_note(const unsigned char *at, size_t bytes, char out[BUILD_ID_BYTES]) {
    while (bytes >= sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) note;
        memcpy(&note, at, sizeof note);
        size_t name = (note.n_namesz + 3u) & ~(size_t)3, size = (note.n_descsz + 3u) & ~(size_t)3;
        if (name > bytes - sizeof note || size > bytes - sizeof note - name)
            return false;
        const unsigned char *id = at + sizeof note + name;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
            memcmp(at + sizeof note, "GNU", 4) == 0) {
            size_t n =
                note.n_descsz < (BUILD_ID_BYTES - 1) / 2 ? note.n_descsz : (BUILD_ID_BYTES - 1) / 2;
            for (size_t i = 0; i < n; i++)
                snprintf(out + 2 * i, 3, "%02x", id[i]);
            return n > 0;
        }
        at += sizeof note + name + size;
        bytes -= sizeof note + name + size;
    }
    return false;
}

// Visits one loaded object. Only the program or library that contains this code counts.
static int visit_object(struct dl_phdr_info *info, size_t size, void *arg) {
    uintptr_t here = (uintptr_t)&find_note;
    bool mine = false;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + p->p_vaddr;
        mine = mine || (p->p_type == PT_LOAD && here >= begin && here - begin < p->p_memsz);
    }
    for (int i = 0; mine && i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type == PT_NOTE &&
            find_note((const unsigned char *)(info->dlpi_addr + p->p_vaddr), p->p_memsz, arg))
            break;
    }
    return mine; // non-zero ends the walk
}

void build_id(char out[BUILD_ID_BYTES]) {
    snprintf(out, BUILD_ID_BYTES, "version %s", HAGGLE_VERSION);
    dl_iterate_phdr(visit_object, out);
}
