// haggle.h - the public API of libhaggle. The haggle program is an ordinary client of it.
//
// A haggle_config holds the settings of a run (knobs). A verb takes a config and a sink (where
// output goes), does its work and returns. Tensors, programs and file formats are not visible.
//
//     struct haggle_config *c;
//     struct haggle_error e;
//     struct haggle_sink sink = {.out = stdout, .log = stderr};
//     if (haggle_config_new(&c, &e) == 0) {
//         if (haggle_config_set(c, "model", "tiny", &e) != 0 || haggle_train(c, &sink, &e) != 0)
//             fprintf(stderr, "%s\n", e.text);
//         haggle_config_free(c);
//     }
//
// Rules
//   1. A function that can fail returns 0 or a negative code. On failure it fills *e (which may be
//      NULL) with a sentence: what failed, which value, what is accepted. On success *e is
//      untouched. No function exits or aborts, or prints to a stream that it was not given.
//   2. A call that fails changes nothing in the config it was given.
//   3. Strings given are copied; strings returned as const char * are static unless said otherwise.
//   4. Use a config in one thread at a time. Different configs are independent. The stop request
//      (haggle_request_stop) is the library's only other state.
//   5. haggle_bench_train, haggle_bench_tradeoffs, haggle_bench_generate, haggle_knobs_check and
//      haggle_tune measure in forked processes: call them while the calling process has no other
//      threads.
//   6. Later versions may add keys of JSON results, codes and enum values. They remove none.
#ifndef HAGGLE_H
#define HAGGLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HAGGLE_API __attribute__((visibility("default")))

HAGGLE_API const char *haggle_version(void); // "0.1.0"

// ---------------------------------------------------------------- errors

enum haggle_code {
    HAGGLE_OK = 0,
    HAGGLE_ERR_USAGE = -1,       // a value or argument is not accepted
    HAGGLE_ERR_IO = -2,          // a file or folder could not be read or written
    HAGGLE_ERR_FORMAT = -3,      // a file's content is not what its format requires
    HAGGLE_ERR_MEMORY = -4,      // memory could not be had, or a budget is too small
    HAGGLE_ERR_UNSUPPORTED = -5, // this build or machine cannot do that
    HAGGLE_ERR_MISMATCH = -6,    // two things that must agree do not
    HAGGLE_ERR_NUMERIC = -7,     // a number is not finite or outside its tolerance
    HAGGLE_ERR_STOPPED = -8,     // stopped on request, after saving
    HAGGLE_ERR_INTERNAL = -9,    // a rule of the library itself was broken: please report
    HAGGLE_ERR_BUSY = -10, // other programs left too little of the machine to measure anything
    HAGGLE_ERR_RANK = -11, // a rank that trains with others has failed or does not answer
};

enum { HAGGLE_TEXT_BYTES = 1024 };

struct haggle_error {
    int code; // enum haggle_code
    char text[HAGGLE_TEXT_BYTES];
};

HAGGLE_API const char *haggle_code_name(int code);   // "ERR_IO"; "OK" for 0
HAGGLE_API const char *haggle_code_phrase(int code); // the phrase above
// {"haggle": version, "error": {"code": ..., "text": ...}}, as a verb that fails writes it to
// sink.json.
HAGGLE_API int haggle_error_write_json(const struct haggle_error *e, FILE *f);

// ---------------------------------------------------------------- config: the knobs of a run

struct haggle_config;

HAGGLE_API int haggle_config_new(struct haggle_config **out, struct haggle_error *e); // defaults
HAGGLE_API void haggle_config_free(struct haggle_config *c); // NULL is fine
// Reads a YAML recipe; its values replace those that are set. The recipe's name also names the
// run's folder. Errors begin with file:line.
HAGGLE_API int haggle_config_load_recipe(struct haggle_config *c, const char *path,
                                         struct haggle_error *e);
// "batch.micro", "4". An unknown name fails with a suggestion, a bad value with what is accepted.
HAGGLE_API int haggle_config_set(struct haggle_config *c, const char *name, const char *value,
                                 struct haggle_error *e);
