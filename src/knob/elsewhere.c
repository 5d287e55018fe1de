// elsewhere.c - names and values that people know from other tools, and what they are here.
//
// Nothing in this table is accepted: a setting has one name, so that recipes, pages and records of
// different people can be compared. The table only lets an error say what to type instead.
#include "knob/knob.h"

#include "base/text.h"

#include <ctype.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char WEIGHT_BITS[] = "weights in 8 or 4 bits are not there yet; precision=bf16 halves "
                                  "them, optim.state=int8 makes the optimizer's moments small";

// Names are separated by spaces. The first row whose knob exists counts.
static const struct {
    const char *names;
    const char *knob;   // NULL: there is none, the remark says why
    const char *value;  // what to type instead of the value given; NULL: the same value
    const char *remark; // may be NULL
} NAMES[] = {
    {"learning_rate lr", "optim.lr", NULL, NULL},
    {"batch_size train_batch_size per_device_train_batch_size micro_batch_size global_batch_size "
     "train_micro_batch_size_per_gpu",
     "batch.micro", NULL, "one step trains batch.micro x batch.accum sequences"},
    {"gradient_accumulation_steps grad_accum_steps accumulate_grad_batches", "batch.accum", NULL,
     NULL},
    {"per_device_eval_batch_size eval_batch_size", NULL, NULL,
     "validation uses batch.micro, and eval.batches says how many batches"},
    {"num_train_epochs epochs num_epochs max_epochs", "epochs", NULL, NULL},
    {"num_train_epochs epochs num_epochs max_epochs", "steps", "N",
     "the length of a run is given in steps of batch.micro x batch.accum x seq tokens, and 'haggle "
     "data' counts the tokens of your data"},
    {"max_steps num_steps total_steps train_steps max_iters", "steps", NULL, NULL},
    {"max_seq_length max_seq_len max_length block_size cutoff_len sequence_len sequence_length "
     "seq_len seq_length context_length model_max_length n_ctx",
     "seq", NULL, NULL},
    {"bf16", "precision", "bf16", NULL},
    {"fp16", "precision", "fp16", NULL},
    {"torch_dtype dtype mixed_precision", "precision", NULL, NULL},
    {"warmup_steps num_warmup_steps warmup_iters", "sched.warmup", NULL, NULL},
    {"warmup_ratio warmup_fraction", "sched.warmup", "N", "it is a number of steps"},
    {"lr_scheduler_type lr_scheduler lr_schedule scheduler", "sched.kind", NULL, NULL},
    {"min_lr min_lr_ratio", "sched.min", "N", "it is a fraction of optim.lr"},
    {"optim optimizer optim_type", NULL, NULL,
     "the optimizer is AdamW (optim.lr, optim.decay, ...), and optim.state=int8 keeps its moments "
     "in 8 bits"},
    {"weight_decay", "optim.decay", NULL, NULL},
    {"max_grad_norm grad_clip clip_grad gradient_clip_val gradient_clipping", "optim.clip", NULL,
     NULL},
    {"adam_beta1 beta1", "optim.beta1", NULL, NULL},
    {"adam_beta2 beta2", "optim.beta2", NULL, NULL},
    {"adam_epsilon adam_eps", "optim.eps", NULL, NULL},
    {"gradient_checkpointing activation_checkpointing use_gradient_checkpointing", "recompute.mode",
     "full", "selective costs less time and saves less memory"},
    {"model_name_or_path model_name model_id base_model pretrained_model_name_or_path", "model",
     NULL, NULL},
    {"tokenizer_name", "tokenizer", NULL, NULL},
    {"data dataset datasets dataset_path dataset_name train_file train_data", "data.path", NULL,
     NULL},
    {"validation_file eval_file val_data eval_dataset", "data.val_path", NULL, NULL},
    {"val_size val_set_size validation_split test_size", "data.val", NULL, NULL},
    {"packing sample_packing", "data.pack", "best_fit", NULL},
    {"train_on_inputs", "data.loss", "all", NULL},
    {"chat_template", "data.template", NULL, NULL},
    {"num_workers dataloader_num_workers num_proc", "data.workers", NULL, NULL},
    {"prefetch_factor dataloader_prefetch_factor", "data.prefetch", NULL, NULL},
    {"output_dir out_dir save_dir", "run.dir", NULL, NULL},
    {"random_seed data_seed manual_seed", "seed", NULL, NULL},
    {"eval_steps eval_interval", "eval.every", NULL, NULL},
    {"save_steps save_interval", "save.every", NULL, NULL},
    {"save_total_limit", "save.keep", NULL, NULL},
    {"load_best_model_at_end keep_best", "save.best", "true", NULL},
    {"early_stopping_patience early_stopping patience", "stop.patience", "3",
     "it counts validations"},
    {"logging_steps log_interval", "log.every", NULL, NULL},
    {"report_to", "log.tensorboard", "true", "log.jsonl in run.dir has every step in any case"},
    {"resume_from_checkpoint auto_resume", "resume", "true", "the newest checkpoint in run.dir"},
    {"max_new_tokens", "generate.tokens", NULL, NULL},
    {"num_threads", "threads", NULL, NULL},
    {"max_memory gpu_memory_limit", "memory", NULL, NULL},
    {"no_cuda use_cpu", "device", "cpu", NULL},
    {"device_map", "device", "auto", NULL},
    {"lora lora_r lora_dim lora_rank", "lora.rank", NULL, NULL},
    {"lora_alpha", "lora.alpha", NULL, NULL},
    {"lora_dropout", "lora.dropout", NULL, NULL},
    {"use_lora peft use_peft adapter peft_type", "lora.rank", "16", "an adapter's rank is above 0"},
    {"use_rslora rslora", "lora.rslora", NULL, NULL},
    {"lora_target_modules target_modules lora_modules lora_target", "lora.targets", NULL,
     "all is every linear layer of the blocks"},
    {"adapter_name_or_path adapter_path adapter_dir lora_path lora_dir lora_weights", "lora.from",
     NULL, "a folder with adapter_config.json"},
    {"modules_to_save additional_target lora_modules_to_save", "train.also", NULL, NULL},
    {"freeze frozen freeze_layers unfrozen_parameters", "train.freeze", NULL, NULL},
    {"qlora", NULL, NULL, WEIGHT_BITS},
    {"load_in_4bit load_in_8bit quantization", NULL, NULL, WEIGHT_BITS},
    {"num_gpus gpus n_gpu num_processes nproc_per_node world_size nranks", "ranks", NULL,
     "ranks use the CPU; several GPUs are not there yet"},
    {"zero zero_stage zero_optimization deepspeed", "zero.stage", "1",
     "1 deals out the optimizer's state, 2 gradients too, 3 weights too"},
    {"fsdp sharding_strategy", "zero.stage", "3", NULL},
    {"tensor_parallel_size tensor_model_parallel_size tp tp_size tensor_parallel_degree",
     "parallel.tensor", NULL, NULL},
    {"pipeline_parallel_size pipeline_model_parallel_size pp pp_size pipeline_parallel_degree",
     "parallel.pipe", NULL, NULL},
    {"data_parallel_size dp dp_size data_parallel_degree data_parallel_replicate_degree",
     "parallel.data", NULL, NULL},
    {"sequence_parallel", "parallel.sequence", NULL, NULL},
    {"virtual_pipeline_model_parallel_size num_virtual_stages", "pipe.chunks", NULL,
     "with pipe.schedule=interleaved"},
    {"bucket_cap_mb reduce_bucket_size allreduce_bucket_size", "comm.bucket", "25MiB", NULL},
    {"overlap_comm overlap_grad_reduce", "comm.overlap", NULL, NULL},
};

