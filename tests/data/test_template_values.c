// test_template_values.c - strings, filters, tests and values mean the same as in Python and Jinja.
// Arguments that would be ignored are refused. Every limit ends in an error.
#include "test_template_fixture.h"

// The first four tables expect what Jinja 3.1.6 prints with the options that transformers sets.
static void test_strings(void **state) {
    (void)state;
    static const struct template_case cases[] = {
        {"{{ ' a  b c '.split(none, 1)|tojson }}{{ ' a b '.split(maxsplit=0)|tojson }}{{ '  "
         "'.split()|tojson }}",
         "[\"a\", \"b c \"][\"a b \"][]"},
        {"{{ 'a,b,c'.split(',', -1)|tojson }}{{ 'a,b,c'.split(sep=',', maxsplit=1)|tojson }}{{ "
         "'a,'.split(',')|tojson }}",
         "[\"a\", \"b\", \"c\"][\"a\", \"b,c\"][\"a\", \"\"]"},
        {"{{ '\\u2003 a\\u00a0b\\u3000'.split()|join('|') }}{{ "
         "'\\u00a0\\u1680x\\u2028\\u205f'.strip() }}{{ '\\u3042x'.strip() }}",
         "a|bx\xe3\x81\x82x"},
        {"{{ '\\u00e9\\u00e8a\\u00e9'.strip('\\u00e9\\u00e8') }}{{ 'ab'.strip('') }}{{ "
         "'x\\u00e9'.rstrip('\\u00e8') }}",
         "aabx\xc3\xa9"},
        {"{{ 'a\\nb\\r\\nc\\rd\\x0be\\x0cf\\x1cg\\x85h\\u2028i\\u2029'.splitlines()|join('|') }}",
         "a|b|c|d|e|f|g|h|i"},
        {"{{ 'a\\r\\n\\nb'.splitlines(true)|tojson }}{{ 'a\\n'.splitlines(keepends=false)|tojson "
         "}}{{ ''.splitlines()|tojson }}{{ '\\n'.splitlines()|tojson }}{{ "
         "'\\u2027\\u00a0'.splitlines()|length }}",
         "[\"a\\r\\n\", \"\\n\", \"b\"][\"a\"][][\"\"]1"},
        {"{{ 'abc'.find('c') }} {{ 'abc'.find('x') }} {{ '\\u00e9\\u20acx'.find('x') }} {{ "
         "'aaaa'.count('aa') }} {{ 'abc'.count('x') }}",
         "2 -1 2 2 0"},
        {"{{ 'abc'.removeprefix('a') }} {{ 'abc'.removeprefix('b') }} {{ 'abc'.removesuffix('bc') "
         "}} {{ 'abc'.removesuffix('a') }} {{ 'a'.removesuffix('aa') }}",
         "bc abc a abc a"},
        {"{{ '12'.isdigit() }} {{ '1a'.isdigit() }} {{ ''.isdigit() }} {{ 'a\\u00e9'.isdigit() }} "
         "{{ '\\u00e91a'.isdigit() }}",
         "True False False False False"},
        {"{{ ' \\n'.isspace() }} {{ '\\u00a0\\u2003 '.isspace() }} {{ ''.isspace() }} {{ ' "
         "x'.isspace() }}",
         "True True False False"},
        {"{{ \"it's 3abc a-b (cD) x_y\"|title }} {{ \"it's 3abc a-b (cD) x_y\".title() }} {{ '<aB "
         "[c {d'|title }}",
         "It's 3abc A-B (Cd) X_y It'S 3Abc A-B (Cd) X_Y <Ab [C {D"},
        {"{{ 'aBc dE'.capitalize() }} {{ 'aB'.upper() }} {{ 'aB'.lower() }} {{ 'a-b'.title() }}",
         "Abc de AB ab A-B"},
        {"{{ 'abc'.startswith('') }} {{ 'abc'.startswith(('x', 'ab')) }} {{ 'abc'.startswith(('x', "
         "'y')) }} {{ 'abc'.endswith('abcd') }}",
         "True True False False"},
        {"{{ 'aaa'.replace('a', 'b', -1) }} {{ 'aaa'.replace('a', 'b', 0) }} {{ 'aaa'|replace('a', "
         "'bb', count=2) }} {{ 'aa'|replace(old='a', new='c') }}",
         "bbb aaa bbbba cc"},
        {"{{ '-'.join(['a', 'b']) }}{{ ''.join([]) }}{{ '.'.join('xyz') }}{{ ','.join({'k': 1, "
         "'l': 2}) }}",
         "a-bx.y.zk,l"},
        {"{{ '\\u20ac\\u00e9\\x09|\\a\\b\\f\\v\\\\\\'\\\"' }}{{ 'a\\\nb' }}{{ '\\u00E9\\u20AC' }}",
         "\xe2\x82\xac\xc3\xa9\x09|\x07\x08\x0c\x0b\\'\"ab\xc3\xa9\xe2\x82\xac"},
    };
    expect_texts(cases, sizeof cases / sizeof *cases);
}

