// html_text.h - text that came from somewhere, put into a page as text.
//
// Place: every string of a report goes through here; nothing else writes one that is not a literal.
//
// Invariant: whatever the bytes, what is written is valid UTF-8 and cannot end the element,
// attribute or script it stands in.
#ifndef HAGGLE_REPORT_HTML_TEXT_H
#define HAGGLE_REPORT_HTML_TEXT_H

#include <stdio.h>

// For content and for attributes in double or single quotes. Bytes that are not UTF-8 and control
// characters become U+FFFD.
void html_put_text(FILE *f, const char *text);
// A JSON string for inside <script>: the same, with every < > & written as \u00xx.
void html_put_json_string(FILE *f, const char *text);

#endif