static const struct {
    const char *knob, *values;
    const char *means; // NULL: it has no counterpart, the remark says why
    const char *remark;
} VALUES[] = {
    {"device", "mps metal", NULL,
     "the GPU of a Mac has no backend; haggle computes on the CPU, or on an NVIDIA GPU through the "
     "CUDA plug-in"},
    {"device", "rocm hip xpu tpu vulkan", NULL,
     "of accelerators only NVIDIA GPUs have a backend, the CUDA plug-in"},
    {"device", "gpu nvidia", "cuda", NULL},
    {"device", "cuda:0 cuda:1 cuda:2 cuda:3", "cuda",
     "CUDA_VISIBLE_DEVICES says which GPU that is"},
    {"precision", "bfloat16", "bf16", NULL},
    {"precision", "float16 half", "fp16", NULL},
    {"precision", "float32 float full no", "fp32", NULL},
    {"precision", "fp8 int8 8bit int4 4bit nf4", NULL, WEIGHT_BITS},
    {"sched.kind", "constant_with_warmup", "constant", "sched.warmup says for how many steps"},
    {"sched.kind", "warmup_stable_decay", "wsd", NULL},
};

// "batch-size", "batch.size" and "Batch_Size" are one name.
static char folded(char c) {
    return c == '-' || c == '.' ? '_' : (char)tolower((unsigned char)c);
}

