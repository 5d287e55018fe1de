// replay.c - runs a fuzz target without libFuzzer: every seed as it is, every prefix and every
// flipped bit of the small seeds, then a number of pseudo-random mutations, which are the same
// every time.
//
//   fuzz_<what> [--mutations N] FILE-OR-FOLDER ...
//
// CTest runs this, in plain builds and under the sanitizers. It does not replace fuzzing. It
// prevents past findings from coming back. An input that crashes the program is written to
// crash-<pid>.
#include "fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>

#pragma weak LLVMFuzzerInitialize
#pragma weak LLVMFuzzerCustomMutator

// Exists only with a sanitizer, which calls the callback before it ends the process.
void __sanitizer_set_death_callback(void (*callback)(void));
#pragma weak __sanitizer_set_death_callback

enum { INPUT_MAX_BYTES = 64 << 10, EXHAUSTIVE_MAX_BYTES = 512, MUTATED_MAX_BYTES = 4096 };

static struct {
    uint8_t input[INPUT_MAX_BYTES]; // the current input
    size_t bytes;
    uint64_t random; // xorshift64
    size_t runs;
} run;

static uint64_t next_random(void) {
    run.random ^= run.random << 13;
    run.random ^= run.random >> 7;
    run.random ^= run.random << 17;
    return run.random;
}

static void leave_input(void) {
    char name[64];
    snprintf(name, sizeof name, "crash-%d", (int)getpid());
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, run.input, run.bytes) != (ssize_t)run.bytes)
        return;
    close(fd);
    dprintf(STDERR_FILENO, "the input is in %s\n", name);
}

static void on_signal(int number) {
    leave_input();
    signal(number, SIG_DFL);
    raise(number);
}

static void run_input(const uint8_t *data, size_t bytes) {
    if (data != run.input)
        memcpy(run.input, data, bytes);
    run.bytes = bytes;
    run.runs++;
    LLVMFuzzerTestOneInput(run.input, bytes);
}

// Some of libFuzzer's mutations: flips, sets, removes, inserts or copies bytes, or changes a digit.
size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t most) {
    static const uint8_t special[] = "\"\\{}[],:0-9.eE\xff\x7f\x80 \n\x01\x1b";
    uint64_t x = next_random();
    size_t at = bytes > 0 ? (size_t)(x >> 8) % bytes : 0, n = 1 + (size_t)(x >> 40) % 8;
    uint8_t byte = special[(x >> 50) % (sizeof special - 1)];
    switch (bytes == 0 ? 3 : x % 6) {
    case 0:
        data[at] ^= (uint8_t)(1u << (x >> 61));
        return bytes;
    case 1:
        data[at] = byte;
        return bytes;
    case 2: // remove
        n = n < bytes - at ? n : bytes - at;
        memmove(data + at, data + at + n, bytes - at - n);
        return bytes - n;
    case 3: // insert
        if (bytes + 1 > most)
            return bytes;
        memmove(data + at + 1, data + at, bytes - at);
        data[at] = byte;
        return bytes + 1;
    case 4: { // copy a piece to another place
        size_t from = (size_t)next_random() % bytes;
        n = n < bytes - from ? n : bytes - from;
        n = n < bytes - at ? n : bytes - at;
        memmove(data + at, data + from, n);
        return bytes;
    }
    default:
        data[at] = (uint8_t)('0' + (x >> 50) % 10);
        return bytes;
    }
}

static void run_mutations(const uint8_t *seed, size_t bytes, long count) {
    for (long i = 0; i < count; i++) {
        memcpy(run.input, seed, bytes);
        size_t n = bytes;
        for (uint64_t edits = 1 + next_random() % 4; edits > 0; edits--)
            n = LLVMFuzzerCustomMutator != NULL
                    ? LLVMFuzzerCustomMutator(run.input, n, MUTATED_MAX_BYTES,
                                              (unsigned)next_random())
                    : LLVMFuzzerMutate(run.input, n, MUTATED_MAX_BYTES);
        run_input(run.input, n);
    }
}

static void run_exhaustive(const uint8_t *seed, size_t bytes) {
    for (size_t n = 0; n < bytes; n++)
        run_input(seed, n);
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        memcpy(run.input, seed, bytes);
        run.input[bit / 8] ^= (uint8_t)(1u << bit % 8);
        run_input(run.input, bytes);
    }
}

static int run_file(const char *path, long mutations) {
    static uint8_t seed[INPUT_MAX_BYTES];
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        perror(path);
        return 1;
    }
    size_t bytes = fread(seed, 1, sizeof seed, f);
    int whole = fgetc(f) == EOF && !ferror(f);
    fclose(f);
    if (!whole) {
        fprintf(stderr, "%s: larger than %d bytes\n", path, INPUT_MAX_BYTES);
        return 1;
    }
    run_input(seed, bytes);
    run.random = 88172645463325252u + bytes; // independent of the order of files
    if (mutations > 0 && bytes <= EXHAUSTIVE_MAX_BYTES)
        run_exhaustive(seed, bytes);
    if (bytes <= MUTATED_MAX_BYTES)
        run_mutations(seed, bytes, mutations);
    return 0;
}

static int is_seed(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static int run_path(const char *path, long mutations) {
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return run_file(path, mutations);
    struct dirent **entries;
    int count = scandir(path, &entries, is_seed, alphasort), rc = count > 0 ? 0 : 1;
    if (count <= 0)
        fprintf(stderr, "%s: no seeds\n", path);
    for (int i = 0; i < count; i++) {
        char file[PATH_MAX];
        snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
        rc |= run_file(file, mutations);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    return rc;
}

int main(int argc, char **argv) {
    long mutations = 0;
    int rc = 0, first = 1;
    if (argc > 2 && strcmp(argv[1], "--mutations") == 0) {
        mutations = strtol(argv[2], NULL, 10);
        first = 3;
    }
    if (first >= argc) {
        fprintf(stderr, "usage: %s [--mutations N] FILE-OR-FOLDER ...\n", argv[0]);
        return 2;
    }
    if (__sanitizer_set_death_callback != NULL)
        __sanitizer_set_death_callback(leave_input);
    else
        for (size_t i = 0; i < 4; i++)
            signal((int[]){SIGSEGV, SIGBUS, SIGFPE, SIGABRT}[i], on_signal);
    if (LLVMFuzzerInitialize != NULL)
        LLVMFuzzerInitialize(&argc, &argv);
    for (int i = first; i < argc; i++)
        rc |= run_path(argv[i], mutations);
    printf("%zu inputs\n", run.runs);
    return rc;
}
