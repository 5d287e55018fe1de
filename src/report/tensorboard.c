// tensorboard.c - TFRecord framing and the few protobuf fields of a scalar Event.
//
//   record:  u64 length | u32 masked crc32c(length) | data | u32 masked crc32c(data), little-endian
//   Event:   1 wall_time double | 2 step varint | 3 file_version string | 5 summary message
//   Summary: 1 value message;  Value: 1 tag string | 2 simple_value float
#include "report/tensorboard.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };
enum { RECORD_BYTES = TENSORBOARD_TAG_BYTES + 128 };

struct message {
    unsigned char data[RECORD_BYTES];
    size_t bytes;
};

// tensorboard_put checks the length of the tag, so every message fits. Bytes that would not fit are
// dropped rather than written past the end.
static void put_raw(struct message *m, const void *data, size_t bytes) {
    if (bytes > sizeof m->data - m->bytes)
        return;
    memcpy(m->data + m->bytes, data, bytes);
    m->bytes += bytes;
}

static void put_little(struct message *m, uint64_t x, int bytes) {
    unsigned char out[8];
    for (int i = 0; i < bytes; i++)
        out[i] = (unsigned char)(x >> (8 * i));
    put_raw(m, out, (size_t)bytes);
}

static void put_varint(struct message *m, uint64_t x) {
    unsigned char out[10];
    size_t n = 0;
    do {
        out[n++] = (unsigned char)((x & 0x7f) | (x > 0x7f ? 0x80 : 0));
    } while ((x >>= 7) != 0);
    put_raw(m, out, n);
}

static void put_field(struct message *m, unsigned number, unsigned wire) {
    put_varint(m, number << 3 | wire);
}

static void put_double(struct message *m, unsigned number, double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    put_field(m, number, WIRE_FIXED64);
    put_little(m, bits, 8);
}

static void put_float(struct message *m, unsigned number, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    put_field(m, number, WIRE_FIXED32);
    put_little(m, bits, 4);
}

static void put_bytes(struct message *m, unsigned number, const void *data, size_t bytes) {
    put_field(m, number, WIRE_BYTES);
    put_varint(m, bytes);
    put_raw(m, data, bytes);
}

// The data may itself contain CRCs. Masking keeps them from cancelling the stored CRC.
static uint32_t masked_crc(const void *data, size_t bytes) {
    uint32_t crc = hash_crc32c(data, bytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static int fail(struct err *e, const struct tensorboard *t, const char *what) {
    return err_set(e, ERR_IO, "%s: the event file cannot be %s: %s", t->path, what,
                   strerror(errno));
}

static int write_record(struct tensorboard *t, const struct message *event, struct err *e) {
    struct message record = {.bytes = 0};
    put_little(&record, event->bytes, 8);
    put_little(&record, masked_crc(record.data, 8), 4);
    put_raw(&record, event->data, event->bytes);
    put_little(&record, masked_crc(event->data, event->bytes), 4);
    for (size_t at = 0; at < record.bytes;) {
        ssize_t n = write(t->fd, record.data + at, record.bytes - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(e, t, "written");
        at += (size_t)n;
    }
    return 0;
}

int tensorboard_open(struct tensorboard *t, const char *dir, struct err *e) {
    *t = (struct tensorboard){.fd = -1};
    TRY(file_make_dirs(dir, e));
    char host[65] = "localhost", name[160];
    if (gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "localhost");
    const double now_s = clock_wall_s();
    // The number at the end tells apart files that a process opens in the same second.
    for (int number = 0; number < 1000; number++) {
        snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%ld.%d", (long long)now_s, host,
                 (long)getpid(), number);
        TRY(file_join(t->path, sizeof t->path, dir, name, e));
        t->fd = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (t->fd >= 0 || errno != EEXIST)
            break;
    }
    if (t->fd < 0)
        return fail(e, t, "created");
    static const char version[] = "brain.Event:2"; // readers refuse a file without it
    struct message event = {.bytes = 0};
    put_double(&event, 1, now_s);
    put_bytes(&event, 3, version, sizeof version - 1);
    int rc = write_record(t, &event, e);
    if (rc != 0) {
        close(t->fd);
        t->fd = -1;
    }
    return rc;
}

int tensorboard_put(struct tensorboard *t, const char *tag, int64_t step, double value,
                    struct err *e) {
    const size_t tag_bytes = strlen(tag);
    if (tag_bytes == 0 || tag_bytes > TENSORBOARD_TAG_BYTES)
        return err_set(e, ERR_USAGE,
                       "tensorboard: a tag of %zu bytes is not accepted; accepted: 1 to %d",
                       tag_bytes, TENSORBOARD_TAG_BYTES);
    struct message scalar = {.bytes = 0}, summary = {.bytes = 0}, event = {.bytes = 0};
    put_bytes(&scalar, 1, tag, tag_bytes);
    put_float(&scalar, 2, (float)value);
    put_bytes(&summary, 1, scalar.data, scalar.bytes);
    put_double(&event, 1, clock_wall_s());
    put_field(&event, 2, WIRE_VARINT);
    put_varint(&event, (uint64_t)step);
    put_bytes(&event, 5, summary.data, summary.bytes);
    return write_record(t, &event, e);
}

int tensorboard_close(struct tensorboard *t, struct err *e) {
    int rc = 0;
    if (t->fd >= 0 && close(t->fd) != 0)
        rc = fail(e, t, "closed");
    *t = (struct tensorboard){.fd = -1};
    return rc;
}
