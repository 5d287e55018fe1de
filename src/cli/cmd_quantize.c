// cmd_quantize.c - haggle quantize.
#include "cli.h"

#include <stdlib.h>

const struct flag quantize_flags[] = {
    {"format", 'f', "FORMAT", "int8 (one scale per row) or int4 (one scale per group of a row)"},
    {"group", 'g', "N", "of int4: elements that share a scale: 32, 64 or 128 (32)"},
    {"minima", 0, NULL, "of int4: each group also has a minimum, for values that lie off 0"},
    {"method", 'm', "NAME", "how codes and scales are chosen: rtn, awq or tuned (rtn)"},
    {"data", 0, "FILE", "text for awq and tuned; without --eval, a fifth of it is held out"},
    {"tokens", 0, "N", "of --data that are read (65536 by awq, 262144 by tuned)"},
    {"wider", 0, "NAMES",
     "matrices that are int8 in an int4 folder; auto: those it takes for --kl"},
    {"keep", 0, "NAMES", "matrices that stay as they are: lm_head, down_proj, layers.0, ..."},
    {"eval", 0, "FILE", "compare the result with its source on this data"},
    {"kl", 0, "NATS",
     "with --eval or --data, refuse a larger divergence (0.005 for int8, 0.1 for int4)"},
    {"best", 0, NULL, "of a run: take the checkpoint of the best validation, not the newest"},
    {0},
};

const char quantize_help[] =
    "Reads a model's folder, or the newest checkpoint of a run, and writes a folder in which "
    "every\n"
    "matrix is kept as small integers with scales: a quarter to an eighth of the bytes of "
    "float32.\n"
    "Products read the integers directly, so that generation, whose speed is that of memory, is\n"
    "faster by as much. Vectors stay as they are.\n"
    "\n"
    "int8 has one scale for each row of a matrix, int4 one for each group of a row. A matrix "
    "whose\n"
    "rows a group does not divide becomes int8, and the output names it. --keep names matrices "
    "that\n"
    "stay as they are, by their names or by parts of them between dots.\n"
    "\n"
    "The output says how many bytes the weights had and have, how far rounding has moved them, "
    "and\n"
    "which matrix was moved most. OUT_DIR must be new or empty, and appears when all of it was\n"
    "written and read back. It runs in haggle generate and haggle eval. It cannot be trained, and\n"
    "other programs cannot read it.\n"
    "\n"
    "Methods: rtn rounds to nearest. awq (activation-aware) reads text, and keeps those columns\n"
    "nearest that are multiplied with large activations. tuned begins as awq and trains scales "
    "and\n"
    "codes so that the distributions come near the source's; it says how long that takes, needs "
    "the\n"
    "memory of training in float32, and a stop leaves nothing. Both read --data.\n"
    "\n"
    "The result is compared with its source, token by token: the perplexity of both, the "
    "divergence\n"
    "(KL, in nats per token) with its 95 % interval, how often both find the same token "
    "likeliest,\n"
    "and what each matrix does when it alone is quantized. The text is --eval FILE; without it a\n"
    "fifth of the records of --data, which the methods do not see. Equal records are on one side, "
    "and\n"
    "a record in both files is refused. Over --kl the exit status is 4 and nothing is left; the\n"
    "message names the matrices that would help. --wider NAMES makes them int8; --wider auto "
    "chooses\n"
    "as many as it takes, and in an int8 folder leaves them as they are.\n"
    "\n"
    "Examples\n"
    "  haggle quantize ./my-hf-folder my-int8 --format int8\n"
    "  haggle quantize ./my-hf-folder my-int8 --format int8 --eval chat.jsonl\n"
    "  haggle quantize runs/chat chat-int4 --format int4 --group 64\n"
    "  haggle quantize runs/chat chat-int4 --format int4 --minima --keep lm_head,layers.0\n"
    "  haggle quantize runs/chat chat-int4 --format int4 --method tuned --data chat.jsonl\n"
    "  haggle quantize runs/chat chat-int4 --format int4 --data chat.jsonl --kl 0.02 --wider "
    "auto\n";

static int read_kl(const struct cli *c, double *out, struct haggle_error *e) {
    const char *text = args_get(&c->args, "kl");
    char *end = NULL;
    if (!text)
        return 0;
    if (!args_get(&c->args, "eval") && !args_get(&c->args, "data"))
        return cli_usage(e,
                         "--kl is a limit for what --eval FILE or --data FILE measures; give one "
                         "of them too");
    *out = strtod(text, &end);
    if (end == text || *end != '\0' || !(*out > 0 && *out < 1e6))
        return cli_usage(e, "--kl %.64s is not accepted; accepted: a number of nats above 0", text);
    return 0;
}

int cmd_quantize(struct cli *c, struct haggle_error *e) {
    static const char what[] = "haggle quantize RUN|FOLDER OUT_DIR --format int8|int4";
    struct haggle_quantize q = {.format = args_get(&c->args, "format"),
                                .minima = args_get(&c->args, "minima") != NULL,
                                .method = args_get(&c->args, "method"),
                                .keep = args_get(&c->args, "keep"),
                                .best = args_get(&c->args, "best") != NULL,
                                .eval = args_get(&c->args, "eval"),
                                .data = args_get(&c->args, "data"),
                                .wider = args_get(&c->args, "wider")};
    TRY(args_words(&c->args, 2, what, e));
    if (c->args.n_words < 2)
        return cli_usage(e, "%s? accepted: %s", c->args.n_words == 0 ? "which model" : "where to",
                         what);
    TRY(read_kl(c, &q.kl, e));
    if (!q.format)
        return cli_usage(e, "which format? accepted: --format int8, --format int4");
    TRY(args_number(&c->args, "group", 1, 1024, 0, &q.group, e));
    TRY(args_number(&c->args, "tokens", 1, INT64_C(1) << 40, 0, &q.tokens, e));
    c->numeric = EXIT_VERIFY;
    q.source = c->args.words[0];
    q.out_dir = c->args.words[1];
    c->args.n_words = 0; // the words are folders, not a recipe
    TRY(cli_config(c, e));
    cli_catch_signals(true);
    return haggle_quantize(c->config, &q, &c->sink, e);
}
