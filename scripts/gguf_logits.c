// gguf_logits.c - what llama.cpp computes for rows of token ids, teacher-forced. The script
// check_gguf.py builds it against a llama.cpp that is there, and runs it.
//
//   gguf_logits FILE.gguf ROWS COLUMNS ID ...
//
// prints the logits of each position as text, a line of floats each. Keys and values are kept in
// float32 and attention is not fused, so that the file's own rounding is what is seen.
#include "llama.h"

#include <stdio.h>
#include <stdlib.h>

static void quiet(enum ggml_log_level level, const char *text, void *arg) {
    (void)arg;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static struct llama_context *open_context(struct llama_model *m, int columns) {
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = p.n_batch = p.n_ubatch = (unsigned)columns;
    p.type_k = p.type_v = GGML_TYPE_F32;
    p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    return llama_init_from_model(m, p);
}

static int print_row(struct llama_model *m, char **ids, int columns) {
    struct llama_context *c = open_context(m, columns);
    struct llama_batch b = llama_batch_init(columns, 0, 1);
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(m));
    if (c == NULL)
        return 1;
    b.n_tokens = columns;
    for (int i = 0; i < columns; i++) {
        b.token[i] = atoi(ids[i]);
        b.pos[i] = i;
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = 0;
        b.logits[i] = 1;
    }
    if (llama_decode(c, b) != 0)
        return 1;
    for (int i = 0; i < columns; i++) {
        const float *x = llama_get_logits_ith(c, i);
        for (int k = 0; k < vocabulary; k++)
            printf("%.9g%c", (double)x[k], k == vocabulary - 1 ? '\n' : ' ');
    }
    llama_batch_free(b);
    llama_free(c);
    return 0;
}

int main(int argc, char **argv) {
    const int rows = argc > 3 ? atoi(argv[2]) : 0, columns = argc > 3 ? atoi(argv[3]) : 0;
    if (rows < 1 || columns < 1 || argc != 4 + rows * columns) {
        fprintf(stderr, "usage: gguf_logits FILE.gguf ROWS COLUMNS ID ...\n");
        return 2;
    }
    llama_log_set(quiet, NULL);
    struct llama_model_params p = llama_model_default_params();
    p.n_gpu_layers = 0;
    struct llama_model *m = llama_model_load_from_file(argv[1], p);
    if (m == NULL)
        return 1;
    for (int r = 0; r < rows; r++)
        if (print_row(m, argv + 4 + r * columns, columns) != 0)
            return 1;
    llama_model_free(m);
    return 0;
}