static void test_filters(void **state) {
    (void)state;
    static const struct template_case cases[] = {
        {"{{ d|items|first|first }}{{ zz|items|list|length }}{% for k, v in d.b|items %}{{ k }}{{ "
         "v|tojson }}{% endfor %}",
         "a0c[1, 2]"},
        {"{{ l|map('string')|join('-') }} {{ ['a', 'b']|map('upper')|join }} {{ "
         "d|map('upper')|join }}",
         "1-2-3-x AB ABE"},
        {"{{ [d, d]|map(attribute='b.c.1')|join(',') }} {{ [l]|map(attribute='3')|join }} {{ "
         "[l]|map(attribute='99999999999')|list|first is defined }} {{ "
         "[d]|map(attribute='b.zz')|first is defined }}",
         "2,2 x False False"},
        {"{{ [d, {'b': {'c': []}}]|selectattr('b.c')|list|length }} {{ [d]|rejectattr('b.c.0', "
         "'equalto', 1)|list|length }}",
         "1 0"},
        {"{{ [0, 1, '', 'a', none, [], [0], {}, {'k': 0}, 0.0, 0.5, false, "
         "true]|select|list|tojson }}{{ [0, 1]|reject|list|tojson }}",
         "[1, \"a\", [0], {\"k\": 0}, 0.5, true][0]"},
        {"{{ ['a', 'b', 'c']|select('in', ['a', 'c'])|join }} {{ [1, 2, 3, 4]|reject('odd')|join "
         "}} {{ [3, 4, 6]|select('divisibleby', 3)|join }} {{ ['a', 'b']|select('ne', 'a')|join }} "
         "{{ ['a', 'b']|select('==', 'a')|join }}",
         "ac 24 36 b a"},
        {"{{ 'abc'|first }}{{ 'abc'|last }}{{ []|first is defined }}{{ []|last }}{{ {'a': 1, 'b': "
         "2}|first }}{{ {'a': 1, 'b': 2}|last }}",
         "acFalseab"},
        {"{{ 'abc'|reverse }} {{ d|list|join }} {{ d|length }} {{ zz|length }} {{ zz|list|length "
         "}} {{ l|count }} {{ '\\u00e9a'|list|join('.') }}",
         "cba abe 3 0 0 4 \xc3\xa9.a"},
        {"{{ zz|default }}|{{ zz|d('x') }}|{{ e|default('y', boolean=true) }}|{{ "
         "e|default(default_value='y') }}|{{ zz|default(boolean=true) }}|",
         "|x|y|||"},
        {"{{ 2.9|int }} {{ -2.9|int }} {{ true|int }} {{ 5|int(default=3) }} {{ 1|float }} {{ "
         "2.5|float(0.0) }} {{ -5|abs }} {{ 5|abs }}",
         "2 -2 1 5 1.0 2.5 5 5"},
        {"{{ 'a<b'|safe }} {{ 5|safe }} {{ 5|string + 'x' }} {{ 1.5|string|length }} {{ "
         "none|string }} {{ true|trim }}",
         "a<b 5 5x 3 None True"},
        {"{{ {'b': 1, 'B': 2, 'a': 3, 'ab': 4, 'A': 5}|dictsort|tojson }}",
         "[[\"a\", 3], [\"A\", 5], [\"ab\", 4], [\"b\", 1], [\"B\", 2]]"},
        {"{{ {'a': [1, {'b': 2}]}|tojson(indent=0) }}{{ [[], {}]|tojson(indent=1) }}{{ "
         "[1]|tojson(indent=none) }}",
         "{\n\"a\": [\n1,\n{\n\"b\": 2\n}\n]\n}[\n [],\n {}\n][1]"},
        {"{{ [1]|tojson(false, 2) }}{{ {'\\u00e9': '\\x01\\x7f\\u2028'}|tojson }}{{ "
         "[1]|tojson(ensure_ascii=false, sort_keys=false, separators=none) }}",
         "[\n  1\n]{\"\xc3\xa9\": \"\\u0001\x7f\xe2\x80\xa8\"}[1]"},
        {"{{ '\\b\\f\\r\\t\\\\/'|tojson }}{{ ''|tojson }}{{ -1.5|tojson }}{{ true|tojson }}{{ "
         "none|tojson }}",
         "\"\\b\\f\\r\\t\\\\/\"\"\"-1.5truenull"},
        {"{% set h = 9000000000000000.0 %}{% set k = h * h * h * h * h * h * h * h * h * h %}{% "
         "set i = k * k * k %}{{ i }} {{ -i }} {{ i - i }} {{ [i, -i, i - i]|tojson }}",
         "inf -inf nan [Infinity, -Infinity, NaN]"},
        {"{{ 10000000000000000.0 }} {{ 1234567890123456.0 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1.5 / "
         "10000000 }} {{ -0.0 }} {{ 100.0 }} {{ 123456789012345678.0 * 10 }}",
         "1e+16 1234567890123456.0 0.0001 1e-05 1.5e-07 -0.0 100.0 1.2345678901234568e+18"},
        {"{{ ' x '|trim }}|{{ 'xax'|trim('x') }}|{{ 'xax'|trim(chars='x') }}|{{ ['a', 1, none, "
         "2.5]|join(d='+') }}|{{ 'abc'|join }}",
         "x|a|a|a+1+None+2.5|abc"},
    };
    expect_texts(cases, sizeof cases / sizeof *cases);
}

