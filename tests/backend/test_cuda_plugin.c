// test_cuda_plugin.c - how plug-ins are found and refused. No device is needed: a plug-in compares
// ABI and struct sizes before it looks for one.
#include "backend/operands.h"
#include "backend/plugin.h"
#include "base/file.h"
#include "skips.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void test_absent(void **state) {
    (void)state;
    struct err e = {0};
    struct backend *b;
    struct plugin_report r;
    assert_int_equal(plugin_open("nosuch", &(struct plugin_options){0}, &b, &e), ERR_UNSUPPORTED);
    assert_null(b);
    assert_non_null(strstr(e.text, "libhaggle_nosuch.so"));
    plugin_examine("nosuch", &r);
    assert_false(r.usable);
    assert_string_equal(r.path, "");
    assert_non_null(strstr(r.reason, "no plug-in 'nosuch'"));
}

// A file that is no shared object, and a shared object that is no plug-in.
static void test_not_a_plugin(void **state) {
    (void)state;
    char dir[256], path[512], before[1024] = "";
    struct err e = {0};
    struct backend *b;
    assert_int_equal(file_make_temp_dir(dir, sizeof dir, "plugin", NULL), 0);
    const char *chosen = getenv("HAGGLE_PLUGINS");
    snprintf(before, sizeof before, "%s", chosen ? chosen : "");
    setenv("HAGGLE_PLUGINS", dir, 1);
    snprintf(path, sizeof path, "%s/libhaggle_text.so", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("not a library\n", f);
    fclose(f);
    assert_int_equal(plugin_open("text", &(struct plugin_options){0}, &b, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "cannot be loaded"));
    unlink(path);
    void *yaml = dlopen("libyaml-0.so.2", RTLD_NOW); // loaded already: this program links it
    Dl_info info;
    void *symbol = yaml ? dlsym(yaml, "yaml_get_version") : NULL;
    if (symbol && dladdr(symbol, &info) != 0) {
        snprintf(path, sizeof path, "%s/libhaggle_yaml.so", dir);
        assert_int_equal(symlink(info.dli_fname, path), 0);
        assert_int_equal(plugin_open("yaml", &(struct plugin_options){0}, &b, &e), ERR_UNSUPPORTED);
        assert_non_null(strstr(e.text, "not a plug-in"));
        unlink(path);
    }
    if (yaml)
        dlclose(yaml);
    rmdir(dir);
    if (before[0])
        setenv("HAGGLE_PLUGINS", before, 1);
    else
        unsetenv("HAGGLE_PLUGINS");
}

static const char *name_of(enum op_kind kind) {
    return op_info(kind)->name;
}

static struct plugin_host right_host(void) {
    return (struct plugin_host){.abi = PLUGIN_ABI,
                                .op_bytes = sizeof(struct op),
                                .op_call_bytes = sizeof(struct op_call),
                                .backend_bytes = sizeof(struct backend),
                                .err_bytes = sizeof(struct err),
                                .op_count = OP_COUNT,
                                .err_set = err_set,
                                .op_name = name_of,
                                .dtype_text = dtype_text,
                                .check_call = backend_check_call};
}

static void test_other_abi(void **state) {
    (void)state;
    struct plugin_report r;
    plugin_examine("cuda", &r);
    void *library = r.path[0] ? dlopen(r.path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        skip_because("no CUDA plug-in: %s", r.reason);
    }
    union {
        void *data;
        plugin_open_fn *fn;
    } symbol = {.data = dlsym(library, PLUGIN_SYMBOL)};
    assert_non_null(symbol.data);
    const struct plugin_options o = {0};
    struct backend *b;
    struct err e = {0};
    struct plugin_host host = right_host();
    assert_int_equal(symbol.fn(PLUGIN_ABI + 1, &host, &o, &b, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "ABI"));
    host.op_bytes++;
    assert_int_equal(symbol.fn(PLUGIN_ABI, &host, &o, &b, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "other sources"));
    host = right_host();
    host.op_count++;
    assert_int_equal(symbol.fn(PLUGIN_ABI, &host, &o, &b, &e), ERR_UNSUPPORTED);
    host = right_host();
    host.err_bytes++; // no message is possible then, but the code is returned
    assert_int_equal(symbol.fn(PLUGIN_ABI, &host, &o, &b, &e), ERR_UNSUPPORTED);
    assert_null(b);
    int rc = symbol.fn(PLUGIN_ABI, &host, &o, &b, NULL); // no crash without a struct err
    assert_int_equal(rc, ERR_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_absent),
        cmocka_unit_test(test_not_a_plugin),
        cmocka_unit_test(test_other_abi),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
