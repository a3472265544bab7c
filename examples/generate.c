/* Continues a prompt with a compiled model: generate MODEL PROMPT [TOKENS] */

#include <stdio.h>
#include <stdlib.h>

#include "weir.h"

static void check(int code) {
    if (code != WEIR_OK) {
        fprintf(stderr, "error: %s\n", weir_last_error());
        exit(code);
    }
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT [TOKENS]\n", argv[0]);
        return WEIR_INVALID;
    }
    weir_model_t *model;
    check(weir_model_open(argv[1], &model));

    size_t count;
    check(weir_model_encode(model, argv[2], NULL, 0, &count));
    uint32_t *prompt = calloc(count + 1, sizeof *prompt);
    if (prompt == NULL) {
        return WEIR_ERROR;
    }
    check(weir_model_encode(model, argv[2], prompt, count, &count));

    weir_request_t request;
    check(weir_request_defaults(model, &request));
    request.max_tokens = argc > 3 ? (uint32_t)atoi(argv[3]) : 64;

    weir_engine_t *engine;
    check(weir_engine_new(model, NULL, &engine));
    uint64_t id;
    check(weir_engine_submit(engine, prompt, count, &request, &id));

    weir_event_t event;
    do {
        check(weir_engine_next(engine, &event));
        if (event.kind == WEIR_EVENT_FAILED) {
            fprintf(stderr, "error: %s\n", event.text);
            return WEIR_ERROR;
        }
        fwrite(event.text, 1, event.text_bytes, stdout);
        fflush(stdout);
    } while (event.kind != WEIR_EVENT_FINISHED);
    printf("\n");
    fprintf(stderr, "%u prompt tokens, %u new tokens\n", event.prompt_tokens,
            event.completion_tokens);

    free(prompt);
    weir_engine_free(engine);
    weir_model_free(model);
    return WEIR_OK;
}