static void test_tests(void **state) {
    (void)state;
    static const struct template_case cases[] = {
        {"{{ l is sequence }} {{ d is sequence }} {{ 'a' is sequence }} {{ n is sequence }} {{ zz "
         "is sequence }} {{ n is iterable }} {{ none is iterable }}",
         "True True True False True False False"},
        {"{{ n is integer }} {{ f is integer }} {{ true is integer }} {{ f is float }} {{ n is "
         "float }} {{ y is boolean }} {{ n is boolean }} {{ true is number }} {{ 'a' is number }}",
         "True False False True False True False True False"},
        {"{{ false is false }} {{ 0 is false }} {{ 1 is true }} {{ zz is undefined }} {{ n is "
         "undefined }} {{ none is mapping }}",
         "True False False True False False"},
        {"{{ 2 is in [1, 2] }} {{ 'a' is in 'xay' }} {{ 'k' is in {'k': 1} }} {{ 3 is not in [1] "
         "}} {{ 'a' is in zz }}",
         "True True True True False"},
        {"{{ 7 // -2 }} {{ 7 % -2 }} {{ -7 % 2 }} {{ 7 // -1 }} {{ (-9223372036854775807 - 1) % -1 "
         "}}",
         "-4 -1 1 -7 0"},
        {"{{ 6 is divisibleby(-3) }} {{ 6 is divisibleby(-1) }} {{ 7 is divisibleby 2 }} {{ -7 is "
         "odd }} {{ -6 is even }} {{ 0 is even }}",
         "True True False True True True"},
        {"{{ [1] is sameas [1] }} {{ l is sameas l }} {{ d is sameas d }} {{ {} is sameas {} }} {{ "
         "none is sameas none }} {{ 1 is sameas 1.0 }} {{ 1 is eq 1.0 }} {{ 1 is ne 2 }}",
         "False True True False True False True True"},
        {"{{ n is eq(7) }} {{ n is equalto 8 }} {{ 'a' is sameas none }}", "True False False"},
    };
    expect_texts(cases, sizeof cases / sizeof *cases);
}