// The value as text that haggle_config_set would take; HAGGLE_TEXT_BYTES always suffice.
HAGGLE_API int haggle_config_get(const struct haggle_config *c, const char *name, char *out,
                                 size_t out_bytes, struct haggle_error *e);
// Writes a complete recipe. A comment says where each value was set.
HAGGLE_API int haggle_config_write(const struct haggle_config *c, FILE *f, struct haggle_error *e);

// Every knob by number: 0 .. haggle_knob_count() - 1. NULL past the end.
HAGGLE_API size_t haggle_knob_count(void);
HAGGLE_API const char *haggle_knob_name(size_t i);
HAGGLE_API const char *haggle_knob_help(size_t i);
// Whether the flag --name is whole without a value: the knob is a switch, and what comes next
// (NULL: nothing does) is not true or false.
HAGGLE_API bool haggle_knob_stands_alone(const char *name, const char *next);

// ---------------------------------------------------------------- sink: where output goes

// A stream that is NULL gets no output. The caller owns the streams; they are flushed, not closed.
struct haggle_sink {
    FILE *out; // the result, for people
    FILE *log; // plan, progress, warnings; with a live line when it is a terminal
    // The result, for programs: one JSON object. After a failure it has a member "error", next to
    // what there is of the result.
    FILE *json;
    bool quiet; // log gets only warnings and errors
    // Requests of a hybrid run (haggle_train, goal=hybrid with interactive.stdin) and their
    // answers, one JSON object per line. The run uses the file descriptors of both until it ends.
    FILE *in, *answers;
    // haggle_train as one of several processes (see haggle_ranks): another rank has ended or hangs,
    // and this one has not noticed for seconds, because it is busy. Called from another thread. It
    // should print the text and end the process: other ranks may wait for its end. NULL: nothing
    // is called, and haggle_train fails when it notices.
    void (*lost)(const struct haggle_error *e);
};

// ---------------------------------------------------------------- verbs

// Trains (or fine-tunes) and writes run.dir: log.jsonl, recipe.yaml, checkpoints and, at the end,
// result.json (the same as sink->json). Goes on from the newest checkpoint there unless
// resume=false. The memory plan is logged before memory is taken; HAGGLE_ERR_MEMORY when it does
// not fit. HAGGLE_ERR_STOPPED after a stop request: the checkpoint is written and the result
// delivered. Running out of `time` is not an error: the result says how many steps were done.
HAGGLE_API int haggle_train(const struct haggle_config *c, const struct haggle_sink *sink,
                            struct haggle_error *e);

// How the ranks of haggle_train come to be. Where mpirun or srun has started several processes that
// call haggle_train, they train together: rank 0 prints and writes. When they fail, they fail
// together, and take turns: the others return some seconds after rank 0, or as soon as it cannot
// tell the user. A process that has printed the error and ends ends the others, so that they do not
// repeat it. Otherwise ranks are threads of the calling process. A program may start
// ranks as processes itself, as the haggle program does: that is what `launch` is for.
enum { HAGGLE_LAUNCH_WORDS = 20 };
struct haggle_ranks {
    int ranks;         // of the run; 0 for a config that is NULL
    int started, rank; // how many processes mpirun or srun has started, this one's number; 0: none
    bool launch;       // ranks should be processes, and nothing has started them
    // For `launch`, each list up to NULL: what to run with this program and its arguments behind
    // it; "NAME=value" to set in its environment where NAME is not set ("NAME=": the path of an
    // empty folder, to be removed afterwards); and the variable in which a rank finds its number.
    // Valid as long as the struct, which must not be moved.
    const char *command[HAGGLE_LAUNCH_WORDS], *environment[HAGGLE_LAUNCH_WORDS];
    const char *rank_variable;
    uint64_t timeout_ns;               // comm.timeout
    char text[HAGGLE_TEXT_BYTES + 16]; // what `command` points to
};
// Takes no memory and starts nothing. HAGGLE_ERR_UNSUPPORTED if comm.engine=mpi cannot be had here.
HAGGLE_API int haggle_ranks(const struct haggle_config *c, struct haggle_ranks *out,
                            struct haggle_error *e);

