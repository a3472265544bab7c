/* Continues a prompt with a compiled model.
 *
 * A model in a file:  cc generate.c libweir_runtime.a -lpthread -ldl -lm
 *                     ./a.out MODEL PROMPT [TOKENS]
 * A model linked in:  weir compile FOLDER --emit lib -o tales.a
 *                     cc -DMODEL_HEADER='"tales.h"' generate.c tales.a -lpthread -ldl -lm
 *                     ./a.out PROMPT [TOKENS]
 */

#include <stdio.h>
#include <stdlib.h>

#ifdef MODEL_HEADER
#include MODEL_HEADER
#define ARGUMENTS "PROMPT [TOKENS]"
#else
#include "weir.h"
#define ARGUMENTS "MODEL PROMPT [TOKENS]"
#endif

static void check(int code) {
    if (code != WEIR_OK) {
        fprintf(stderr, "error: %s\n", weir_last_error());
        exit(code);
    }
}

int main(int argc, char **argv) {
#ifdef MODEL_HEADER
    int next = 1;
#else
    int next = 2;
#endif
    if (argc <= next) {
        fprintf(stderr, "usage: %s %s\n", argv[0], ARGUMENTS);
        return WEIR_INVALID;
    }
    const char *text = argv[next];
    const char *tokens = argc > next + 1 ? argv[next + 1] : "64";
    weir_model_t *model;
#ifdef MODEL_HEADER
    check(weir_model_linked(weir_model, &model));
#else
    check(weir_model_open(argv[1], &model));
#endif

    size_t count;
    check(weir_model_encode(model, text, NULL, 0, &count));
    uint32_t *prompt = calloc(count + 1, sizeof *prompt);
    if (prompt == NULL) {
        return WEIR_ERROR;
    }
    check(weir_model_encode(model, text, prompt, count, &count));

    weir_request_t request;
    check(weir_request_defaults(model, &request));
    request.max_tokens = (uint32_t)atoi(tokens);

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