static void test_values(void **state) {
    (void)state;
    static const struct template_case cases[] = {
        {"{{ 9007199254740993 > 9007199254740992 }} {{ 9007199254740993 <= 9007199254740992 }} {{ "
         "1 < 1.5 }} {{ true < 2 }} {{ 'a' < '\\u00e9' }} {{ 'ab' < 'a' }} {{ '' < 'a' }} {{ 2.5 "
         ">= 2.5 }}",
         "True False True True True False True True"},
        {"{{ 'y' if 0.0 else 'n' }}{{ 'y' if 0.5 else 'n' }}{{ 'y' if {} else 'n' }}{{ 'y' if d "
         "else 'n' }}{{ 'y' if namespace() else 'n' }}{% for i in [1] %}{{ 'y' if loop else 'n' "
         "}}{% endfor %}{% macro f() %}{% endmacro %}{{ 'y' if f else 'n' }}",
         "nynyyyy"},
        {"{{ none == none }} {{ zz == yy }} {{ none == false }} {{ [1, [2]] == [1, [2]] }} {{ [1] "
         "== [1, 2] }} {{ {'a': 1} == {'b': 1} }} {{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }} {{ "
         "'a' == ['a'] }} {{ 'a' != 'ab' }}",
         "True True False True False False True False True"},
        {"{{ d.values()|list|length }} {{ {'a': 5, 'b': 6}.values()|join(',') }} {{ {'a': 5, 'b': "
         "6}.keys()|join(',') }} {{ d.get('b').get('c')|tojson }} {{ d.get('zz') is none }}",
         "3 5,6 a,b [1, 2] True"},
        {"{% for k in d %}{{ k }}{% endfor %} {% for c in '\\u00e9\\u20acx' %}{{ c }}.{% endfor "
         "%}{% for x in zz %}x{% endfor %}",
         "abe \xc3\xa9.\xe2\x82\xac.x."},
        {"{{ l[1:3]|tojson }} {{ l[-99:2]|tojson }} {{ l[2:-99]|tojson }} {{ l[::2]|tojson }} {{ "
         "l[3:0:-2]|tojson }} {{ l[99:-99:-1]|tojson }} {{ l[none:none:none]|length }} {{ "
         "l[3:1]|tojson }} {{ l[-4:]|length }} {{ l[-5::-1]|tojson }}",
         "[2, 3] [1, 2] [] [1, 3] [\"x\", 2] [\"x\", 3, 2, 1] 4 [] 4 []"},
        {"{{ '\\u00e9bc'[0] }}{{ '\\u00e9bc'[-1] }}{{ '\\u00e9bcd'[::2] }}{{ 'abc'[9] is defined "
         "}}{{ 'abc'[2:1] }}{{ 'abc'[-9] is defined }}{{ 'abc'['x'] is defined }}{{ d[0] is "
         "defined }}{{ l[1.5] is defined }}{{ n[0] is defined }}",
         "\xc3\xa9"
         "c\xc3\xa9"
         "cFalseFalseFalseFalseFalseFalse"},
        {"{{ dict(d.b, x=1)|tojson }}{{ dict({'a': 1}, a=2)|tojson }}{% set ns = namespace({'a': "
         "4}) %}{{ ns.a }}",
         "{\"c\": [1, 2], \"x\": 1}{\"a\": 2}4"},
    };
    expect_texts(cases, sizeof cases / sizeof *cases);
}

