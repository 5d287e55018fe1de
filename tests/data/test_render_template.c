// test_render_template.c - the language of chat templates: what it means, what it refuses, the
// origins of text, and that a hostile template ends soon.
#include "test_template_fixture.h"

// The expected texts are what Jinja 3.1 prints with the options that transformers sets.
static void test_meaning(void **state) {
    (void)state;
    static const struct template_case cases[] = {
        {"{{ s|trim }}|{{ s.strip() }}|{{ s|length }}",
         "H\xc3\xa9llo w\xc3\xb6rld|H\xc3\xa9llo w\xc3\xb6rld|15"},
        {"{{ t.split(',')|join('-') }}|{{ t.split(',', 1)|join('|') }}", "a-b--c|a|b,,c"},
        {"{{ ' a  b '.split()|join('_') }}", "a_b"},
        {"{{ s.strip()[1] }}{{ s.strip()[1:4] }}{{ 'abc'[::-1] }}{{ 'abc'[-2:] }}{{ 'abc'[:-5] }}",
         "\xc3\xa9\xc3\xa9llcbabc"},
        {"{{ l[0] }}{{ l[-1] }}{{ l[9] is defined }}{{ l[1:]|length }}{{ l[::-1]|join(',') }}",
         "1xFalse3x,3,2,1"},
        {"{{ d.a }}{{ d['b'].c[1] }}{{ d.zz is defined }}{{ d.zz }}{{ zz }}", "12False"},
        {"{{ n+1 }} {{ n-1 }} {{ n*3 }} {{ n/2 }} {{ n//2 }} {{ n%4 }} {{ -n%4 }} {{ -n//2 }}",
         "8 6 21 3.5 3 3 1 -4"},
        {"{{ f*2 }} {{ 0.1+0.2 }} {{ 1.0 }} {{ 1/3 }}",
         "5.0 0.30000000000000004 1.0 0.3333333333333333"},
        {"{{ 2 + 3 * 4 }} {{ (2+3)*4 }} {{ 1 ~ 2 * 3 }} {{ 'a' ~ 'b' + 'c' }} {{ 2 - -1 }}",
         "14 20 16 abc 3"},
        {"{{ 'a'~1~none~true }}{{ 'a' 'b' }}{{ 'x'*3 }}", "a1NoneTrueabxxx"},
        {"{{ 1<n<9 }} {{ 1<n<5 }} {{ n in l }} {{ 2 in l }} {{ 'a' in d }} {{ 'q' not in d }}",
         "True False False True True True"},
        {"{{ not n }} {{ n != 7 }} {{ 1==1.0 }} {{ true==1 }} {{ '1'==1 }} {{ 'a'<'b' }}",
         "False False True True False True"},
        {"{{ [1,2]==[1,2] }} {{ {'a':1}=={'a':1} }} {{ {'a':1}=={'a':2} }} {{ none==zz }}",
         "True True False False"},
        {"{{ n is odd }} {{ n is divisibleby 7 }} {{ s is string }} {{ d is mapping }} {{ l is "
         "iterable }} {{ z is none }} {{ z is not none }} {{ y is true }} {{ n is number }}",
         "True True True True True True False True True"},
        {"{{ e or 'x' }} {{ zz|default('q') }} {{ z|default('q',true) }} {{ z|default('q') }}",
         "x q q None"},
        {"{{ 'A' if n==7 else 'B' }}{{ 'A' if n==8 }}{{ n if y else 3 if z else 4 }}", "A7"},
        {"{{ d|tojson }}", "{\"a\": 1, \"b\": {\"c\": [1, 2]}, \"e\": \"\\\"q\\\"\\n\"}"},
        {"{{ d.b|tojson(indent=2) }}", "{\n  \"c\": [\n    1,\n    2\n  ]\n}"},
        {"{{ [1.5, none, true, [], {}]|tojson }}", "[1.5, null, true, [], {}]"},
        {"{% for k, v in d.items() %}{{ k }}={{ v|tojson }};{% endfor %}",
         "a=1;b={\"c\": [1, 2]};e=\"\\\"q\\\"\\n\";"},
        {"{% for k, v in {'b': 1, 'A': 2, 'c': 3}|dictsort %}{{ k }}{{ v }}{% endfor %}{{ n|float "
         "}}"
         "{{ y is sameas true }}{{ n is sameas true }}",
         "A2b1c37.0TrueFalse"},
        {"{{ d.get('a') }}{{ d.get('zz') }}{{ d.get('zz', 3) }}{{ d.keys()|list|join }}",
         "1None3abe"},
        {"{{ m|map(attribute='role')|join(',') }} {{ m|selectattr('role','equalto','user')|list|"
         "length }} {{ m|rejectattr('k','defined')|map(attribute='content')|join }}",
         "user,assistant 1 hi"},
        {"{{ l|select('string')|list|tojson }}{{ l|reject('equalto',2)|list|tojson }}",
         "[\"x\"][1, 3, \"x\"]"},
        {"{{ 'abc'|upper }}{{ 'ABC'|lower }}{{ 'abc def'|title }}{{ 'aBC'|capitalize }}",
         "ABCabcAbc DefAbc"},
        {"{{ 'aXbXc'.replace('X','',1) }}{{ 'abc'.startswith('a') }}{{ 'abc'.endswith(('x','c')) "
         "}}",
         "abXcTrueTrue"},
        {"{{ 'xxabxx'.strip('x') }}{{ 'xxab'.lstrip('x') }}{{ 'abxx'.rstrip('x') }}", "ababab"},
        {"{{ 'x</think>\\ny'.split('</think>')[-1].lstrip('\\n') }}", "y"},
        {"{{ range(3)|join(',') }} {{ range(1,8,3)|join(',') }} {{ range(5,0,-2)|join(',') }}",
         "0,1,2 1,4,7 5,3,1"},
        {"{{ 'a\\nb'|length }}{{ '\\u00e9' }}{{ '\\x41' }}{{ '\\q' }}", "3\xc3\xa9"
                                                                        "A\\q"},
        {"{{ l|first }}{{ l|last }}{{ l|reverse|list|tojson }}{{ 'abc'|list|join('.') }}",
         "1x[\"x\", 3, 2, 1]a.b.c"},
        {"{{ 3.7|int }}{{ -3|abs }}{{ n|string|length }}{{ z.foo is defined }}", "331False"},
        {"{% for x in l if x is number %}{{ loop.index }}:{{ x }}/{{ loop.length }}{{ ';' if not "
         "loop.last }}{% endfor %}",
         "1:1/3;2:2/3;3:3/3"},
        {"{% for x in [] %}a{% else %}none{% endfor %}{% for c in 'ab' %}{{ c }}-{% endfor %}",
         "nonea-b-"},
        {"{% for i in range(3) %}{{ loop.first }}{{ loop.revindex }}{{ loop.previtem }}"
         "{{ loop.nextitem }}|{% endfor %}",
         "True31|False202|False11|"},
        {"{% for i in l %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% if i == 3 %}{% break %}"
         "{% endif %}{% endfor %}",
         "13"},
        {"{% set x = 1 %}{% for i in l %}{% set x = 2 %}{% endfor %}{{ x }}", "1"},
        {"{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + 1 %}{% endfor %}{{ "
         "ns.x }}",
         "5"},
        {"{% macro f(a, b='x') %}[{{ a }}{{ b }}]{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(b=3, "
         "a=4) "
         "}}{{ f() }}",
         "[1x][12][43][x]"},
        {"{% macro f(a) %}{% if a > 0 %}{{ a }}{{ f(a - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
         "54321"},
        {"{% set x %}a{{ n }}b{% endset %}{{ x|upper }}{% set a, b = 1, 2 %}{{ a + b }}", "A7B3"},
        {"{% if n == 1 %}a{% elif n == 7 %}b{% else %}c{% endif %}", "b"},
        {"{{ '}}' }}{{ {'a':{'b':2}}['a']['b'] }}{{ '{{' }}", "}}2{{"},
        // blanks
        {"a  {%- if y -%}  b  {%- endif -%}  c", "abc"},
        {"a {{- n -}} b", "a7b"},
        {"  {% if y %}\n  x\n  {% endif %}\n y", "  x\n y"},
        {"x {% if y %} y {% endif %} z", "x  y  z"},
        {"{% for x in l %}\n  {{ x }}\n{% endfor %}\n", "  1\n  2\n  3\n  x\n"},
        {"a\n{# c #}\nb", "a\nb"},
        {"x{# d -#}  y", "xy"},
        {"x{#-#}  y", "x  y"},
        {"a\n\n", "a\n"},
        {"  {%+ if y %}x{% endif %}", "  x"},
        {"{% if y +%}\nx{% endif %}", "\nx"},
        {"a\r\n{% if y %}\r\nb\r\n{% endif %}\r\nc", "a\nb\nc"},
        {"\t{% if y %}a{% endif %}\t", "a\t"},
        {"{{ n }}\n\n", "7\n"},
        {"a{b{", "a{b{"},
        {"", ""},
        // the date is a constant; strftime_now looks undefined to a template that tests it
        {"{{ strftime_now is defined }} {{ strftime_now('%d %B %Y, %Y-%m-%d %b') }}",
         "False 26 July 2024, 2024-07-26 Jul"},
    };
    expect_texts(cases, sizeof cases / sizeof *cases);
}