enum haggle_format { HAGGLE_MARKDOWN, HAGGLE_CSV, HAGGLE_JSON, HAGGLE_JSONL };

struct haggle_bench {
    // "batch.micro=1,2,4", "seq=64-512*2", "threads=1-4+1": the product of all lists is measured.
    const char *const *grid;
    size_t n_grid;
    int rounds;                // over all configurations, interleaved: A B C A B C; 0: 3
    int64_t steps;             // measured per round and configuration; 0: 20
    int64_t warmup;            // steps before those, not counted; negative: 2
    enum haggle_format format; // of sink->out
    const char *store;         // file to record every trial in as it ends; NULL: none
    // haggle_bench_tradeoffs: only strategies whose name contains one of these parts, separated by
    // commas ("recompute,bf16"); NULL: all
    const char *only;
};

// Measures training steps of each configuration of the grid, each in a separate process. A
// configuration that is refused or fails is a row with its reason. The call fails only when no row
// could be measured.
HAGGLE_API int haggle_bench_train(const struct haggle_config *c, const struct haggle_bench *b,
                                  const struct haggle_sink *sink, struct haggle_error *e);

// The same for a list of strategies, each against the config as it is, which runs beside it in
// turns: ratios of tokens/s, latency and memory with 95 % intervals, the difference in loss, the
// usual rule of thumb, and whether it holds here. b->grid
// is not used; rounds 0: 5, steps 0: 10. Fails when the baseline cannot be measured.
HAGGLE_API int haggle_bench_tradeoffs(const struct haggle_config *c, const struct haggle_bench *b,
                                      const struct haggle_sink *sink, struct haggle_error *e);

struct haggle_bench_texts {
    const char *const *grid; // as of haggle_bench: every knob may have a list of values
    size_t n_grid;
    const char *prompt_tokens, *output_tokens, *batch; // "16,128,512"; NULL: 512, 128, 1
    int rounds;                // of each configuration, after one that is not counted; 0: 5
    int64_t chunk;             // tokens of prompts that are computed at once; 0: 512
    enum haggle_format format; // of sink->out
};

// Measures how fast texts are made, for each configuration of the grid, length of prompts, length
// of texts and number of texts side by side, each in a separate process: prefill and decode
// tokens/s, the time to the first token, percentiles between tokens, memory. Prompts are random
// ids, so shapes with random weights do as well.
HAGGLE_API int haggle_bench_generate(const struct haggle_config *c,
                                     const struct haggle_bench_texts *b,
                                     const struct haggle_sink *sink, struct haggle_error *e);

struct haggle_trials {
    const char *store; // the file; NULL: haggle/trials.db in the user's data folder
    // "12": the trials of tuning 12; "last": of the newest; "all": every trial; "none": trials that
    // belong to no tuning; NULL: the list of tunings (with an outcome: every trial).
    const char *tuning;
    const char *model, *outcome; // only this model, only this outcome; NULL: any
    enum haggle_format format;   // of sink->out
};

// Reads the store of trials: tunings, newest first, or trials, oldest first, each with its figures
// or the reason why it has none. A file that is not a store, is damaged or was written by a newer
// version is refused and not changed.
HAGGLE_API int haggle_trials(const struct haggle_trials *t, const struct haggle_sink *sink,
                             struct haggle_error *e);

