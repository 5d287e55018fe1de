// chat.c - haggle_chat: a conversation, a line at a time.
//
// Every turn renders the whole conversation again, as the template may write earlier turns in
// another way than the last one. The cache keeps what begins in the same way, so only the rest is
// computed.
#include "api/talk.h"

#include "report/plan_print.h"
#include "report/texts_print.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHAT_CONTEXT = 4096, CHAT_TOKENS = 512 }; // without another choice
enum { CHAT_TIMES = 16384 };                     // the newest times that are kept

struct said { // a turn that was
    const char *role;
    char *text; // owned
    size_t bytes;
    int64_t prompt_tokens, cached_tokens, tokens; // of an answer
    const char *ended;
};

struct chat {
    struct talk talk;
    struct talk_size size;
    struct said *turns; // of all conversations
    size_t n, capacity;
    size_t begin; // of this conversation
    struct render_turn *view;
    const char *system;
    size_t answers;
    bool asks, terminal;
};

// ---------------------------------------------------------------- the conversation

static int add_turn(struct chat *c, const char *role, const char *text, size_t bytes,
                    struct err *e) {
    if (c->n == c->capacity) {
        const size_t wider = c->capacity ? 2 * c->capacity : 16;
        struct said *turns = realloc(c->turns, wider * sizeof *turns);
        c->turns = turns ? turns : c->turns;
        struct render_turn *view = turns ? realloc(c->view, (wider + 1) * sizeof *view) : NULL;
        c->view = view ? view : c->view;
        if (!view)
            return err_set(e, ERR_MEMORY, "out of memory for %zu turns", wider);
        c->capacity = wider;
    }
    char *copy = malloc(bytes + 1);
    if (!copy)
        return err_set(e, ERR_MEMORY, "out of memory for a turn");
    memcpy(copy, text, bytes);
    c->turns[c->n++] = (struct said){.role = role, .text = copy, .bytes = bytes};
    return 0;
}

static void drop_turn(struct chat *c) {
    free(c->turns[--c->n].text);
}

static int render(struct chat *c, struct rendered *out, struct err *e) {
    size_t n = 0;
    if (c->system[0])
        c->view[n++] = (struct render_turn){"system", c->system, strlen(c->system)};
    for (size_t i = c->begin; i < c->n; i++)
        c->view[n++] = (struct render_turn){c->turns[i].role, c->turns[i].text, c->turns[i].bytes};
    return render_ask(c->talk.render, c->view, n, out, e);
}

// ---------------------------------------------------------------- an answer

static int on_text(void *arg, const struct text_job *j, const char *text, size_t bytes,
                   struct err *e) {
    const struct chat *c = arg;
    FILE *f = c->talk.call->out;
    (void)j, (void)e;
    if (f && bytes > 0) {
        speaker_print(text, bytes, c->terminal, f);
        fflush(f);
    }
    return *stop_flag() ? DECODER_STOP : 0;
}

static int answer(struct chat *c, const struct rendered *prompt, struct err *e) {
    struct talk *t = &c->talk;
    struct text_job j =
        talk_job(t, prompt->tokens.ids, prompt->tokens.n, c->size.most, c->answers++);
    const int64_t cached = texts_times(t->texts)->cached_tokens;
    j.apart = true;
    int rc = texts_make(t->texts, &j, 1, on_text, c, e);
    if (rc == 0)
        rc = add_turn(c, "assistant", j.text ? j.text : "", j.bytes, e);
    if (rc == 0) {
        struct said *s = &c->turns[c->n - 1];
        s->prompt_tokens = j.n;
        s->cached_tokens = texts_times(t->texts)->cached_tokens - cached;
        s->tokens = j.n_ids;
        s->ended = text_job_end(&j);
        if (t->call->out)
            fputc('\n', t->call->out);
    }
    if (rc == 0 && j.end == DECODER_FULL)
        log_put(&t->call->log, LOG_WARN,
                "the context of %lld tokens is full, so the answer is cut short: /reset begins a "
                "new conversation",
                (long long)c->size.context);
    if (rc == 0 && j.end == DECODER_LENGTH)
        log_put(&t->call->log, LOG_INFO,
                "(the answer ended at %lld tokens; --tokens N allows more)",
                (long long)c->size.most);
    text_job_free(&j);
    return rc;
}

static int take_line(struct chat *c, const char *line, size_t bytes, struct err *e) {
    struct log *log = &c->talk.call->log;
    struct rendered prompt = {0};
    TRY(add_turn(c, "user", line, bytes, e));
    int rc = render(c, &prompt, e);
    if (rc == 0 && (int64_t)prompt.tokens.n >= c->size.context) {
        log_put(log, LOG_WARN,
                "the conversation has %zu tokens and the context has room for %lld: /reset begins "
                "a new one; started with a larger --context (up to %lld) it has more room",
                prompt.tokens.n, (long long)c->size.context,
                (long long)model_shape_longest(&c->talk.shape));
        drop_turn(c);
    } else if (rc == 0) {
        rc = answer(c, &prompt, e);
    }
    rendered_free(&prompt);
    return rc;
}

// ---------------------------------------------------------------- lines

static void ask(const struct chat *c) {
    if (c->asks)
        fputs("> ", c->talk.call->out);
    if (c->asks)
        fflush(c->talk.call->out);
}