static void test_refused(void **state) {
    (void)state;
    static const struct template_case cases[] = {
        {"{% include 'x' %}", "not understood at \"include\""},
        {"{% raw %}x{% endraw %}", "not understood at \"raw\""},
        {"{% for i in l recursive %}{% endfor %}", "recursive"},
        {"{% break %}", "outside of a loop"},
        {"{% if %}x{% endif %}", "expected an expression"},
        {"{% endif %}", "not understood at \"endif\""},
        {"{% if 1 %}x", "a block does not end"},
        {"{% if 1 %}x{% endfor %}", "\"endfor\""},
        {"{{ }}", "expected an expression"},
        {"{{ 1", "a tag does not end with }}"},
        {"{%", "a tag does not end with %}"},
        {"{# x", "a comment does not end"},
        {"{{ 'a }}", "a string does not end"},
        {"{{ '\\ud800' }}", "is not understood"},
        {"{{ a b }}", "expected }}"},
        {"{{ (1 }}", "closes nothing"},
        {"{{ 1) }}", "closes nothing"},
        {"{{ 1 $ 2 }}", "unexpected byte 0x24"},
        {"{{ 99999999999999999999 }}", "too large"},
        {"{{ 1x }}", "followed by 'x'"},
        {"{{ l[] }}", "expected an index"},
        {"{% macro f(a) %}{% macro g() %}{% endmacro %}{% endmacro %}", "inside a macro"},
        {"{% set d.a = 3 %}", "only members of a namespace can be set"},
        {"{{ nosuch() }}", "the function nosuch"},
        {"{{ s|nosuch }}", "the filter nosuch"},
        {"{{ n is nosuch }}", "the test nosuch"},
        {"{{ s.nosuch() }}", "the method nosuch of a string"},
        {"{{ l.append(1) }}", "the method append of a list"},
        {"{{ d.items }}", "a method is used without a call"},
        {"{{ n() }}", "not a function"},
        {"{{ zz.foo }}", "\"zz\" is undefined and has no \"foo\""},
        {"{{ d.zz.foo }}", "\"zz\" is undefined"},
        {"{{ zz + 'a' }}", "'+' of undefined and a string"},
        {"{{ 'a' + 1 }}", "'+' of a string and a number"},
        {"{{ l }}", "cannot print a list"},
        {"{{ d }}", "cannot print an object"},
        {"{{ 1 // 0 }}", "divides by zero"},
        {"{{ 9223372036854775807 + 1 }}", "too large"},
        {"{{ 1 in 5 }}", "cannot search for a number in a number"},
        {"{{ 'a' < 1 }}", "have no order"},
        {"{% for a, b in [1,2] %}{% endfor %}", "cannot unpack a number into 2 names"},
        {"{% for x in 5 %}{% endfor %}", "a number has no elements"},
        {"{{ 'x'.split('') }}", "empty string"},
        {"{{ s|upper }}", "not ASCII"},
        {"{{ d|tojson(sort_keys=true) }}", "tojson with sort_keys"},
        {"{{ range(0, 10, 0) }}", "range"},
        {"{{ range(1000000) }}", "more than 100000"},
        {"{{ l[::0] }}", "a step of 0"},
        {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "argument that it does not have"},
        {"\n\n{{ raise_exception('no ' + s) }}",
         "line 3: the template refuses this conversation: no "},
        {"{% set x %}{% generation %}a{% endgeneration %}{% endset %}", "generation inside"},
        {"{% generation %}{% generation %}a{% endgeneration %}{% endgeneration %}",
         "generation inside generation"},
        {"{{ strftime_now('%H') }}", "%H is not understood"},
    };
    expect_refusals(cases, sizeof cases / sizeof *cases);
}