// A request to haggle_tune. Texts are as on the command line; NULL: not given.
struct haggle_tune {
    const char *goal; // "bulk" (most tokens/s), "interactive" (least latency of a sample:
                      // its micro-batch's time), "hybrid", "generate"
    const char *p50, *p95, *p99; // limits for percentiles of the step time: "80ms"
    const char *respond;         // hybrid: longest time from a request to its answer
    const char *time;            // time for the search: "3m"
    const char *allow;           // what else may change: "precision,state,batch"
    const char *energy;          // most joules per token
    const char *busy;            // what is measured while other programs are at work: "repeat"
                                 // (NULL), or "count", for a machine that is never quiet
    int64_t tokens_per_step;     // 0: the recipe's
    const char *store;           // file of trials; NULL: the user's; "none": record nothing
    const char *recipe;          // file to write the choice to; NULL: none
    const char *report;          // HTML page of the search; NULL: none
    enum haggle_format format;   // of sink->out
    // Only for the goal "generate", which has none of p50 to tokens_per_step and no store:
    const char *ttft, *itl;               // limits of the time to the first token, between tokens
    const char *p;                        // the percentile that they bound: "95" (NULL)
    int64_t batch;                        // texts side by side; 0: part of the search
    int64_t prompt_tokens, output_tokens; // of a text; 0: 128, 64
    const char *kl;                       // largest divergence of a format: "0.01"
    const char *data;   // on which formats are compared; NULL: text that the model makes itself
    const char *method; // of quantizing; NULL: as haggle_quantize
};

// Searches the tunable knobs for the best setting within the budgets (the knob `memory` is the
// memory budget). Predicts all settings and measures promising ones in forked processes. The
// result is the choice, the frontier, and every setting with its figures or the reason why it has
// none. HAGGLE_ERR_MEMORY when nothing can be chosen. After HAGGLE_ERR_STOPPED the recorded trials
// are kept, and the next call goes on from them. Call it while the process has no other threads
// (rule 5). The goal "generate" searches format, batch, chunk and threads instead, for the model
// that the knob `model` names: a run, a folder or a shape.
HAGGLE_API int haggle_tune(const struct haggle_config *c, const struct haggle_tune *t,
                           const struct haggle_sink *sink, struct haggle_error *e);

// A request to haggle_plan. Texts are as on the command line; NULL: not given.
struct haggle_plan {
    const char *cluster;     // "8xa100-80g", "16x8xh100-80g", "2xaws-p5"
    const char *goal;        // "bulk", "interactive"
    const char *method;      // "full", "lora"
    const char *p99;         // longest step: "2s"
    const char *framework;   // whose way to run a step: "haggle" (NULL), "megatron", "fsdp", ...
    const char *shape;       // a model by number, in place of the knob model
    const char *hardware;    // file with more lines of the catalog
    const char *rows;        // table of runs to predict, in place of a question
    const char *save;        // file to write the recipe of the choice to
    int64_t tokens_per_step; // 0: about 524288
    bool explain;
    enum haggle_format format; // of sink->out: HAGGLE_MARKDOWN or HAGGLE_CSV
};

// Predicts how the model of the config trains on hardware that is not here: layouts of ranks that
// fit, with tokens/s, step time and its interval, and memory; chooses one. Uses the knobs model,
// seq and precision. Runs nothing. HAGGLE_ERR_MEMORY, after what there is was printed, when
// nothing fits or keeps p99. With `rows` it appends a prediction to each row of a table.
HAGGLE_API int haggle_plan(const struct haggle_config *c, const struct haggle_plan *p,
                           const struct haggle_sink *sink, struct haggle_error *e);

struct haggle_data {
    const char *const *files; // .txt, .jsonl or folders, or "name:weight"; none: data.path
    size_t n_files;
    int64_t samples; // documents shown; negative: 2
};

// Shows data as the model will see it: each file's shape, documents, tokens, trained tokens, what
// seq cuts off, lengths, padding for each way of packing, speed, and documents with their trained
// tokens marked. Training reuses the tokens (data.cache).
HAGGLE_API int haggle_data(const struct haggle_config *c, const struct haggle_data *d,
                           const struct haggle_sink *sink, struct haggle_error *e);

// Reads training runs back from their folders (log.jsonl, recipe.yaml, result.json) and writes one
// HTML page that loads nothing else: figures, curves, distributions, memory, settings. Several runs
// (16 at most) are shown side by side. out NULL: report.html in the folder of a single run, or in
// the current folder for several. Damaged or missing parts are reported and left out. HAGGLE_ERR_IO
// for a folder without log.jsonl.
HAGGLE_API int haggle_report(const char *const *run_dirs, size_t n, const char *out,
                             const struct haggle_sink *sink, struct haggle_error *e);