static bool among(const char *names, const char *name) {
    while (*names) {
        const char *p = name;
        while (*names && *names != ' ' && *p && folded(*p) == *names) {
            p++;
            names++;
        }
        if ((*names == '\0' || *names == ' ') && *p == '\0')
            return true;
        while (*names && *names++ != ' ')
            ;
    }
    return false;
}

static int row_of(const char *name) {
    for (size_t i = 0; i < COUNT(NAMES); i++)
        if (among(NAMES[i].names, name) && (!NAMES[i].knob || knob_find(NAMES[i].knob) >= 0))
            return (int)i;
    return -1;
}

int knob_elsewhere_id(const char *name) {
    const int row = row_of(name);
    return row >= 0 && NAMES[row].knob ? knob_find(NAMES[row].knob) : -1;
}

const char *knob_elsewhere(const char *name, const char *value, enum set_by by,
                           char out[KNOB_ELSEWHERE_BYTES]) {
    const int row = row_of(name), id = knob_elsewhere_id(name);
    if (row < 0)
        return NULL;
    const char *remark = NAMES[row].remark;
    if (id < 0) {
        snprintf(out, KNOB_ELSEWHERE_BYTES, "no knob is called '%.60s': %s", name, remark);
        return out;
    }
    char initial[KNOB_VALUE_BYTES], accepted[KNOB_ACCEPTED_BYTES];
    const char *type = NAMES[row].value;
    struct knobs scratch;
    bool on;
    knob_default(id, initial);
    knobs_init(&scratch);
    if (type && value && text_parse_bool(value, &on, NULL) == 0 && !on)
        type = initial; // bf16=false
    const bool refused =
        !type && value && knobs_set_at(&scratch, id, value, SET_BY_RECIPE, NULL) != 0;
    if (!type)
        type = value && !refused ? value : *initial ? initial : "...";
    snprintf(out, KNOB_ELSEWHERE_BYTES, "'%.60s' is %s here%s%s%s; write %s%s%s%.100s%s%s", name,
             NAMES[row].knob, refused ? ", which takes " : "",
             refused ? knob_accepted(id, accepted) : "", refused ? " and not that value" : "",
             refused ? "for example " : "", NAMES[row].knob, by == SET_BY_RECIPE ? ": " : "=", type,
             remark ? "; " : "", remark ? remark : "");
    return out;
}

const char *knob_value_elsewhere(int id, const char *value, char out[KNOB_ELSEWHERE_BYTES]) {
    for (size_t i = 0; i < COUNT(VALUES); i++) {
        if (strcmp(VALUES[i].knob, knob_info(id)->name) != 0 || !among(VALUES[i].values, value))
            continue;
        const char *means = VALUES[i].means, *remark = VALUES[i].remark;
        snprintf(out, KNOB_ELSEWHERE_BYTES, "%s%s%s%s%s", means ? "that is '" : "",
                 means ? means : "", means ? "' here" : "", means && remark ? "; " : "",
                 remark ? remark : "");
        return out;
    }
    return NULL;
}
