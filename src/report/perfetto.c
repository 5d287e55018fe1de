// perfetto.c - Chrome trace JSON: one object per event, written through a buffer to a durable file.
//
// The text is made with snprintf instead of json.h, because a trace has hundreds of thousands of
// events of the same form. All strings in it are literals of the program, or go through put_quoted.
#include "report/perfetto.h"

#include "base/file.h"
#include "base/json.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char BEGIN[] = "\"traceEvents\":[", END[] = "\n]}\n";
enum { BUFFER_BYTES = 1 << 16, EVENT_MAX_BYTES = 1024, STEP_TRACK = STREAM_COUNT };

struct sink {
    struct file_writer file;
    char *buffer;
    size_t at;
    bool any;
    int rc;
    struct err *e;
};

static void flush(struct sink *s) {
    if (s->rc == 0 && s->at > 0)
        s->rc = file_writer_put(&s->file, s->buffer, s->at, s->e);
    s->at = 0;
}

ERR_PRINTF(2, 3) static void put(struct sink *s, const char *format, ...) {
    if (BUFFER_BYTES - s->at < EVENT_MAX_BYTES)
        flush(s);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(s->buffer + s->at, EVENT_MAX_BYTES, format, args);
    va_end(args);
    if (n < 0 || n >= EVENT_MAX_BYTES) {
        if (s->rc == 0)
            s->rc =
                err_set(s->e, ERR_INTERNAL, "trace: an event exceeds %d bytes", EVENT_MAX_BYTES);
        return;
    }
    s->at += (size_t)n;
}

static void put_comma(struct sink *s) {
    put(s, "%s", s->any ? ",\n" : "\n");
    s->any = true;
}

static void put_track(struct sink *s, int rank, int track, const char *name) {
    put_comma(s);
    put(s,
        "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}",
        rank, track, name);
}

// Writes a text as a JSON string, cut to fit an event.
static void put_quoted(struct sink *s, const char *text, size_t most) {
    struct json_writer w;
    json_writer_to_buffer(&w, 0);
    json_put_string_n(&w, text, strnlen(text, most));
    if (json_writer_finish(&w, NULL) == 0)
        put(s, "%s", w.buffer);
    else
        put(s, "\"\"");
    free(w.buffer);
}

static void put_label(struct sink *s, const struct perfetto_rank *r) {
    if (r->label == NULL || r->label[0] == '\0')
        return;
    put_comma(s);
    put(s, "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_labels\",\"args\":{\"labels\":", r->rank);
    put_quoted(s, r->label, EVENT_MAX_BYTES / 2);
    put(s, "}}");
}

static void put_event(struct sink *s, const struct trace_event *ev, uint64_t origin_ns,
                      const struct perfetto_rank *r) {
    const bool step = ev->what == OP_COUNT + SPAN_STEP;
    // Microseconds with three decimals, from integers: %f would round the times of a long run.
    const uint64_t at_ns = ev->start_ns > origin_ns ? ev->start_ns - origin_ns : 0;
    put_comma(s);
    if (step)
        put(s, "{\"ph\":\"X\",\"name\":\"step %" PRIu32 "\"", ev->step);
    else
        put(s, "{\"ph\":\"X\",\"name\":\"%s\"", trace_event_name(ev->what));
    put(s,
        ",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%" PRIu64 ".%03u,\"dur\":%" PRIu64
        ".%03u,\"args\":{\"step\":%" PRIu32,
        step ? "step" : time_part_name((enum time_part)ev->part), r->rank,
        step ? STEP_TRACK : ev->stream, at_ns / 1000, (unsigned)(at_ns % 1000),
        ev->duration_ns / 1000, (unsigned)(ev->duration_ns % 1000), ev->step);
    if (ev->micro >= 0)
        put(s, ",\"micro\":%" PRId32, ev->micro);
    if (ev->layer >= 0)
        put(s, ",\"layer\":%d", ev->layer);
    if (ev->segment >= 0 && ev->segment < r->n_segments && r->segment_names != NULL) {
        put(s, ",\"segment\":");
        put_quoted(s, r->segment_names[ev->segment], 64);
    } else if (ev->segment >= 0) {
        put(s, ",\"segment\":%d", ev->segment);
    }
    put(s, "}}");
}