// Every byte of the record's text keeps its origin, and no other byte has it.
static void test_origins(void **state) {
    (void)state;
    static const struct template_case cases[] = {
        {"a{{ t }}b", "a<a,b,,c>b"},
        {"{{ 'x' + t + 'y' }}", "x<a,b,,c>y"},
        {"{{ ('x' ~ t ~ 'y')[1:3] }}", "<a,>"},
        {"{{ t|replace(',', ';') }}", "<a>;<b>;;<c>"},
        {"{{ t.split(',')|join('+') }}", "<a>+<b>++<c>"},
        {"{{ t|upper }}", "<A,B,,C>"},
        {"{{ d|tojson }}", "{\"<a>\": 1, \"<b>\": {\"<c>\": [1, 2]}, \"<e>\": \"<\\\"q\\\"\\n>\"}"},
        {"{{ (' ' + t + ' ')|trim }}", "<a,b,,c>"},
        {"{% set x %}<{{ t }}>{% endset %}{{ x[1:-1] }}", "<a,b,,c>"},
        {"{% macro f(a) %}({{ a }}){% endmacro %}{{ f(t) }}", "(<a,b,,c>)"},
        {"{% for c in t[:3] %}{{ c }}.{% endfor %}", "<a>.<,>.<b>."},
        {"{{ t[::-1] }}", "<c,,b,a>"},
        {"{{ m|map(attribute='role')|join(',') }}", "<user>,<assistant>"},
        {"{{ n }}{{ t|length }}", "76"},
        {"{{ t * 2 }}", "<a,b,,ca,b,,c>"},
        {"{{ 'b' if 'b' in t }}", "b"},
    };
    expect_origins(cases, sizeof cases / sizeof *cases);
}