// Makes the page of a search (`report` of haggle_tune) again from the store. tuning is its number,
// or "last". store NULL: the user's; out NULL: tuning-N.html in the current folder. The store does
// not keep settings that were not measured; the page says that they are missing.
HAGGLE_API int haggle_report_tuning(const char *tuning, const char *store, const char *out,
                                    const struct haggle_sink *sink, struct haggle_error *e);

enum haggle_detail { HAGGLE_BRIEF, HAGGLE_OPS, HAGGLE_FULL };

// Prints the plan of a training step: model, programs, segments, bytes by class, predicted time.
// Takes no memory for the model. BRIEF adds up ops by kind. OPS lists ops, repeated layers once.
// FULL lists all ops and every tensor. HAGGLE_ERR_MEMORY, after everything is printed, when the run
// does not fit: haggle_train would refuse it with the same figures.
// rank: whose plan, for a run of several ranks; 0 for one rank alone.
HAGGLE_API int haggle_show(const struct haggle_config *c, enum haggle_detail detail, int rank,
                           const struct haggle_sink *sink, struct haggle_error *e);

// Compares loss, logits, gradients, steps and generation with the reference stored in each folder
// (ref.json, ref.safetensors next to a Hugging Face checkpoint). HAGGLE_ERR_NUMERIC when a figure
// is outside its tolerance. how: REFERENCE uses the plain backend instead of the fast one. CHECKING
// observes every op, which is slow: a write outside its outputs or a read of a dead tensor is an
// error.
enum haggle_verify_how { HAGGLE_VERIFY_REFERENCE = 1, HAGGLE_VERIFY_CHECKING = 2 };
HAGGLE_API int haggle_verify(const struct haggle_config *c, const char *const *folders, size_t n,
                             unsigned how, const struct haggle_sink *sink, struct haggle_error *e);

struct haggle_eval {
    const char *const *models; // runs, checkpoints or Hugging Face folders; none: the knob model
    size_t n_models;
    const char *data;    // .txt, .jsonl or a folder; NULL: data.path
    const char *adapter; // of the last model: a folder as lora.from takes it; NULL: none
    bool best;           // of a run's folder the checkpoint of the best validation, not the newest
};

// Measures each model on data: nats per scored token, perplexity, bits per byte of text, with 95 %
// intervals. Tokens that training would train are scored; records are cut to seq (unset: the
// shortest context of the models, at most 2048). The unit of the intervals is a record, or a
// sequence of a plain text. Further models are compared with the first one, unit by unit.
// HAGGLE_ERR_MISMATCH when their units are not the same text.
HAGGLE_API int haggle_eval(const struct haggle_config *c, const struct haggle_eval *x,
                           const struct haggle_sink *sink, struct haggle_error *e);

struct haggle_prompt {
    const char *text;   // UTF-8 or any bytes; NULL: start a new document
    const int32_t *ids; // n_ids token ids instead of text; NULL: text
    size_t n_ids;
    int64_t tokens; // most tokens to generate for each prompt; 0: generate.tokens
    bool best;      // of a run's folder the checkpoint of the best validation, not the newest
    const char *const *texts; // n_texts more prompts
    size_t n_texts;
    const char *file; // more prompts: .txt, one per line, or .jsonl, records with "prompt" or
                      // "messages"; NULL: none
    const char *const *stops; // a text ends in front of one of these n_stops texts
    size_t n_stops;
    int64_t batch;      // prompts side by side; 0: all, up to 8
    int64_t context;    // tokens of one text with its prompt, in the cache; 0: as many as needed
    int64_t chunk;      // tokens of prompts that are computed at once; 0: 512
    bool chat;          // a prompt is what a user says: the model's chat template renders it
    const char *system; // with chat: the system message; NULL: data.system
    // Called with each part of a text as it is made, in UTF-8 and not ended by a NUL. prompt: its
    // number, from 0. A result that is not 0 ends this text. NULL: nothing is called.
    int (*said)(void *arg, size_t prompt, const char *text, size_t bytes);
    void *said_arg;
};