static int talk_lines(struct chat *c, FILE *in, struct err *e) {
    char *line = NULL;
    size_t capacity = 0;
    int rc = 0;
    ssize_t n;
    for (ask(c); rc == 0 && !*stop_flag() && (n = getline(&line, &capacity, in)) >= 0; ask(c)) {
        while (n > 0 && strchr("\r\n", line[n - 1]))
            line[--n] = '\0';
        if (strcmp(line, "/quit") == 0)
            break;
        if (strcmp(line, "/reset") == 0) {
            c->begin = c->n;
            log_put(&c->talk.call->log, LOG_INFO, "a new conversation");
        } else if (line[0] == '/') {
            log_put(&c->talk.call->log, LOG_WARN, "'%.60s' is no command; accepted: /reset, /quit",
                    line);
        } else if (n > 0) {
            rc = take_line(c, line, (size_t)n, e);
        }
    }
    if (rc == 0 && ferror(in))
        rc = err_set(e, ERR_IO, "the input could not be read: %s", strerror(errno));
    if (c->asks)
        fputc('\n', c->talk.call->out);
    free(line);
    return rc;
}

static void put_json(struct chat *c) {
    struct call *call = c->talk.call;
    struct json_writer *w = &call->json;
    if (!call_json_begin(call, "chat", &c->talk.plan.knobs))
        return;
    plan_put_model_json(&c->talk.plan, w);
    json_member_array(w, "turns");
    for (size_t i = 0; i < c->n; i++) {
        const struct said *s = &c->turns[i];
        json_put_object_begin(w);
        json_member_string(w, "role", s->role);
        json_put_key(w, "text");
        json_put_string_n(w, s->text, s->bytes);
        if (s->ended) {
            json_member_i64(w, "prompt_tokens", s->prompt_tokens);
            json_member_i64(w, "cached_tokens", s->cached_tokens);
            json_member_i64(w, "tokens", s->tokens);
            json_member_string(w, "ended", s->ended);
        }
        json_put_object_end(w);
    }
    json_put_array_end(w);
    texts_put_times(texts_times(c->talk.texts), w);
    json_member_i64(w, "context", c->size.context);
    json_put_object_end(w);
}

static int size_of(struct chat *c, const struct haggle_chat *o, struct err *e) {
    const struct talk *t = &c->talk;
    const int64_t longest = model_shape_longest(&t->shape);
    const bool given = t->knobs.by[KNOB_generate_tokens] != SET_BY_DEFAULT;
    struct talk_size *s = &c->size;
    *s = (struct talk_size){
        .batch = 1, .jobs = 1, .times = CHAT_TIMES, .stops = o->stops, .n_stops = o->n_stops};
    s->context = o->context > 0 ? o->context : longest < CHAT_CONTEXT ? longest : CHAT_CONTEXT;
    s->most = o->tokens > 0 ? o->tokens : given ? t->knobs.generate_tokens : CHAT_TOKENS;
    if (s->most > s->context)
        s->most = s->context;
    s->chunk = o->chunk > 0 ? o->chunk : TALK_CHUNK;
    s->prompt = s->context;
    if (s->context > longest)
        return err_set(e, ERR_USAGE, "--context %lld: %s has %lld positions; accepted: up to that",
                       (long long)s->context, t->shape.name, (long long)longest);
    return 0;
}

static int chat(struct chat *c, struct call *call, const struct knobs *k,
                const struct haggle_chat *o, FILE *in, struct err *e) {
    struct talk *t = &c->talk;
    // A template may end a turn with plain text instead of a token.
    const char *stops[SPEAKER_STOPS_MOST];
    struct haggle_chat own = *o;
    TRY(talk_open(t, call, k, o->best, TALK_CHAT, e));
    if (tokenizer_is_ids(t->speech.tokenizer))
        return err_set(e, ERR_USAGE, "%.300s has no tokenizer, so it cannot talk", t->given);
    TRY(talk_check_chat(t, e));
    const char *tail = renderer_marks(t->speech.renderer).tail;
    if (tail && tail[0] && o->n_stops < SPEAKER_STOPS_MOST) {
        memcpy(stops, o->stops ? o->stops : stops, o->n_stops * sizeof *stops);
        stops[own.n_stops++] = tail;
        own.stops = stops;
    }
    c->system = o->system ? o->system : t->knobs.data_system;
    TRY(size_of(c, &own, e));
    if (!t->from_folder && !t->adapter[0])
        log_put(&call->log, LOG_WARN, "%s is a shape, not a trained model: its weights are random",
                t->knobs.model);
    TRY(talk_start(t, &c->size, e));
    c->terminal = call->out && isatty(fileno(call->out));
    c->asks = c->terminal && isatty(fileno(in));
    TRY(talk_lines(c, in, e));
    if (c->answers > 0)
        texts_say_times(texts_times(t->texts), &call->log);
    put_json(c);
    return 0;
}

int haggle_chat(const struct haggle_config *config, const struct haggle_chat *o, FILE *in,
                const struct haggle_sink *sink, struct haggle_error *e) {
    struct call call;
    struct chat c = {0};
    call_begin(&call, sink);
    const int rc = chat(&c, &call, &config->knobs, o, in, &call.err);
    talk_close(&c.talk);
    while (c.n > 0)
        drop_turn(&c);
    free(c.turns);
    free(c.view);
    return call_end(&call, rc, e);
}