// Wrong arguments, and arguments that are not supported here, are never ignored.
static void test_refused(void **state) {
    (void)state;
    static const struct template_case cases[] = {
        {"{{ 'a'.strip(1) }}", "a string is expected, not a number"},
        {"{{ 'a'.split(',', 'x') }}", "a number is expected, not a string"},
        {"{{ 'a'.replace('a') }}", "a string is expected as argument 2"},
        {"{{ 'a'.startswith(1) }}", "a string is expected as argument 1"},
        {"{{ 'a'.removeprefix() }}", "a string is expected as argument 1"},
        {"{{ 'a'.replace('', 'b') }}", "cannot replace an empty string"},
        {"{{ 'a'.find('') }}", "cannot search for an empty string"},
        {"{{ ','.join() }}", "join needs an argument"},
        {"{{ ','.join(5) }}", "a number has no elements"},
        {"{{ '\\u0663'.isdigit() }}", "isdigit does not support text that is not ASCII"},
        {"{{ s|title }}", "not ASCII"},
        {"{{ 'abc'.find('c', 1) }}", "find with these arguments"},
        {"{{ 'abc'.startswith('b', 1) }}", "startswith with these arguments"},
        {"{{ 'abc'.upper(1) }}", "upper with these arguments"},
        {"{{ 'abc'.split(separator='b') }}", "split with these arguments"},
        {"{{ 'abc'.split('b', sep='c') }}", "split with these arguments"},
        {"{{ d.get('a', default=1) }}", "get with these arguments"},
        {"{{ d.items(1) }}", "items with these arguments"},
        {"{{ d.get(1) }}", "the method get of an object is not understood"},
        {"{{ d.pop('a') }}", "the method pop of an object is not understood"},
        {"{{ zz.strip() }}", "\"zz\" is undefined and has no \"strip\""},
        {"{{ 'a'|upper('x') }}", "upper with these arguments"},
        {"{{ 'a'|trim(what='x') }}", "trim with these arguments"},
        {"{{ {}|dictsort(true) }}", "dictsort with these arguments"},
        {"{{ l|dictsort }}", "dictsort of a list"},
        {"{{ l|map(attribute='a', default=1)|list }}", "map with these arguments"},
        {"{{ l|map('default', 1)|list }}", "map with these arguments"},
        {"{{ l|map('map')|list }}", "map of map"},
        {"{{ l|map|list }}", "the name of an attribute or test is expected"},
        {"{{ l|map(attribute=1)|list }}", "the name of an attribute or test is expected"},
        {"{{ m|selectattr|list }}", "the name of an attribute or test is expected"},
        {"{{ l|select(5)|list }}", "the name of an attribute or test is expected"},
        {"{{ l|select('in', l, l)|list }}", "select with these arguments"},
        {"{{ [d]|map(attribute='zz.a')|list }}", "is undefined and has no \"a\""},
        {"{{ m|join(',', attribute='role') }}", "join with attribute is not understood"},
        {"{{ l|join(1) }}", "join with a number"},
        {"{{ l|items }}", "a list has no items"},
        {"{{ '5'|int }}", "int of a string is not understood"},
        {"{{ (9000000000000000.0 * 10)|int }}", "int of a number is not understood"},
        {"{{ '5'|float }}", "float of a string is not understood"},
        {"{{ 'a'|abs }}", "abs of a string is not understood"},
        {"{{ none|length }}", "none has no length"},
        {"{{ d|reverse }}", "an object cannot be sliced"},
        {"{{ l|tojson(4) }}", "tojson with ensure_ascii is not understood"},
        {"{{ l|tojson(separators=(',', ':')) }}", "tojson with separators is not understood"},
        {"{{ l|tojson(indent='--') }}", "an indent that is a string"},
        {"{{ l|tojson(indent=-1) }}", "an indent of -1"},
        {"{{ l|tojson(indent=17) }}", "an indent of 17"},
        {"{{ l|tojson(default=1) }}", "tojson with these arguments"},
        {"{{ [zz]|tojson }}", "undefined cannot be written as JSON"},
        {"{% macro f() %}{% endmacro %}{{ f|tojson }}", "a macro cannot be written as JSON"},
        {"{% for i in l %}{{ loop }}{% endfor %}", "cannot print the loop"},
        {"{{ 6 is divisibleby(0) }}", "a whole number other than 0"},
        {"{{ 6 is divisibleby(2.5) }}", "a whole number other than 0"},
        {"{{ 6 is divisibleby }}", "a whole number other than 0"},
        {"{{ 6 is divisibleby(num=3) }}", "divisibleby with these arguments"},
        {"{{ 'a' is odd }}", "expect a whole number, not a string"},
        {"{{ n is defined(1) }}", "defined with these arguments"},
        {"{{ n is eq }}", "the test eq is not understood without an argument"},
        {"{{ 1 is in 5 }}", "cannot search for a number in a number"},
        {"{{ none < 1 }}", "none and a number have no order"},
        {"{{ l['a':] }}", "a slice with a bound that is a string"},
        {"{{ l[::'x'] }}", "a step that is a string"},
        {"{{ zz[0] }}", "\"zz\" is undefined"},
        {"{{ n[1:] }}", "a number cannot be sliced"},
        {"{{ {1: 2} }}", "a number is the name of a member"},
        {"{{ dict(5) }}", "cannot make an object from a number"},
        {"{{ range('a') }}", "up to three numbers"},
        {"{{ range(1, 2, 3, 4) }}", "up to three numbers"},
        {"{{ strftime_now() }}", "a format is expected"},
        {"{{ dict(a=1, b=2, c=3, d=4, e=5, f=6, g=7, h=8, i=9) }}", "more than 8 arguments"},
        {"{{ 2 ** 3 }}", "a power is computed"},
        {"{{ (-9223372036854775807 - 1) // -1 }}", "a number is too large"},
        {"{{ -(-9223372036854775807 - 1) }}", "a number is too large"},
        {"{{ (-9223372036854775807 - 1) | abs }}", "a number is too large"},
        {"{{ 9223372036854775807 + 1 }}", "a number is too large"},
        {"{{ 5 % 0 }}", "divides by zero"},
        {"{{ 5 / 0 }}", "divides by zero"},
        {"{{ 5.0 // 0 }}", "divides by zero"},
        {"{{ 1.5 // 2 }}", "an operation on numbers is not understood"},
        {"{{ '\\u12' }}", "the escape \\u is not understood"},
        {"{{ '\\xg0' }}", "the escape \\x is not understood"},
        {"{{ '\\0' }}", "the escape \\0 is not understood"},
        {"{{ '\\N{DASH}' }}", "the escape \\N is not understood"},
        {"{{ 'a\\", "a string does not end"},
    };
    expect_refusals(cases, sizeof cases / sizeof *cases);
}