// Continues prompts with the model of the config (a Hugging Face folder or a checkpoint); the knobs
// generate.* say how tokens are chosen. Text is tokenized with its tokenizer: for a checkpoint that
// of the folder the run started from, for a built-in shape bytes. A prompt of ids gives ids. The
// text of a single prompt is written to sink->out as it is made. HAGGLE_ERR_MEMORY, with what would
// fit, before anything runs.
HAGGLE_API int haggle_generate(const struct haggle_config *c, const struct haggle_prompt *p,
                               const struct haggle_sink *sink, struct haggle_error *e);

struct haggle_chat {
    const char *system; // the system message; NULL: data.system
    int64_t tokens;     // most tokens of an answer; 0: generate.tokens if it was set, else 512
    int64_t context;    // tokens of the conversation; 0: the model's, up to 4096
    int64_t chunk;      // as of haggle_prompt
    const char *const *stops;
    size_t n_stops;
    bool best;
};

// Talks: reads what the user says from `in`, a line at a time, and writes answers to sink->out as
// they are made. "/reset" begins a new conversation; "/quit" and the end of `in` end the call. What
// the cache holds of earlier turns is not computed again.
HAGGLE_API int haggle_chat(const struct haggle_config *c, const struct haggle_chat *chat, FILE *in,
                           const struct haggle_sink *sink, struct haggle_error *e);

struct haggle_export {
    const char *run_dir; // a run's folder (its newest intact checkpoint is used) or a checkpoint's
    const char *out_dir; // the folder to write, new or empty; with check, the folder to check
    const char *source;  // the folder the run was fine-tuned from; NULL: as recorded by the run
    const char *dtype;   // "fp32", "bf16", "fp16", "as-source"; NULL: as-source
    const char *shard_bytes; // most bytes of tensors per file, "5GB"; NULL: 5GB
    const char *probe;       // file to write what the check computed to; NULL: none
    bool check;              // only check a folder that was exported before
    bool best;        // of a run's folder the checkpoint of the best validation, not the newest
    bool merge;       // of a run that trained an adapter: write the whole model
    const char *data; // validation data for the loss of a merge; NULL: the run's
    // A GGUF file to write instead of a folder; out_dir is then NULL, and run_dir may also be a
    // Hugging Face folder. Its type: "f32", "f16", "bf16", "q8_0", "q4_0"; NULL: f16.
    const char *gguf, *type;
};

// Writes a Hugging Face folder (config.json, safetensors, tokenizer, generation_config.json, a
// card) and reads it back: hashes, every weight, loss and logits on fixed tokens, token ids of
// fixed texts. The folder gets its name only when all agree. HAGGLE_ERR_NUMERIC when one does not.
// A run that trained an adapter gives the folder that PEFT reads; with merge, the loss is also
// measured before and after. With gguf, the file is read back and every value compared with the
// source; what llama.cpp cannot represent is HAGGLE_ERR_UNSUPPORTED, by name.
HAGGLE_API int haggle_export(const struct haggle_config *c, const struct haggle_export *x,
                             const struct haggle_sink *sink, struct haggle_error *e);

struct haggle_quantize {
    const char *source;  // a model's folder, or a run's (its newest intact checkpoint is used)
    const char *out_dir; // the folder to write, new or empty
    const char *format;  // "int8", "int4"
    int64_t group;       // of int4: elements of a row that share a scale: 32, 64, 128; 0: 32
    bool minima;         // of int4: groups also have a minimum
    const char *method;  // "rtn", "awq", "tuned"; NULL: rtn
    const char *data;    // text that awq and tuned calibrate on; NULL: none
    int64_t tokens;      // of data that they read; 0: 65536 for awq, 262144 for tuned
    const char *wider;   // matrices that are int8 in an int4 folder; "auto": those that it takes
                         // to come below kl; NULL: none
    const char *keep;    // matrices that stay as they are: names or parts of names, by commas
    bool best;           // of a run's folder the checkpoint of the best validation, not the newest
    const char *eval;    // data on which the result is compared with its source; NULL: on a fifth
                         // of the records of data, which calibration does not see; or not at all
    double kl;           // with either, refuse a larger divergence; 0: 0.005 for int8, 0.1 for int4
};