int perfetto_write(const struct trace *t, const char *path, const struct perfetto_rank *r,
                   struct err *e) {
    const int rank = r->rank;
    struct sink s = {.e = e, .buffer = malloc(BUFFER_BYTES)};
    if (s.buffer == NULL)
        return err_set(e, ERR_MEMORY, "trace: no memory to write '%s'", path);
    s.rc = file_writer_begin(&s.file, path, e);
    if (s.rc == 0) {
        const size_t count = trace_count(t);
        // The earliest start need not come first: a step is recorded at its end.
        uint64_t origin_ns = r->origin_ns > 0 ? r->origin_ns : UINT64_MAX;
        for (size_t i = 0; i < count && r->origin_ns == 0; i++)
            if (trace_at(t, i)->start_ns < origin_ns)
                origin_ns = trace_at(t, i)->start_ns;
        put(&s, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"events_dropped\":%" PRIu64 "},%s",
            t->added - count, BEGIN);
        put_comma(&s);
        put(&s,
            "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\"}}",
            rank, rank);
        put_label(&s, r);
        put_track(&s, rank, STEP_TRACK, "steps");
        for (int i = 0; i < STREAM_COUNT; i++)
            put_track(&s, rank, i, op_stream_name((enum op_stream)i));
        for (size_t i = 0; i < count && s.rc == 0; i++)
            put_event(&s, trace_at(t, i), origin_ns, r);
        put(&s, "%s", END);
        flush(&s);
        if (s.rc == 0)
            s.rc = file_writer_end(&s.file, e);
        if (s.rc != 0)
            file_writer_abort(&s.file);
    }
    free(s.buffer);
    return s.rc;
}

// ---------------------------------------------------------------- several ranks

int perfetto_rank_path(char *out, size_t bytes, const char *path, int rank, struct err *e) {
    const int n = snprintf(out, bytes, "%s.rank%d", path, rank);
    return n > 0 && (size_t)n < bytes
               ? 0
               : err_set(e, ERR_USAGE, "log.trace: '%.300s...' is too long a path", path);
}

// Copies the events of a file that perfetto_write made, without its beginning and its end.
static int copy_events(struct sink *s, const char *path, struct err *e) {
    char *text = NULL;
    size_t bytes = 0;
    TRY(file_read_all(path, SIZE_MAX / 2, &text, &bytes, e));
    char *events = strstr(text, BEGIN);
    const size_t end = sizeof END - 1;
    int rc = 0;
    if (!events || bytes < end || strcmp(text + bytes - end, END) != 0)
        rc = err_set(e, ERR_FORMAT, "'%s' is not a trace of this program", path);
    flush(s);
    if (rc == 0) {
        events += sizeof BEGIN - 1;
        if (s->any && events < text + bytes - end)
            rc = file_writer_put(&s->file, ",", 1, e);
        if (rc == 0)
            rc = file_writer_put(&s->file, events, (size_t)(text + bytes - end - events), e);
        s->any = true;
    }
    free(text);
    return rc;
}

int perfetto_join(const char *path, int ranks, struct err *e) {
    char part[4096];
    struct sink s = {.e = e, .buffer = malloc(BUFFER_BYTES)};
    if (s.buffer == NULL)
        return err_set(e, ERR_MEMORY, "trace: no memory to write '%s'", path);
    s.rc = file_writer_begin(&s.file, path, e);
    if (s.rc != 0) {
        free(s.buffer);
        return s.rc;
    }
    put(&s, "{\"displayTimeUnit\":\"ms\",%s", BEGIN);
    for (int i = 0; i < ranks && s.rc == 0; i++) {
        if (i > 0)
            s.rc = perfetto_rank_path(part, sizeof part, path, i, e);
        if (s.rc == 0)
            s.rc = copy_events(&s, i > 0 ? part : path, e);
    }
    put(&s, "%s", END);
    flush(&s);
    if (s.rc == 0)
        s.rc = file_writer_end(&s.file, e);
    else
        file_writer_abort(&s.file);
    for (int i = 1; i < ranks && s.rc == 0; i++)
        if (perfetto_rank_path(part, sizeof part, path, i, NULL) == 0)
            remove(part);
    free(s.buffer);
    return s.rc;
}