static char *repeated(const char *head, const char *unit, size_t times, const char *tail,
                      size_t *bytes) {
    size_t n = strlen(unit);
    *bytes = strlen(head) + n * times + strlen(tail);
    char *text = malloc(*bytes + 1), *at = text;
    at += sprintf(at, "%s", head);
    for (size_t i = 0; i < times; i++, at += n)
        memcpy(at, unit, n);
    sprintf(at, "%s", tail);
    return text;
}

// Nesting, loops, doubling and recursion end in an error, in bounded memory.
static void test_hostile(void **state) {
    (void)state;
    static const struct {
        const char *head, *unit;
        size_t times;
        const char *tail, *says;
    } cases[] = {
        {"{{ ", "(", 100000, "1 }}", ""},
        {"{{ "
         "((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((("
         "(((((((((((((((((((((((((((((((((((((((((((((((((((((((1",
         ")", 144, " }}", "nested too deep"},
        {"{{ ", "- ", 100000, "1 }}", "nested too deep"},
        {"{{ ", "not ", 100000, "1 }}", "nested too deep"},
        {"{{ ", "1 if 1 else ", 50000, "1 }}", "nested too deep"},
        {"", "{% if 1 %}", 50000, "", "nested too deep"},
        {"{{ 1", " + 1", 100000, " }}", "nested deeper than 300"},
        {"{{ d", ".a", 100000, " }}", "nested deeper than 300"},
        {"{{ s", "|trim", 100000, " }}", "nested deeper than 300"},
        {"{{ l", "[0]", 100000, " }}", "nested deeper than 300"},
        {"{{ f", "()", 100000, " }}", "not a function"},
        {"{% if 0 %}", "{% elif 0 %}", 50000, "{% endif %}", NULL},
        {"", "{# #}", 100000, "", NULL},
        {"", "{{ 1 }}", 100000, "", NULL},
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "", 0, "", "nested deeper than 300"},
        {"{% macro f(a) %}{{ f(a ~ a) }}{% endmacro %}{{ f('x') }}", "", 0, "", ""},
        {"{% for a in range(99999) %}", "{% for b in range(99999) %}", 10,
         "x{% endfor %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}"
         "{% endfor %}{% endfor %}{% endfor %}{% endfor %}",
         ""},
        {"{% set ns = namespace(x='x') %}{% for a in range(99999) %}{% set ns.x = ns.x ~ ns.x %}"
         "{% endfor %}",
         "", 0, "", "needs more than"},
        {"{% set ns = namespace(x=[1]) %}{% for a in range(99999) %}{% set ns.x = ns.x + ns.x %}"
         "{% endfor %}",
         "", 0, "", ""},
        {"{% set ns = namespace(x=[1]) %}{% for a in range(99999) %}{% set ns.x = [ns.x] %}{% "
         "endfor %}"
         "{{ ns.x|tojson }}",
         "", 0, "", "nested deeper than 80"},
        {"{% set ns = namespace(x=[1], y=[1]) %}{% for a in range(9999) %}{% set ns.x = [ns.x] %}"
         "{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
         "", 0, "", "nested too deep"},
        {"{{ 'x' * 999999999999 }}", "", 0, "", ""},
        {"{{ s.split('') }}{{ 'a' * 100000 * 100000 }}", "", 0, "", ""},
        {"{{ ('a,' * 1000000).split(',')|length }}", "", 0, "", ""},
        {"{% set ns = namespace(k=[]) %}{% for a in l %}{% set ns.k = [loop] %}{% endfor %}"
         "{{ ns.k[0].index }}",
         "", 0, "", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t bytes;
        char *source =
            repeated(cases[i].head, cases[i].unit, cases[i].times, cases[i].tail, &bytes);
        struct run r;
        int rc = run(&r, source, bytes);
        if (cases[i].says == NULL ? rc != 0 : rc >= 0 || strstr(r.e.text, cases[i].says) == NULL)
            fail_msg("case %zu: %.60s: got %d: %s", i, source, rc, r.e.text);
        assert_true(r.region.bytes <= LIMIT_BYTES + 4096);
        done(&r);
        free(source);
    }
}