static void test_origins(void **state) {
    (void)state;
    static const struct template_case cases[] = {
        {"{{ ('x' ~ t ~ 'y' ~ t)[0:9] }}", "x<a,b,,c>y<a>"},
        {"{{ ('x ' ~ t ~ ' y').split()|join('+') }}", "x+<a,b,,c>+y"},
        {"{{ ('1\\n' ~ t ~ '2\\n' ~ t).splitlines()|join('+') }}", "1+<a,b,,c>2+<a,b,,c>"},
        {"{{ ('<' ~ t ~ '>').removeprefix('<').removesuffix('>') }}", "<a,b,,c>"},
        {"{{ (t ~ 'xy')|title }}", "<A,b,,c>xy"},
        {"{{ [t ~ 'x']|tojson }}", "[\"<a,b,,c>x\"]"},
        {"{{ m|map(attribute='role')|map('upper')|join }}", "<USERASSISTANT>"},
        {"{{ d|dictsort|map('first')|join(' ') }}", "<a> <b> <e>"},
        {"{{ strftime_now(t ~ '%d') }}", "<a,b,,c>26"}, // a format keeps its origin, too
    };
    expect_origins(cases, sizeof cases / sizeof *cases);
}

// ---------------------------------------------------------------- limits

// Uses everything that takes memory or time.
static const char busy[] =
    "{% set ns = namespace(x='') %}{% for q in m %}{% set ns.x = ns.x ~ q.role ~ '|' %}{% endfor %}"
    "{{ ns.x[3:9] }}{{ ns.x.split('|')|join(';') }}{{ ns.x.splitlines()|first }}{{ "
    "d|tojson(indent=1) "
    "}}{{ l|reverse|select('number')|join }}{{ d|dictsort|length }}{{ ns.x|upper|replace('U', t) }}"
    "{{ {'a': [1, t], 'b': {}}.items()|list|length }}{{ s.split()|map('trim')|join('_') }}{{ d == "
    "d }}"
    "{{ range(5)|join }}{{ ' ab '.strip('x ') }}{{ 'a' in d }}{{ ns.x.count('|') }}{{ t[::-1] }}"
    "{% macro f(a, b=1) %}{{ a }}{{ b }}{% endmacro %}{{ f(t) }}{% set g %}{{ n }}{% endset %}{{ g "
    "}}"
    "{% generation %}{{ t }}{% endgeneration %}";

struct ceilings {
    size_t bytes;
    int64_t steps;
    struct region region;
    struct err e;
    char text[1024];
};

// Reads the variables and renders `busy` within the limits.
static int run_within(struct ceilings *c, const struct template *t, bool heard) {
    memset(&c->e, 0, sizeof c->e);
    struct value_heap h = {.region = &c->region,
                           .limit_bytes = c->bytes,
                           .steps = c->steps,
                           .e = heard ? &c->e : NULL};
    struct region reader = {0};
    struct json_reader j;
    struct value all;
    struct template_variable v[16];
    struct template_output out;
    json_reader_init(&j, "variables", variables, strlen(variables), &reader, heard ? &c->e : NULL);
    int rc = value_read_json(&h, &j, ORIGIN_RECORD, &all);
    for (size_t i = 0; rc == 0 && i < all.dict->n; i++)
        v[i] = (struct template_variable){all.dict->pairs[i].key->bytes, all.dict->pairs[i].value};
    if (rc == 0)
        rc = template_render(t, v, all.dict->n, &h, &out);
    if (rc == 0)
        snprintf(c->text, sizeof c->text, "%.*s", (int)out.text->n, out.text->bytes);
    c->bytes = c->region.bytes;
    c->steps -= h.steps;
    region_free(&c->region);
    region_free(&reader);
    return rc;
}