// Writes the folder again with its matrices as small integers and scales, and reads it back. Prints
// sizes, what stays wider, and the matrix that rounding changed most. With data also perplexities,
// the divergence from the source and how often both find the same token likeliest;
// HAGGLE_ERR_NUMERIC, and nothing is left, when the divergence is over its limit. haggle_generate
// and haggle_eval read such folders; haggle_train refuses them.
HAGGLE_API int haggle_quantize(const struct haggle_config *c, const struct haggle_quantize *q,
                               const struct haggle_sink *sink, struct haggle_error *e);

struct haggle_tokenize {
    const char *tokenizer; // a tokenizer.json, a folder with one, or "bytes", the built-in one
    bool decode;           // arrays of ids in, {"text": ...} out
    bool plain;            // treat special tokens as text; with decode, leave them out
    int threads;           // 0: all CPUs
};

// Reads JSONL with a member "text" from `in` and writes one JSON array of ids per line to
// sink->out, in order. decode does the reverse. Adds no tokens. A bad line is an error with its
// number; the lines before it are written. Decoded bytes that are not UTF-8 become U+FFFD.
HAGGLE_API int haggle_tokenize(const struct haggle_tokenize *t, FILE *in,
                               const struct haggle_sink *sink, struct haggle_error *e);

// Reports this machine's hardware, measured speed and libraries, and what is missing. fresh:
// measures again instead of using stored figures.
HAGGLE_API int haggle_doctor(const struct haggle_config *c, bool fresh,
                             const struct haggle_sink *sink, struct haggle_error *e);

// Prints the knobs with their values in the config. only_changed: without knobs at their default.
HAGGLE_API int haggle_knobs_list(const struct haggle_config *c, bool only_changed,
                                 const struct haggle_sink *sink, struct haggle_error *e);

// Explains the named knobs: what each does, accepted values, default, what a change trades, where
// it shows. A group of knobs ("optim") is a table. An unknown name fails with a suggestion.
HAGGLE_API int haggle_knobs_explain(const struct haggle_config *c, const char *const *names,
                                    size_t n, const struct haggle_sink *sink,
                                    struct haggle_error *e);

struct haggle_check {
    const char *const *knobs; // names of knobs or of groups; none: all knobs
    size_t n_knobs;
    int rounds;    // interleaved, for each knob's values; 0: 5
    int64_t steps; // measured per round and value; 0: 8
};

// Checks that every knob has an effect here. Measures each value against the next on the config's
// model, with short sequences and small batches unless they are set. Also checks that two values
// differ in each place where the knob claims an effect. Sample data is written to a temporary
// folder and removed.
HAGGLE_API int haggle_knobs_check(const struct haggle_config *c, const struct haggle_check *k,
                                  const struct haggle_sink *sink, struct haggle_error *e);

// Writes generated documentation in Markdown. kind: "knobs" or "ops".
HAGGLE_API int haggle_docs(const char *kind, FILE *f, struct haggle_error *e);

// ---------------------------------------------------------------- stopping

// Asks every training run and benchmark of this process to end after its current step, save and
// return HAGGLE_ERR_STOPPED. Safe in a signal handler and from any thread. Returns 1 for the first
// call since haggle_clear_stop, 2 for later ones. Also returns 2 while a run is only being planned:
// there is nothing to save, so the program may exit.
HAGGLE_API int haggle_request_stop(void);
HAGGLE_API void haggle_clear_stop(void);

// ---------------------------------------------------------------- for programs that take names

// The most similar of n names by edit distance; NULL when none is similar enough to be a likely
// typo.
HAGGLE_API const char *haggle_suggest(const char *word, const char *const *names, size_t n);
// For a setting that other tools have ("learning_rate"): writes to `out` what it is called here and
// what to type. value may be NULL. Returns false when the name is not known.
HAGGLE_API bool haggle_knob_elsewhere(const char *name, const char *value,
                                      char out[HAGGLE_TEXT_BYTES]);

#ifdef __cplusplus
}
#endif

#endif
