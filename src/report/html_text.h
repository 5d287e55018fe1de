// html_text.h - writes untrusted text into a page so that it stays text.
//
// Place: every string of a report that is not a literal goes through here.
//
// Invariant: for any input bytes, the output is valid UTF-8 and cannot end the element, attribute
// or script around it.
#ifndef HAGGLE_REPORT_HTML_TEXT_H
#define HAGGLE_REPORT_HTML_TEXT_H

#include <stdio.h>

// For content and for attributes in double or single quotes. Bytes that are not UTF-8 and control
// characters become U+FFFD.
void html_put_text(FILE *f, const char *text);
// The text between two pieces of markup, which are written as they are.
void html_put_between(FILE *f, const char *before, const char *text, const char *after);
// A JSON string inside a <script>: as html_put_text, but < > & are written as \u00xx.
void html_put_json_string(FILE *f, const char *text);

#endif