// With less memory or fewer steps than needed, there is an error that says which. With exactly
// enough, the text is the same. Both hold without an err to report to.
static void test_ceilings(void **state) {
    (void)state;
    struct template *t;
    struct err e;
    if (template_open(&t, "busy", busy, sizeof busy - 1, &e) != 0)
        fail_msg("%s", e.text);
    struct ceilings all = {.bytes = LIMIT_BYTES, .steps = LIMIT_STEPS}, c;
    if (run_within(&all, t, true) != 0)
        fail_msg("%s", all.e.text);
    assert_true(all.bytes > 4000 && all.steps > 200);
    for (size_t bytes = 0; bytes <= all.bytes; bytes += 16) {
        c = (struct ceilings){.bytes = bytes, .steps = LIMIT_STEPS};
        int rc = run_within(&c, t, true);
        if (bytes < all.bytes && (rc != ERR_FORMAT || !strstr(c.e.text, "bytes of memory")))
            fail_msg("%zu bytes: %d, %s", bytes, rc, c.e.text);
        if (bytes == all.bytes)
            assert_string_equal(c.text, all.text);
        c = (struct ceilings){.bytes = bytes, .steps = LIMIT_STEPS};
        assert_int_equal(run_within(&c, t, false) == 0, bytes == all.bytes);
    }
    for (int64_t steps = 0; steps <= all.steps; steps++) {
        c = (struct ceilings){.bytes = LIMIT_BYTES, .steps = steps};
        int rc = run_within(&c, t, true);
        if (steps < all.steps && (rc != ERR_FORMAT || !strstr(c.e.text, "takes too long")))
            fail_msg("%lld steps: %d, %s", (long long)steps, rc, c.e.text);
        if (steps == all.steps)
            assert_string_equal(c.text, all.text);
    }
    template_close(t);
}

static void test_json(void **state) {
    (void)state;
    static const struct {
        const char *json, *says; // NULL: it is accepted
    } cases[] = {
        {"[1, -2, 3.5, 1e3, \"a\", null, true, {\"a\": {}}]", NULL},
        {"", "column 1 (byte 0): the text ends where a value should be"},
        {"[1, ]", "column 5"},
        {"[1, x]", "column 5"},
        {"{\"a\": }", "column 7"},
        {"{\"a\": 1, \"b\": 2, \"a\": 3}", "the member \"a\" appears twice"},
        {"1e999", "column 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct region region = {0};
        struct err e = {0};
        struct value_heap h = {
            .region = &region, .limit_bytes = LIMIT_BYTES, .steps = LIMIT_STEPS, .e = &e};
        struct json_reader j;
        struct value v;
        json_reader_init(&j, "text", cases[i].json, strlen(cases[i].json), &region, &e);
        int rc = value_read_json(&h, &j, ORIGIN_RECORD, &v);
        if (cases[i].says == NULL) {
            struct marked_builder b = {0};
            struct value text;
            assert_int_equal(rc, 0);
            assert_int_equal(value_write_json(&h, &v, -1, &b), 0);
            assert_int_equal(marked_finish(&h, &b, &text), 0);
            assert_true(
                marked_equals(text.s, "[1, -2, 3.5, 1000.0, \"a\", null, true, {\"a\": {}}]"));
        } else if (rc >= 0 || strstr(e.text, cases[i].says) == NULL) {
            fail_msg("%s\nexpected: %s\ngot %d: %s", cases[i].json, cases[i].says, rc, e.text);
        }
        region_free(&region);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strings),  cmocka_unit_test(test_filters),
        cmocka_unit_test(test_tests),    cmocka_unit_test(test_values),
        cmocka_unit_test(test_refused),  cmocka_unit_test(test_origins),
        cmocka_unit_test(test_ceilings), cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
