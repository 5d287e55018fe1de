// gpu.c - GPUs as the driver's files name them, and what they reach as the predictor sees it.
#include "hw/hw.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

static int add_gpu(void *arg, const char *name) {
    char path[512], *text = NULL, *to = arg;
    size_t bytes = 0, used = strlen(to);
    snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%.200s/information", name);
    if (file_read_all(path, 1 << 16, &text, &bytes, NULL) != 0)
        return 0;
    const char *model = strstr(text, "Model:");
    if (model && used < HW_GPUS_BYTES)
        snprintf(to + used, HW_GPUS_BYTES - used, "%.*s;", (int)strcspn(model, "\n"), model);
    free(text);
    return 0;
}

void hw_gpus_read(char out[HW_GPUS_BYTES]) {
    char *version = NULL;
    size_t bytes = 0;
    out[0] = '\0';
    if (file_read_all("/proc/driver/nvidia/version", 1 << 16, &version, &bytes, NULL) == 0)
        snprintf(out, 300, "%.*s;", (int)strcspn(version, "\n"), version);
    free(version);
    file_list_dir("/proc/driver/nvidia/gpus", add_gpu, out, NULL);
}

double hw_gpu_products(const struct hw_gpu_rates *r, enum dtype type) {
    return type == DTYPE_BF16  ? r->matmul_bf16_flops
           : type == DTYPE_F16 ? r->matmul_fp16_flops
                               : r->matmul_flops;
}

double hw_gpu_attention(const struct hw_gpu_rates *r, int64_t head_dim, bool backward) {
    if (head_dim > 64)
        return backward ? r->attention_128_bwd_flops : r->attention_128_flops;
    return backward ? r->attention_64_bwd_flops : r->attention_64_flops;
}

void hw_device_from_gpu(struct hw_device *d, const struct hw_gpu_rates *r) {
    *d = (struct hw_device){0};
    snprintf(d->name, sizeof d->name, "%.63s", r->device);
    d->matmul_flops = r->matmul_flops;
    d->matmul_bf16_flops = r->matmul_bf16_flops;
    d->matmul_fp16_flops = r->matmul_fp16_flops;
    d->attention_flops = r->attention_64_flops;
    d->attention_bwd_flops = r->attention_64_bwd_flops;
    d->memory_bytes_per_s = r->copy_bytes_per_s;
    d->op_overhead_s = r->launch_s;
}
