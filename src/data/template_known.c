// template_known.c - chat formats by name, each as a template in the language of template.h.
//
// The formats are those that the models' makers document. The templates were written for this
// project. A model's folder usually has a template, which is then used. These are for models
// without a template, and for models whose template is not understood. In formats that have no
// place for a system message, it goes in front of the first user's text, followed by a blank line.
#include "data/template.h"

#include <string.h>

// Turns with one mark per role, as in ChatML: OPEN role CLOSE text END.
#define EACH     "{% for m in messages %}"
#define END_EACH "{% endfor %}"
#define ASK      "{% if add_generation_prompt %}"
#define END_ASK  "{% endif %}"

#define CHATML_TURNS                                                                               \
    EACH "{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}" END_EACH ASK        \
         "{{ '<|im_start|>assistant\\n' }}" END_ASK

#define LLAMA3_TURN(role, text)                                                                    \
    "{{ '<|start_header_id|>' ~ " role " ~ '<|end_header_id|>\\n\\n' ~ " text " ~ '<|eot_id|>' }}"
#define LLAMA3_ASK ASK "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}" END_ASK
#define LLAMA31_SYSTEM                                                                             \
    LLAMA3_TURN("'system'", "'Cutting Knowledge Date: December 2023\\nToday Date: ' ~ "            \
                            "strftime_now('%d %b %Y') ~ '\\n\\n' ~ system")
#define LLAMA31_TURN LLAMA3_TURN("('ipython' if m.role == 'tool' else m.role)", "m.content | trim")

// Sets `rest` (all messages except the system's) and `system` (its text and a blank line, or "").
#define TAKE_SYSTEM                                                                                \
    "{% set rest = messages %}{% set system = '' %}"                                               \
    "{% if messages[0].role in ('system', 'developer') %}"                                         \
    "{% set rest = messages[1:] %}{% set system = messages[0].content ~ '\\n\\n' %}{% endif %}"

// Refuses other roles in formats that have only user and assistant.
#define ONLY_TWO                                                                                   \
    "{% if m.role not in ('user', 'assistant') %}"                                                 \
    "{{ raise_exception('this format has no place for a message of the ' ~ m.role) }}{% endif %}"

static const struct template_known table[] = {
    {.name = "plain",
     .about = "headings in words, for models without a format of their own",
     .source = EACH "{{ m.role | capitalize ~ ':\\n' ~ m.content }}"
                    "{{ eos_token ~ '\\n' if m.role == 'assistant' else '\\n\\n' }}" END_EACH ASK
                    "{{ 'Assistant:\\n' }}" END_ASK},
    {.name = "chatml",
     .about = "ChatML: Qwen, SmolLM, Yi, Hermes and others",
     .source = CHATML_TURNS,
     .needs = {"<|im_start|>", "<|im_end|>"}},
    {.name = "qwen2.5",
     .about = "ChatML with the system message of Qwen2.5 where there is none",
     .source = "{% if messages[0].role != 'system' %}"
               "{{ '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
               "assistant.<|im_end|>\\n' }}{% endif %}" CHATML_TURNS,
     .needs = {"<|im_start|>", "<|im_end|>"}},
    {.name = "llama3",
     .about = "Llama 3",
     .source = "{{ '<|begin_of_text|>' }}" EACH LLAMA3_TURN("m.role", "m.content | trim")
         END_EACH LLAMA3_ASK,
     .needs = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
    {.name = "llama3.1",
     .about = "Llama 3.1 and later: a system header with two dates is always there",
     .source = "{% set rest = messages %}{% set system = '' %}"
               "{% if messages[0].role == 'system' %}"
               "{% set rest = messages[1:] %}{% set system = messages[0].content | trim %}{% endif "
               "%}{{ '<|begin_of_text|>' }}" LLAMA31_SYSTEM
               "{% for m in rest %}" LLAMA31_TURN END_EACH LLAMA3_ASK,
     .needs = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
    {.name = "phi3",
     .about = "Phi-3",
     .source = EACH "{{ '<|' ~ m.role ~ '|>\\n' ~ m.content ~ '<|end|>\\n' }}" END_EACH ASK
                    "{{ '<|assistant|>\\n' }}" END_ASK,
     .needs = {"<|user|>", "<|assistant|>", "<|end|>"}},
    {.name = "gemma",
     .about = "Gemma: <start_of_turn>, the assistant is called model",
     .source = TAKE_SYSTEM
     "{{ '<bos>' }}{% for m in rest %}" ONLY_TWO
     "{{ '<start_of_turn>' ~ ('model' if m.role == 'assistant' else 'user') ~ '\\n' }}"
     "{{ system | trim ~ '\\n\\n' if loop.first and system else '' }}"
     "{{ m.content | trim ~ '<end_of_turn>\\n' }}" END_EACH ASK
     "{{ '<start_of_turn>model\\n' }}" END_ASK,
     .needs = {"<bos>", "<start_of_turn>", "<end_of_turn>"}},
    {.name = "zephyr",
     .about = "Zephyr: <|user|> and <|assistant|> in words, the end token after each turn",
     .source = EACH "{{ '<|' ~ m.role ~ '|>\\n' ~ m.content ~ eos_token ~ '\\n' }}" END_EACH ASK
                    "{{ '<|assistant|>\\n' }}" END_ASK},
    {.name = "tulu",
     .about = "Tulu and OLMo: as Zephyr, the end token after the assistant's turns only",
     .source = EACH
     "{{ '<|' ~ m.role ~ '|>\\n' ~ m.content ~ (eos_token if m.role == 'assistant' else '') }}"
     "{{ '' if loop.last and m.role == 'assistant' else '\\n' }}" END_EACH ASK
     "{{ '<|assistant|>\\n' }}" END_ASK},
    {.name = "mistral",
     .about = "Mistral instruct: [INST] .. [/INST] in words",
     .source =
         TAKE_SYSTEM "{{ bos_token }}{% for m in rest %}" ONLY_TWO "{% if m.role == 'user' %}"
                     "{{ '[INST] ' ~ (system if loop.first else '') ~ m.content ~ ' [/INST]' }}"
                     "{% else %}{{ ' ' ~ m.content ~ eos_token }}{% endif %}" END_EACH},
    {.name = "deepseek",
     .about = "DeepSeek V2.5, V3: <\xEF\xBD\x9CUser\xEF\xBD\x9C> and <\xEF\xBD\x9C"
              "Assistant\xEF\xBD\x9C>",
     .source = "{{ bos_token }}" EACH "{% if m.role in ('system', 'developer') %}{{ m.content }}"
               "{% elif m.role == 'user' %}"
               "{{ '<\xEF\xBD\x9CUser\xEF\xBD\x9C>' ~ m.content }}"
               "{% elif m.role == 'assistant' %}"
               "{{ '<\xEF\xBD\x9C"
               "Assistant\xEF\xBD\x9C>' ~ m.content ~ eos_token }}"
               "{% else %}" ONLY_TWO "{% endif %}" END_EACH ASK "{{ '<\xEF\xBD\x9C"
               "Assistant\xEF\xBD\x9C>' }}" END_ASK,
     .needs = {"<\xEF\xBD\x9CUser\xEF\xBD\x9C>", "<\xEF\xBD\x9C"
                                                 "Assistant\xEF\xBD\x9C>"}},
};

const struct template_known *template_known_at(size_t i) {
    return i < sizeof table / sizeof *table ? &table[i] : NULL;
}

const struct template_known *template_known_find(const char *name) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}
