// template_ops.h - operations on the values of a chat template: methods of strings and dicts,
// filters, tests, comparison. They mean what Python and Jinja mean.
//
// Place: template_eval.c evaluates expressions with these. template_string.c has the strings,
// template_filter.c the filters and tests, template_ops.c the rest.
#ifndef HAGGLE_DATA_TEMPLATE_OPS_H
#define HAGGLE_DATA_TEMPLATE_OPS_H

#include "data/template_value.h"

enum { OPS_MAX_ARGUMENTS = 8 };
struct ops_arguments {
    struct value items[OPS_MAX_ARGUMENTS]; // positional arguments come first
    const char *names[OPS_MAX_ARGUMENTS];  // NULL: a positional argument
    size_t name_bytes[OPS_MAX_ARGUMENTS];
    size_t n, n_positional;
};
// Returns the argument at a position or with a name; NULL: not given.
const struct value *ops_argument(const struct ops_arguments *a, size_t position, const char *name);
// ERR_FORMAT for an argument that would be ignored: more than `most` positional arguments, a name
// that is not among `names` (in the order of positions, separated by one blank), an argument given
// in both ways.
int ops_check_arguments(struct value_heap *h, const char *what, size_t n,
                        const struct ops_arguments *a, size_t most, const char *names);

bool ops_truth(const struct value *v);
int ops_equal(struct value_heap *h, const struct value *a, const struct value *b, bool *out);
int ops_contains(struct value_heap *h, const struct value *in, const struct value *what, bool *out);
// Sets *out to -1 for a < b, 0 for equal, 1 for greater. ERR_FORMAT when they have no order.
int ops_order(struct value_heap *h, const struct value *a, const struct value *b, int *out);
// Lists the elements of a list, the keys of a dict or the characters of a string. Undefined has
// none.
int ops_elements(struct value_heap *h, const struct value *v, struct value *out);
int ops_length(struct value_heap *h, const struct value *v, size_t *out);
int ops_index(struct value_heap *h, const struct value *of, const struct value *which,
              struct value *out);
int ops_attribute(struct value_heap *h, const struct value *of, const char *name, size_t n,
                  struct value *out);
int ops_slice(struct value_heap *h, const struct value *of, const struct value *from,
              const struct value *to, const struct value *step, struct value *out);
// Writes both as text, one after the other.
int ops_concatenate(struct value_heap *h, const struct value *a, const struct value *b,
                    struct value *out);

int ops_method(struct value_heap *h, const struct value *of, const char *name, size_t n,
               const struct ops_arguments *args, struct value *out);
int ops_string_method(struct value_heap *h, const struct marked *s, const char *name, size_t n,
                      const struct ops_arguments *args, struct value *out);
// how: 'u'pper, 'l'ower, 'c'apitalize, 't'itle as in Python; 'T': title as in Jinja's filter.
int ops_change_case(struct value_heap *h, const struct marked *s, char how, struct value *out);
int ops_filter(struct value_heap *h, const char *name, size_t n, const struct value *v,
               const struct ops_arguments *args, struct value *out);
int ops_test(struct value_heap *h, const char *name, size_t n, const struct value *v,
             const struct ops_arguments *args, bool *out);

// For UTF-8 strings, counted in characters.
size_t ops_characters(const struct marked *s);
size_t ops_byte_of_character(const struct marked *s, size_t character); // s->n after the last

#endif