// Every prefix and every flipped bit of a template gives an error or a text and does no harm.
static void test_damaged(void **state) {
    (void)state;
    static const char source[] =
        "{%- set ns = namespace(x=1, y='a') %}{# c #}{% macro f(a, b=2) %}{{ a ~ b }}{% endmacro %}"
        "{% for m2 in m if m2.role != 'x' %}{{ '<|' + m2['role'] + '|>\\n' ~ m2.content|trim }}"
        "{% if loop.first and not z %}{% set ns.x = loop.index0 % 2 %}{% elif n >= 3 %}"
        "{{- f(n, b=l[1:]|length) -}}{% else %}{% continue %}{% endif %}{% endfor %}"
        "{{ d.get('a', none) if d is mapping else [1, {'k': (2, 3)}]|tojson(indent=2) }}";
    size_t n = sizeof source - 1;
    struct run r;
    assert_int_equal(run(&r, source, n), 0);
    done(&r);
    char *copy = malloc(n);
    for (size_t cut = 0; cut < n; cut++) {
        char *prefix = malloc(cut + 1);
        memcpy(prefix, source, cut);
        int rc = run(&r, prefix, cut);
        assert_true(rc == 0 || (rc < 0 && r.e.text[0] != '\0'));
        done(&r);
        free(prefix);
    }
    for (size_t bit = 0; bit < 8 * n; bit++) {
        memcpy(copy, source, n);
        copy[bit / 8] = (char)(copy[bit / 8] ^ 1 << bit % 8);
        int rc = run(&r, copy, n);
        assert_true(rc == 0 || (rc < 0 && r.e.text[0] != '\0'));
        done(&r);
    }
    free(copy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meaning), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_origins), cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
